"""NTK-aware scaling."""

from torch import Tensor

from posbench.errors import UnsupportedRescale
from posbench.registry import register
from posbench.rescale.base import Ladder, Rescale


def ntk_frequencies(ladder: Ladder, scale: float) -> Tensor:
    """theta_p * s^(-2p/(d-2)): the first pair is kept, the last one is divided by s."""
    if ladder.dim < 4:
        raise UnsupportedRescale(f"rescale=ntk needs a rotary size of at least 4, not {ladder.dim}")
    return ladder.inv_freq * scale ** -(2 * ladder.pairs / (ladder.dim - 2))


@register
class NtkAware(Rescale):
    """NTK-aware: the base becomes base * s^(d/(d-2)); fast pairs stay, slow ones interpolate.

    bloc97 2023 (post); arXiv:2309.00071 section 3.1; kexue.fm/archives/9675. Made for somewhat
    less than s * L tokens, since pairs between the first and the last are interpolated by less than
    s; it goes on past them. Other forms of that name: ntk_old, ntk_fixed, ntk_mixed.
    """

    family = "rescaling"
    paper = "arXiv:2309.00071 section 3.1"

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        return ntk_frequencies(ladder, scale)
