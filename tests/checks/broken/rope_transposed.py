"""RoPE that takes the axis of the heads for that of time."""

import torch
from torch import Tensor

from posbench.encodings import rope
from posbench.encodings.base import Context
from posbench.registry import register


@register
class TransposedRope(rope.Rope):
    """RoPE written for [B, T, H, K] and given [B, H, T, K] (arXiv:2104.09864)."""

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        index = torch.arange(q_BHTK.shape[1], dtype=torch.float64)
        angle = index[:, None, None] * self.inv_freq
        q, k = (rope.rotate_half_split(x, angle.cos(), angle.sin()) for x in (q_BHTK, k_BHTK))
        return q, k
