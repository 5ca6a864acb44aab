"""Rotary embedding with magnitudes that decay with the distance."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posbench.encodings.base import Context, Reduction, Region, Tied, wide
from posbench.encodings.rope import Rope, rotate_half_split
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry

#: exponents of the factors on queries are within +-REACH: e^(2 REACH) is far from overflow
REACH = 30.0
#: factors on keys below e^FLOOR count as 0, before they become subnormal numbers
FLOOR = -80.0


@register
class XPos(Rope):
    """RoPE whose pairs fade with the distance, fast ones first (Sun et al. 2023).

    Pair p of a score is multiplied by zeta_p^((m - n) / S), zeta_p = (2p/d + gamma) / (1 + gamma).
    arXiv:2212.10554. A rescaling changes the frequencies, not the decay.

    Query and key share the factor about a centre c, as zeta_p^((m - c) / S) and
    zeta_p^((c - n) / S). Any c gives the same score; `relative_position` has attention take the
    queries chunk by chunk, a chunk that spans too much in parts, and c is the middle of each. So
    nothing overflows at any position or length; a factor below e^-50 may count as 0. `rotate` on
    its own overflows in float32 for keys some 70 S after the middle of the queries.
    """

    family = "rotary"
    paper = "arXiv:2212.10554"
    norm_preserving = False

    @dataclass
    class Config(Rope.Config):
        gamma: float = 0.4
        #: S, the distance in tokens after which zeta_p is reached; auto = the training length
        scale_base: int | float | str = "auto"

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        auto = config.scale_base == "auto"
        scale = geometry.train_length if auto else config.scale_base
        if isinstance(scale, str) or not scale > 0:
            raise ConfigError(f"posenc.scale_base={scale}: a number above 0, or auto")
        if not 0 < config.gamma <= 1e6:
            raise ConfigError(f"posenc.gamma={config.gamma}: must be above 0, at most 1e6")
        self.scale_base = scale
        self.needs_train_length = self.needs_train_length or auto
        dim = geometry.head_dim
        share = torch.arange(0, dim, 2, dtype=torch.float64) / dim
        #: decay [d/2] over S tokens, float64
        self.zeta = (share + config.gamma) / (1 + config.gamma)
        #: positions that one centre serves
        self.span = max(1, int(min(-2 * REACH * scale / self.zeta[0].log().item(), 2**40)))

    def tied(self) -> list[Tied]:
        return [*super().tied(), Tied("posenc.scale_base", "512", f"{self.scale_base:g}")]

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("scale_base = inf", "rope", {"scale_base": math.inf})]

    def own_tables(self, distances: Tensor) -> dict[str, Any]:
        return super().own_tables(distances) | {"zeta": self.zeta.tolist()}

    def relative_position(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> list[Region]:
        """The positions themselves, in parts of the queries that one centre serves."""
        first, last = q_pos.amin(1, keepdim=True), q_pos.amax(1, keepdim=True)
        reach = q_pos.shape[1] - 1 if ctx.consecutive else int((last - first).max())
        regions = []
        for part in range(reach // self.span + 1):
            low = first + part * self.span
            high = low + self.span
            where = (q_pos >= low)[:, None] if part else None
            regions.append(Region(q_pos.clamp(low, high), k_pos.minimum(high), where))
        return regions

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        centre = (q_pos.amin(1, keepdim=True) + q_pos.amax(1, keepdim=True)) // 2

        kind = wide(q_pos.device)
        rate = (self.zeta.log() / self.scale_base).to(q_pos.device, kind)

        def turned(x: Tensor, pos: Tensor, sign: int) -> Tensor:
            cos, sin = self.cos_sin(pos, x.dtype, ctx)
            exponent = sign * (pos - centre).to(kind)[:, None] * rate
            size = exponent.exp().masked_fill(exponent < FLOOR, 0.0).to(cos.dtype)
            return rotate_half_split(x, cos * size, sin * size)

        return turned(q_BHTK, q_pos, 1), turned(k_BHTK, k_pos, -1)
