"""attention-gym's ALiBi as a scheme of posbench."""

import torch
from attn_gym.mods import generate_alibi_bias
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register


@register
class AttnGymAlibi(PositionalEncoding):
    """`generate_alibi_bias` of attn-gym; says it is ALiBi, arXiv:2108.12409."""

    family = "relative bias"
    paper = "arXiv:2108.12409"
    monotone = True

    def distance_bias(self, distance_N: Tensor, ctx: Context) -> Tensor:
        mod = generate_alibi_bias(self.geometry.n_heads)
        head = torch.arange(self.geometry.n_heads)[:, None]
        return mod(torch.zeros(()), 0, head, distance_N, torch.zeros_like(distance_N))
