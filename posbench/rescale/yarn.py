"""YaRN as released."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.registry import register
from posbench.rescale.base import (
    Ladder,
    Rescale,
    TurnsConfig,
    ramp_blend,
    yarn_logit_multiplier,
)


def kept_by_index(ladder: Ladder, alpha: float, beta: float, truncate: bool) -> Tensor:
    """Share of each pair that is kept: linear in the pair index between two cut-offs.

    The pair that makes n turns within L stands at index d ln(L / (2 pi n)) / (2 ln base); the
    cut-offs are rounded outwards when `truncate` and clamped to 0 and d - 1.
    """

    def index(turns: float) -> float:
        wave = ladder.train_length / (2 * math.pi * turns)
        return ladder.dim * math.log(wave) / (2 * math.log(ladder.base))

    low, high = index(beta), index(alpha)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, ladder.dim - 1)
    high = max(high, low + 0.001)
    pairs = torch.arange(ladder.dim // 2, dtype=torch.float64)
    return 1 - ((pairs - low) / (high - low)).clamp(0, 1)


@register
class Yarn(Rescale):
    """YaRN as in the released code and every checkpoint: ramp linear in the pair index.

    Scores are multiplied by (0.1 ln s + 1)^2. Peng et al. 2023, arXiv:2309.00071; the ramp is the
    one of the authors' repository and of transformers, not the one printed (see `yarn_paper`).
    """

    family = "rescaling"
    paper = "arXiv:2309.00071"

    @dataclass
    class Config(TurnsConfig):
        #: round the cut-offs outwards to whole pairs
        truncate: bool = True

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        alpha, beta = self.config.cut_offs(ladder.train_length)
        keep = kept_by_index(ladder, alpha, beta, self.config.truncate)
        return ramp_blend(ladder.inv_freq, keep, scale)

    def logit_multiplier(self, scale: float) -> float:
        return yarn_logit_multiplier(scale)
