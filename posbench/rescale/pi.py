"""Position interpolation."""

from torch import Tensor

from posbench.registry import register
from posbench.rescale.base import Ladder, Rescale


@register
class PositionInterpolation(Rescale):
    """PI: every frequency is divided by s, so positions shrink into the trained range.

    Chen et al. 2023, arXiv:2306.15595 section 2.3 (the paper fine-tunes; here nothing is trained).
    Made for up to s * L tokens; it goes on past them.
    """

    family = "rescaling"
    paper = "arXiv:2306.15595"
    by_place = False

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        return ladder.inv_freq / scale
