"""ALiBi of Falcon in transformers as a scheme of posbench."""

import torch
from torch import Tensor
from transformers.models.falcon.modeling_falcon import build_alibi_tensor

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register


@register
class TransformersFalcon(PositionalEncoding):
    """`build_alibi_tensor` of Falcon, a bias of the key alone: ALiBi, arXiv:2108.12409."""

    family = "relative bias"
    paper = "arXiv:2108.12409"

    def key_bias(self, k_pos: Tensor, ctx: Context) -> Tensor:
        seen = torch.ones(1, int(k_pos.max()) + 1, dtype=torch.int64)
        bias = build_alibi_tensor(seen, self.geometry.n_heads, torch.float32)
        return bias[:, 0, k_pos[..., 0]].transpose(0, 1)
