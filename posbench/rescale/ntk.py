"""NTK-aware scaling."""

import torch
from torch import Tensor

from posbench.errors import UnsupportedRescale
from posbench.registry import register
from posbench.rescale.base import Ladder, Rescale


def ntk_frequencies(ladder: Ladder, scale: float) -> Tensor:
    """theta_p * s^(-2p/(d-2)): the first pair is kept, the last one is divided by s."""
    if ladder.dim < 4:
        raise UnsupportedRescale(f"rescale=ntk needs a rotary size of at least 4, not {ladder.dim}")
    exponent = torch.arange(0, ladder.dim, 2, dtype=torch.float64) / (ladder.dim - 2)
    return ladder.inv_freq * scale**-exponent


@register
class NtkAware(Rescale):
    """NTK-aware: the base becomes base * s^(d/(d-2)); fast pairs stay, slow ones interpolate.

    bloc97 2023 (post); arXiv:2309.00071 section 3.1.
    """

    family = "rescaling"
    paper = "arXiv:2309.00071 section 3.1"

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        return ntk_frequencies(ladder, scale)
