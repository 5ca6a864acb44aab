"""Stick-breaking attention."""

import math

import torch.nn.functional as F
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register


def shares(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [..., Tq, Tk] of the keys before each query, and what is left of the stick [..., 1].

    Scores are -inf where a key is not visible; queries are the last of the keys. Logarithms are
    summed from the query backwards, so that near keys, which have the weight, lose no digits.
    """
    rows, keys = scores.shape[-2:]
    past = (scores > -math.inf) & scores.new_ones(rows, keys).tril(keys - rows - 1).bool()
    known = scores.masked_fill(~past, 0.0)
    left = F.logsigmoid(-known).masked_fill(~past, 0.0).flip(-1).cumsum(-1).flip(-1)
    nearer = F.pad(left[..., 1:], (0, 1))  # of the keys between: all after this one
    weights = (F.logsigmoid(known) + nearer).exp().masked_fill(~past, 0.0)
    return weights, left[..., :1].exp()


@register
class StickBreaking(PositionalEncoding):
    """Each earlier key takes a share of what nearer keys have left (Tan et al. 2024).

    With b_ij = sigmoid(score_ij): weight_ij = b_ij * prod over j < l < i of (1 - b_il) for j < i,
    no softmax; a token's own value gets what is left. arXiv:2410.17980. Recency is the only
    position signal; a constant added to a row of scores changes the result.
    """

    family = "normalisation"
    paper = "arXiv:2410.17980"

    def normalise(
        self, scores: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> Tensor:
        weights, remainder = shares(scores)
        return weights @ v + remainder * v[:, :, v.shape[2] - scores.shape[2] :]
