"""ALiBi on a distance of coordinates."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posbench.encodings.alibi import penalties, slopes
from posbench.encodings.base import Context, PositionalEncoding, Reduction, wide
from posbench.registry import register
from posbench.settings import Geometry, one_of

#: distance -> the p of its norm
NORMS = {"manhattan": 1.0, "euclidean": 2.0, "chebyshev": math.inf}


def apart(q_pos: Tensor, k_pos: Tensor, distance: str) -> Tensor:
    """Distance [B or 1, Tq, Tk] of coordinates [B or 1, T, A], in float64 (see `wide`)."""
    q, k = (pos.to(wide(pos.device)) for pos in (q_pos, k_pos))
    return torch.cdist(q, k, NORMS[distance], compute_mode="donot_use_mm_for_euclid_dist")


@register
class AlibiAxial(PositionalEncoding):
    """A penalty that grows linearly with the distance on the grid, one fixed slope per head.

    bias[h, i, j] = -slope[h] * |pos_i - pos_j| with the slopes of arXiv:2108.12409. The distance is
    Manhattan's by default: the sum over axes, which on one row is ALiBi itself. `euclidean` is
    2D-ALiBi as in CROMA (Fuller et al. 2023, arXiv:2311.00566); `chebyshev` counts the axis along
    which two tokens are furthest apart.
    """

    family = "relative bias"
    paper = "arXiv:2311.00566"
    monotone = True
    axes = (2, 3)

    @dataclass
    class Config:
        distance: str = "manhattan"

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        one_of("posenc.distance", config.distance, tuple(NORMS))
        self.slopes = slopes(geometry.n_heads)

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction(f"{name} on one axis", "alibi", {"distance": name}) for name in NORMS]

    def pair_bias(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        distance = apart(q_pos, k_pos, self.config.distance)
        return penalties(self.slopes, distance).transpose(0, 1)

    def own_tables(self, distances: Tensor) -> dict[str, Any]:
        return {"slopes": self.slopes}
