"""The first key hidden from all queries but its own: how much hangs on an attention sink."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register
from posbench.rescale.added import together
from posbench.rescale.base import Rescale, refuse_coordinates


class AllButFirst(PositionalEncoding):
    """No query but the first sees key 0, wherever its position."""

    name = "first_key_masked"

    def visible(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        keys = torch.arange(k_pos.shape[1], device=k_pos.device)
        queries = keys[-q_pos.shape[1] :, None]
        return ((keys > 0) | (queries == 0))[None, None]


@register
class FirstKeyMasked(Rescale):
    """In every layer the key at position 0 is hidden from all queries but its own.

    A sensitivity, not a method: models park attention on the first token, which is seen by all
    (arXiv:2309.17453), and what masking it does to the loss says how much they lean on it. It acts
    at every length, those of training included.
    """

    family = "reference"
    paper = "arXiv:2309.17453"
    acts_on = "keys"

    @dataclass
    class Config:
        """No options."""

    def on(
        self, encoding: PositionalEncoding, train_length: int, test_length: int
    ) -> PositionalEncoding:
        refuse_coordinates(self, encoding)
        return together([encoding, AllButFirst(None, encoding.geometry)], encoding.label)
