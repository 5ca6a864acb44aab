"""Dynamic NTK scaling."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from posbench.encodings.base import Reduction
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.rescale.base import GROWN, Ladder, Rescale, refuse_coordinates
from posbench.rescale.ntk import ntk_frequencies
from posbench.rescale.per_query import PerQuery

if TYPE_CHECKING:
    from posbench.encodings.base import PositionalEncoding

MODES = ("full", "incremental")


@register
class DynamicNtk(Rescale):
    """NTK-aware with s from the length at hand: alpha * T/L - (alpha - 1) past L, 1 up to L.

    emozilla 2023 (post); arXiv:2309.00071 section 3.3 is alpha = 1. `mode=full` takes one s from
    the whole sequence, so that appended tokens change earlier ones. `mode=incremental` is what
    token-by-token decoding with un-rotated cached keys computes: query i has s from i + 1 tokens.
    Any length; no state, so the order of lengths does not matter.
    """

    family = "rescaling"
    paper = "arXiv:2309.00071 section 3.3"

    @dataclass
    class Config:
        #: 1 = the paper; released code calls it factor
        alpha: float = 1.0
        #: full or incremental
        mode: str = "full"
        #: with several axes: grown or all, as in `pi`; mode=full
        axes: str = GROWN

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("alpha = 1", "ntk", {"alpha": 1.0}, {"factor": "auto"})]

    def __init__(self, config: Config):
        super().__init__(config)
        if not config.alpha >= 1:
            raise ConfigError(f"rescale.alpha={config.alpha}: must be at least 1")
        if config.mode not in MODES:
            raise ConfigError(f"rescale.mode={config.mode}: must be one of {', '.join(MODES)}")

    @property
    def depends_on_total_length(self) -> bool:
        return bool(self.config.mode == "full")

    def scale(self, train_length: int, test_length: int) -> float:
        if test_length <= train_length:
            return 1.0
        return float(self.config.alpha * (test_length / train_length) - (self.config.alpha - 1))

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        return ntk_frequencies(ladder, scale)

    def on(
        self, encoding: "PositionalEncoding", train_length: int, test_length: int
    ) -> "PositionalEncoding":
        if self.config.mode == "full":
            return encoding.rescaled(self, train_length, test_length)
        if "rotate" in encoding.hooks:
            refuse_coordinates(self, encoding)
        seen = range(train_length, max(train_length, test_length) + 1)
        return PerQuery([encoding.rescaled(self, train_length, n) for n in seen], train_length)
