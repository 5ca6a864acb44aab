"""YaRN with the ramp of the paper's text."""

from posbench.registry import register
from posbench.rescale.base import yarn_logit_multiplier
from posbench.rescale.ntk_by_parts import NtkByParts


@register
class YarnPaper(NtkByParts):
    """YaRN as printed: NTK-by-parts with a ramp linear in turns, and sharper scores.

    Scores are multiplied by (0.1 ln s + 1)^2. arXiv:2309.00071 section 3.4. The released code has
    another ramp, see `yarn`.
    """

    family = "rescaling"
    paper = "arXiv:2309.00071 section 3.4"

    def logit_multiplier(self, scale: float) -> float:
        return yarn_logit_multiplier(scale)
