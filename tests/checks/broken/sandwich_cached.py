"""Sandwich that keeps its bias, whatever distances it was made for."""

from torch import Tensor

from posbench.encodings import sandwich
from posbench.encodings.base import Context
from posbench.registry import register


@register
class CachedSandwich(sandwich.Sandwich):
    """Sandwich that cuts a bias from the end of the longest one so far (arXiv:2212.10356)."""

    kept: Tensor | None = None

    def distance_bias(self, distance_N: Tensor, ctx: Context) -> Tensor:
        if self.kept is None or self.kept.shape[1] < len(distance_N):
            self.kept = super().distance_bias(distance_N, ctx)
        return self.kept[:, -len(distance_N) :]
