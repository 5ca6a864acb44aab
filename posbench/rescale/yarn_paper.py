"""YaRN with the ramp of the paper's text."""

from posbench.registry import register
from posbench.rescale.base import yarn_rotation_scale
from posbench.rescale.ntk_by_parts import NtkByParts


@register
class YarnPaper(NtkByParts):
    """YaRN as printed: NTK-by-parts with a ramp linear in turns, and sharper scores.

    Scores are multiplied by (0.1 ln s + 1)^2. arXiv:2309.00071 section 3.4. The released code has
    another ramp, see `yarn`. Made for up to s * L tokens; it goes on past them.
    """

    family = "rescaling"
    paper = "arXiv:2309.00071 section 3.4"

    def rotation_scale(self, scale: float) -> float:
        return yarn_rotation_scale(scale)
