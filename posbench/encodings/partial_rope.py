"""Rotary embedding of some channels only."""

from dataclasses import dataclass

from torch import Tensor

from posbench.encodings.base import Reduction
from posbench.encodings.rope import Rope, powers
from posbench.errors import ConfigError
from posbench.registry import register


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
