"""T5 whose buckets are shifted by one."""

from torch import Tensor

from posbench.encodings import t5
from posbench.encodings.base import Context
from posbench.registry import register


@register
class ShiftedT5(t5.T5Bias):
    """T5's bias with the distance counted from 1, as q - k + 1 (arXiv:1910.10683)."""

    def distance_bias(self, distance_N: Tensor, ctx: Context) -> Tensor:
        return super().distance_bias(distance_N + 1, ctx)

    def own_tables(self, distances: Tensor) -> dict:
        return super().own_tables(distances + 1)
