"""x-transformers' T5 bias as a scheme of posbench."""

from typing import Any

from torch import Tensor
from x_transformers.x_transformers import RelativePositionBias

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register
from posbench.settings import Geometry


@register
class XTransformersT5(PositionalEncoding):
    """`RelativePositionBias` of x-transformers, causal: arXiv:1910.10683 section 2.1.

    It takes numbers of queries and keys, no positions.
    """

    family = "relative bias"
    paper = "arXiv:1910.10683"
    learnable = True

    def __init__(self, config: Any, geometry: Geometry):
        super().__init__(config, geometry)
        scale = geometry.head_dim**0.5
        self.bias = RelativePositionBias(scale, causal=True, heads=geometry.n_heads)

    def pair_bias(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        return self.bias(q_pos.shape[1], k_pos.shape[1])[None]
