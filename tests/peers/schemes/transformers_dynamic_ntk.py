"""transformers' dynamic NTK as a scheme of posbench."""

from typing import Any

from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register
from posbench.settings import Geometry


@register
class TransformersDynamicNtk(PositionalEncoding):
    """`LlamaRotaryEmbedding` with rope_type dynamic: arXiv:2309.00071 section 3.3.

    Trained at a quarter of the training length here, so that the checks go past it. It takes the
    length from the largest position.
    """

    family = "rotary"
    paper = "arXiv:2309.00071"
    depends_on_total_length = True
    needs_train_length = True

    def __init__(self, config: Any, geometry: Geometry):
        super().__init__(config, geometry)
        self.rotary = LlamaRotaryEmbedding(
            LlamaConfig(
                hidden_size=geometry.d_model,
                num_attention_heads=geometry.n_heads,
                max_position_embeddings=geometry.train_length // 4,
                rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0},
            )
        )

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        # called once, with every position; queries are the last of the keys
        cos, sin = self.rotary(k_BHTK, k_pos[..., 0])
        k, _ = apply_rotary_pos_emb(k_BHTK, k_BHTK, cos, sin)
        cos, sin = cos[:, -q_BHTK.shape[2] :], sin[:, -q_BHTK.shape[2] :]
        return apply_rotary_pos_emb(q_BHTK, q_BHTK, cos, sin)[0], k
