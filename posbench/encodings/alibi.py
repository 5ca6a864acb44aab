"""Attention with linear biases."""

from typing import Any

import torch
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding, wide
from posbench.registry import register
from posbench.settings import Geometry


def slopes(heads: int) -> list[float]:
    """The published slope of every head, in head order (not sorted when heads is not 2^n).

    For a power of two: 2^(-8h/heads), h = 1..heads. Otherwise those of the power of two below,
    followed by every other one of the next power of two.
    """
    below = 1 << (heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * h / below) for h in range(1, below + 1)]
    if below == heads:
        return first
    return first + slopes(2 * below)[::2][: heads - below]


def penalties(slopes: list[float], distance: Tensor) -> Tensor:
    """-slope * distance [H, ...] of distances [...], in float64 (see `wide`)."""
    kind = wide(distance.device)
    slope = torch.tensor(slopes, dtype=kind, device=distance.device)
    return -(slope.view(-1, *[1] * distance.ndim) * distance.to(kind))


@register
class Alibi(PositionalEncoding):
    """A penalty that grows linearly with distance, one fixed slope per head (Press et al. 2022).

    bias[h, i, j] = -slope[h] * (i - j), added after 1/sqrt(K); the same in every layer, not
    trained. arXiv:2108.12409 section 3.
    """

    family = "relative bias"
    paper = "arXiv:2108.12409"
    monotone = True

    def __init__(self, config: PositionalEncoding.Config, geometry: Geometry):
        super().__init__(config, geometry)
        self.slopes = slopes(geometry.n_heads)

    def distance_bias(self, distance_N: Tensor, ctx: Context) -> Tensor:
        return penalties(self.slopes, distance_N)

    def own_tables(self, distances: Tensor) -> dict[str, Any]:
        return {"slopes": self.slopes}
