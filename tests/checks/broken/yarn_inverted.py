"""YaRN whose ramp runs the wrong way."""

from torch import Tensor

from posbench.registry import register
from posbench.rescale import yarn
from posbench.rescale.base import Ladder, ramp_blend


@register
class InvertedYarn(yarn.Yarn):
    """YaRN that slows the fast pairs and keeps the slow ones (arXiv:2309.00071)."""

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        alpha, beta = self.config.cut_offs(ladder.train_length)
        keep = yarn.kept_by_index(ladder, alpha, beta, self.config.truncate)
        return ramp_blend(ladder.inv_freq, 1 - keep, scale)
