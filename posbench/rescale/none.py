"""The trained model as it is."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from posbench.registry import register
from posbench.rescale.base import Rescale

if TYPE_CHECKING:
    from posbench.encodings.base import PositionalEncoding


@register
class NoRescale(Rescale):
    """No rescaling: the trained encoding is used as it is, at every length."""

    family = "rescaling"
    paper = ""
    acts_on = "nothing"

    @dataclass
    class Config:
        """No options."""

    def applied(
        self, encoding: "PositionalEncoding", train_length: int, test_length: int
    ) -> "PositionalEncoding":
        return encoding
