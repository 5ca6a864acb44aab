"""The scaling of Llama 3.1."""

from dataclasses import dataclass

from posbench.encodings.base import Reduction
from posbench.registry import register
from posbench.rescale.base import TurnsConfig
from posbench.rescale.ntk_by_parts import NtkByParts


@register
class Llama3(NtkByParts):
    """Llama 3.1: NTK-by-parts with cut-offs at 1 and 4 turns, and no temperature.

    Grattafiori et al. 2024, arXiv:2407.21783, as released (s = 8, L = 8192, base 500000). The
    released names are low_freq_factor = alpha and high_freq_factor = beta. Made for up to s * L
    tokens; it goes on past them.
    """

    family = "rescaling"
    paper = "arXiv:2407.21783"

    @dataclass
    class Config(TurnsConfig):
        released = 4.0, 8192

        #: pairs with more turns are left alone; auto = the same share of the ladder as released,
        #: 4 * L / 8192
        beta: int | float | str = 4.0

    @classmethod
    def reductions(cls) -> list[Reduction]:
        same = {"alpha": 1.0, "beta": 32.0, "factor": 4}
        return [*super().reductions(), Reduction("equal cut-offs", "ntk_by_parts", same, same)]
