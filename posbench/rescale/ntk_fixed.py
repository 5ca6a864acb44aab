"""NTK scaling that slows every pair."""

from torch import Tensor

from posbench.registry import register
from posbench.rescale.base import Ladder, Rescale


@register
class NtkFixed(Rescale):
    """NTK as corrected by Su: theta_p * s^(-2(p+1)/d); the slowest pair is divided by s.

    Every pair is one step slower than under `ntk_old`, the fastest by s^(2/d). Su 2023,
    kexue.fm/archives/9706. Made for up to s * L tokens; it goes on past them.
    """

    family = "rescaling"
    paper = "kexue.fm/archives/9706"

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        return ladder.inv_freq * scale ** -(2 * (ladder.pairs + 1) / ladder.dim)
