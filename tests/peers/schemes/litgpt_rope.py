"""litgpt's rotary embedding as a scheme of posbench."""

from litgpt.model import apply_rope, build_rope_cache
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register


@register
class LitgptRope(PositionalEncoding):
    """`build_rope_cache` and `apply_rope` of litgpt: RoPE, arXiv:2104.09864."""

    family = "rotary"
    paper = "arXiv:2104.09864"

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        cos, sin = build_rope_cache(int(k_pos.max()) + 1, self.geometry.head_dim)
        pairs = ((q_BHTK, q_pos[..., 0]), (k_BHTK, k_pos[..., 0]))
        return tuple(apply_rope(x, cos[at], sin[at]) for x, at in pairs)
