"""T5's relative bias in transformers as a scheme of posbench."""

from typing import Any

from torch import Tensor
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register
from posbench.settings import Geometry


@register
class TransformersT5(PositionalEncoding):
    """`T5Attention.compute_bias` of a decoder: arXiv:1910.10683 section 2.1."""

    family = "relative bias"
    paper = "arXiv:1910.10683"
    learnable = True

    def __init__(self, config: Any, geometry: Geometry):
        super().__init__(config, geometry)
        size = {"d_model": geometry.d_model, "num_heads": geometry.n_heads}
        layer = T5Attention(
            T5Config(**size, d_kv=geometry.head_dim, is_decoder=True),
            has_relative_attention_bias=True,
            layer_idx=0,
        )
        self.buckets = layer._relative_position_bucket
        self.bias = layer.relative_attention_bias

    def distance_bias(self, distance_N: Tensor, ctx: Context) -> Tensor:
        return self.bias(self.buckets(-distance_N, bidirectional=False)).T
