"""NTK scaling with a base that is s times as large."""

from torch import Tensor

from posbench.registry import register
from posbench.rescale.base import Ladder, Rescale


@register
class NtkOld(Rescale):
    """NTK with the base s * base: theta_p * s^(-2p/d), so the slowest pair falls short of PI.

    Su 2023, kexue.fm/archives/9706, where it is the "old" form. The earlier post, 9675, derives
    another exponent, which is `ntk`. Made for somewhat less than s * L tokens; it goes on past.
    """

    family = "rescaling"
    paper = "kexue.fm/archives/9706"

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        return ladder.inv_freq * scale ** -(2 * ladder.pairs / ladder.dim)
