"""rotary-embedding-torch as a scheme of posbench."""

from typing import Any

from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register
from posbench.settings import Geometry


@register
class RotaryEmbeddingTorchRope(PositionalEncoding):
    """`rotate_queries_or_keys` of rotary-embedding-torch: RoPE, arXiv:2104.09864.

    Positions that are not consecutive go through its `forward` and `apply_rotary_emb`. Its
    frequencies are a parameter that is not trained.
    """

    family = "rotary"
    paper = "arXiv:2104.09864"

    def __init__(self, config: Any, geometry: Geometry):
        super().__init__(config, geometry)
        self.rotary = RotaryEmbedding(geometry.head_dim)
        self.rotary.freqs.requires_grad_(False)

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        return self.turned(q_BHTK, q_pos[..., 0]), self.turned(k_BHTK, k_pos[..., 0])

    def turned(self, x: Tensor, at: Tensor) -> Tensor:
        if len(at) == 1 and bool((at.diff() == 1).all()):
            return self.rotary.rotate_queries_or_keys(x, offset=int(at[0, 0]))
        return apply_rotary_emb(self.rotary(at)[:, None], x)
