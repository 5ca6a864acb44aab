"""A temperature that follows the number of keys, on a model trained without it."""

from dataclasses import dataclass

from posbench.encodings.base import PositionalEncoding
from posbench.encodings.logn import LogN
from posbench.registry import register
from posbench.rescale.added import together
from posbench.rescale.base import Rescale, refuse_coordinates


@register
class LogNRescale(Rescale):
    """Scores times max(1, ln(n) / ln L) for the n keys that a query sees, on any trained scheme.

    Su 2021, kexue.fm/archives/8823, in the form that leaves the first L tokens alone. Any length.
    """

    family = "temperature"
    paper = "kexue.fm/archives/8823"
    acts_on = "scores"

    @dataclass
    class Config:
        """No options."""

    def on(
        self, encoding: PositionalEncoding, train_length: int, test_length: int
    ) -> PositionalEncoding:
        refuse_coordinates(self, encoding)
        added = LogN(LogN.Config(clamp=True), encoding.geometry)
        return together([encoding, added], encoding.label)
