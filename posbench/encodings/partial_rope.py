"""Rotary embedding of some channels only."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding, Reduction
from posbench.encodings.rope import Rope, powers
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.rescale.base import Rescale


@register
class PartialRope(Rope):
    """RoPE on the first r = floor(d * rotary_fraction) channels, as if the head had only these.

    The ladder of r channels spans the same range as that of d: theta_p = base^(-2p/r). The other
    channels carry no position. GPT-NeoX (arXiv:2204.06745) has 0.25, GLM 0.5; see `p_rope` for the
    other meaning of a partial rotation. A rescaling's temperature acts on the rotated channels
    alone, as in released code.
    """

    family = "rotary"
    paper = "arXiv:2204.06745"

    @dataclass
    class Config(Rope.Config):
        #: share of a head's channels that turn
        rotary_fraction: float = 0.5

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("rotary_fraction = 1", "rope", {"rotary_fraction": 1.0})]

    def ladder(self) -> Tensor:
        fraction = self.config.rotary_fraction
        if not 0 < fraction <= 1:
            raise ConfigError(f"posenc.rotary_fraction={fraction}: above 0, at most 1")
        dim = int(self.geometry.head_dim * fraction)
        if dim < 2 or dim % 2:
            raise ConfigError(
                f"posenc.rotary_fraction={fraction} gives {dim} of {self.geometry.head_dim} "
                "channels to turn: needs an even number of at least 2"
            )
        return powers(self.base, dim)

    def cos_sin(self, pos: Tensor, dtype: torch.dtype, ctx: Context) -> tuple[Tensor, Tensor]:
        cos, sin = super().cos_sin(pos, dtype, ctx)
        return cos * self.rotation_scale, sin * self.rotation_scale

    def logit_scale(self, q_pos: Tensor, ctx: Context) -> float | None:
        besides = self.logit_multiplier / self.rotation_scale**2
        return None if besides == 1.0 else besides

    def rescaled(self, rule: Rescale, train_length: int, test_length: int) -> PositionalEncoding:
        new = super().rescaled(rule, train_length, test_length)
        return new.replace(norm_preserving=new.rotation_scale == 1.0)
