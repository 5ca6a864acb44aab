"""x-transformers' ALiBi as a scheme of posbench."""

from typing import Any

from torch import Tensor
from x_transformers.x_transformers import AlibiPositionalBias

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register
from posbench.settings import Geometry


@register
class XTransformersAlibi(PositionalEncoding):
    """`AlibiPositionalBias` of x-transformers: ALiBi, arXiv:2108.12409."""

    family = "relative bias"
    paper = "arXiv:2108.12409"

    def __init__(self, config: Any, geometry: Geometry):
        super().__init__(config, geometry)
        self.alibi = AlibiPositionalBias(geometry.n_heads)

    def pair_bias(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        if ctx.consecutive:
            return self.alibi(q_pos.shape[1], k_pos.shape[1])
        return self.alibi.forward_custom_pos(q_pos[..., 0], k_pos[..., 0])
