"""Attention with linear biases."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding, wide
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry, one_of


def slopes(heads: int, bias_max: float = 8.0) -> list[float]:
    """The slope of every head, in head order (not sorted when heads is not 2^n).

    For a power of two: 2^(-bias_max h/heads), h = 1..heads. Otherwise those of the power of two
    below, followed by every other one of the next power of two, as in the official code. Published
    with bias_max = 8.
    """
    below = 1 << (heads.bit_length() - 1)
    first = formula(below, bias_max)
    if below == heads:
        return first
    return first + slopes(2 * below, bias_max)[::2][: heads - below]


def formula(heads: int, bias_max: float = 8.0) -> list[float]:
    """The paper's formula for any number of heads, 2^(-bias_max h/heads), h = 1..heads."""
    return [2.0 ** (-bias_max * h / heads) for h in range(1, heads + 1)]


#: recipes that agree where heads is a power of two
SLOPES = {"official": slopes, "formula": formula}


def penalties(slopes: list[float], distance: Tensor) -> Tensor:
    """-slope * distance [H, ...] of distances [...], in float64 (see `wide`)."""
    kind = wide(distance.device)
    slope = torch.tensor(slopes, dtype=kind, device=distance.device)
    return -(slope.view(-1, *[1] * distance.ndim) * distance.to(kind))


@register
class Alibi(PositionalEncoding):
    """A penalty that grows linearly with distance, one fixed slope per head (Press et al. 2022).

    bias[h, i, j] = -slope[h] * (i - j), added after 1/sqrt(K); the same in every layer, not
    trained. arXiv:2108.12409 section 3. A `bias_max` above 8 (MPT's `alibi_bias_max`) makes the
    slopes flatter.
    """

    family = "relative bias"
    paper = "arXiv:2108.12409"
    monotone = True

    @dataclass
    class Config:
        #: the flattest slope is 2^-bias_max (heads a power of two)
        bias_max: float = 8.0
        #: heads that are no power of two: as the authors' code has them (official), or all by the
        #: paper's formula, 2^(-bias_max h/heads) (formula)
        slopes: str = "official"

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        if not 0 < config.bias_max <= 64:
            raise ConfigError(f"posenc.bias_max={config.bias_max}: above 0, at most 64")
        one_of("posenc.slopes", config.slopes, tuple(SLOPES))
        self.slopes = SLOPES[config.slopes](geometry.n_heads, config.bias_max)

    def distance_bias(self, distance_N: Tensor, ctx: Context) -> Tensor:
        return penalties(self.slopes, distance_N)

    def own_tables(self, distances: Tensor) -> dict[str, Any]:
        return {"slopes": self.slopes}
