"""YaRN as released."""

import math
from dataclasses import dataclass

from torch import Tensor

from posbench.errors import ConfigError
from posbench.registry import register
from posbench.rescale.base import (
    Ladder,
    Rescale,
    TurnsConfig,
    positive,
    ramp_blend,
    yarn_rotation_scale,
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
    return 1 - ((ladder.pairs - low) / (high - low)).clamp(0, 1)


@register
class Yarn(Rescale):
    """YaRN as in the released code and every checkpoint: ramp linear in the pair index.

    Scores are multiplied by 1/t = (0.1 ln s + 1)^2. Peng et al. 2023, arXiv:2309.00071; the ramp is
    the one of the authors' repository and of transformers, not the one printed (see `yarn_paper`).
    Made for up to s * L tokens; it goes on past them.
    """

    family = "rescaling"
    paper = "arXiv:2309.00071"

    @dataclass
    class Config(TurnsConfig):
        #: round the cut-offs outwards to whole pairs
        truncate: bool = True
        #: the whole factor on cos and sin, whatever s; null = 0.1 ln s + 1
        attention_factor: float | None = None
        #: with g(m) = 0.1 m ln s + 1: cos and sin get g(mscale) / g(mscale_all_dim) where both are
        #: above 0, else g(1)
        mscale: float = 0.0
        #: DeepSeek: scores get g(mscale_all_dim)^2 besides
        mscale_all_dim: float = 0.0

    def __init__(self, config: Config):
        super().__init__(config)
        positive("attention_factor", config.attention_factor)
        pair = config.mscale, config.mscale_all_dim
        if not all(0 <= m < math.inf for m in pair):
            raise ConfigError(
                f"rescale.mscale={pair[0]:g} and rescale.mscale_all_dim={pair[1]:g}: "
                "must be at least 0"
            )
        if config.attention_factor is not None and pair != (0.0, 0.0):
            raise ConfigError(
                f"rescale.attention_factor={config.attention_factor:g} is the whole factor: leave "
                "out rescale.mscale and rescale.mscale_all_dim"
            )

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        alpha, beta = self.config.cut_offs(ladder.train_length)
        keep = kept_by_index(ladder, alpha, beta, self.config.truncate)
        return ramp_blend(ladder.inv_freq, keep, scale)

    def rotation_scale(self, scale: float) -> float:
        own = self.config
        if own.attention_factor is not None:
            return float(own.attention_factor)
        if not (own.mscale and own.mscale_all_dim):
            return yarn_rotation_scale(scale)
        return yarn_rotation_scale(scale, own.mscale) / yarn_rotation_scale(
            scale, own.mscale_all_dim
        )

    def logit_multiplier(self, scale: float) -> float:
        besides = yarn_rotation_scale(scale, self.config.mscale_all_dim)
        return (self.rotation_scale(scale) * besides) ** 2
