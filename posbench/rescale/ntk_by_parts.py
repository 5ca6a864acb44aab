"""NTK-by-parts interpolation."""

from dataclasses import dataclass

from torch import Tensor

from posbench.registry import register
from posbench.rescale.base import Ladder, Rescale, TurnsConfig, kept_by_turns, ramp_blend


@register
class NtkByParts(Rescale):
    """NTK-by-parts: pairs above beta turns within L stay, those below alpha are interpolated.

    The ramp between is linear in the number of turns. arXiv:2309.00071 section 3.2. Made for up to
    s * L tokens; it goes on past them.
    """

    family = "rescaling"
    paper = "arXiv:2309.00071 section 3.2"

    @dataclass
    class Config(TurnsConfig):
        pass

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        alpha, beta = self.config.cut_offs(ladder.train_length)
        return ramp_blend(ladder.inv_freq, kept_by_turns(ladder, alpha, beta), scale)
