"""xPos of rotary-embedding-torch as a scheme of posbench."""

from typing import Any

from rotary_embedding_torch import RotaryEmbedding
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register
from posbench.settings import Geometry


@register
class RotaryEmbeddingTorchXpos(PositionalEncoding):
    """`RotaryEmbedding(use_xpos=True)` of rotary-embedding-torch: xPos, arXiv:2212.10554.

    It takes numbers of queries and keys, no positions. Its frequencies are a parameter that is not
    trained.
    """

    family = "rotary"
    paper = "arXiv:2212.10554"
    norm_preserving = False

    def __init__(self, config: Any, geometry: Geometry):
        super().__init__(config, geometry)
        self.rotary = RotaryEmbedding(geometry.head_dim, use_xpos=True)
        self.rotary.freqs.requires_grad_(False)
        # a static method kept on the object, without which the module can be copied
        del self.rotary.apply_rotary_emb

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        if q_BHTK.shape[2] == k_BHTK.shape[2]:
            return self.rotary.rotate_queries_and_keys(q_BHTK, k_BHTK)
        return self.rotary.rotate_queries_with_cached_keys(q_BHTK, k_BHTK)
