"""x-transformers' xPos as a scheme of posbench."""

from typing import Any

from torch import Tensor
from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register
from posbench.settings import Geometry


@register
class XTransformersXpos(PositionalEncoding):
    """`RotaryEmbedding(use_xpos=True)` of x-transformers: xPos, arXiv:2212.10554."""

    family = "rotary"
    paper = "arXiv:2212.10554"
    norm_preserving = False

    def __init__(self, config: Any, geometry: Geometry):
        super().__init__(config, geometry)
        self.rotary = RotaryEmbedding(geometry.head_dim, use_xpos=True)

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        # as its attention layer does: both are turned from the keys' positions
        angles, scale = self.rotary(k_pos[..., 0])
        q = apply_rotary_pos_emb(q_BHTK, angles, scale)
        return q, apply_rotary_pos_emb(k_BHTK, angles, scale**-1)
