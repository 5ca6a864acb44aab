"""transformers' rotary embedding of Llama as a scheme of posbench."""

from typing import Any

from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register
from posbench.settings import Geometry


@register
class TransformersRope(PositionalEncoding):
    """`LlamaRotaryEmbedding` of transformers: RoPE, arXiv:2104.09864."""

    family = "rotary"
    paper = "arXiv:2104.09864"

    def __init__(self, config: Any, geometry: Geometry):
        super().__init__(config, geometry)
        self.rotary = LlamaRotaryEmbedding(
            LlamaConfig(
                hidden_size=geometry.d_model,
                num_attention_heads=geometry.n_heads,
                max_position_embeddings=geometry.train_length,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            )
        )

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        q, _ = apply_rotary_pos_emb(q_BHTK, q_BHTK, *self.rotary(q_BHTK, q_pos[..., 0]))
        k, _ = apply_rotary_pos_emb(k_BHTK, k_BHTK, *self.rotary(k_BHTK, k_pos[..., 0]))
        return q, k
