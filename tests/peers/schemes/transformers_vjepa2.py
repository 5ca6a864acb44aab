"""The rotation of V-JEPA 2 in transformers as a scheme of posbench."""

from torch import Tensor
from transformers.models.vjepa2.modeling_vjepa2 import rotate_queries_or_keys

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register


@register
class TransformersVjepa2(PositionalEncoding):
    """What `VJEPA2RopeAttention` turns one axis with, checked as RoPE, arXiv:2104.09864."""

    family = "rotary"
    paper = "arXiv:2104.09864"

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        pairs = ((q_BHTK, q_pos), (k_BHTK, k_pos))
        return tuple(rotate_queries_or_keys(x, at[:, None, :, 0].to(x.dtype)) for x, at in pairs)
