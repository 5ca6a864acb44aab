"""x-transformers' rotary embedding as a scheme of posbench."""

from typing import Any

from torch import Tensor
from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register
from posbench.settings import Geometry


@register
class XTransformersRope(PositionalEncoding):
    """`RotaryEmbedding` of x-transformers: RoPE, arXiv:2104.09864."""

    family = "rotary"
    paper = "arXiv:2104.09864"

    def __init__(self, config: Any, geometry: Geometry):
        super().__init__(config, geometry)
        self.rotary = RotaryEmbedding(geometry.head_dim)

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        pairs = ((q_BHTK, q_pos), (k_BHTK, k_pos))
        return tuple(apply_rotary_pos_emb(x, *self.rotary(at[..., 0])) for x, at in pairs)
