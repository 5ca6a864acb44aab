"""Forgetting attention that is one gate ahead."""

from torch import Tensor

from posbench.encodings import fox
from posbench.encodings.base import Context
from posbench.registry import register


@register
class AheadFox(fox.Fox):
    """Forgetting attention in which a token's bias holds the next one's gate (arXiv:2503.02130)."""

    def prepare(self, x_BTD: Tensor, pos_BTA: Tensor, ctx: Context) -> Tensor:
        return super().prepare(x_BTD, pos_BTA, ctx).roll(-1, dims=2)
