"""Mixed-base NTK scaling."""

import math
from dataclasses import dataclass

from torch import Tensor

from posbench.encodings.base import Reduction
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.rescale.base import Ladder, Rescale


@register
class NtkMixed(Rescale):
    """NTK-RoPE-mixed: theta_p * exp(-a (p+1)^b) with a = ln s / (d/2)^b.

    Every pair has a base of its own; the slowest one is divided by s whatever b. Su 2023,
    kexue.fm/archives/9706, has b = 0.625; the code released by the same author has 0.75. Made for
    up to s * L tokens; it goes on past them.
    """

    family = "rescaling"
    paper = "kexue.fm/archives/9706"

    @dataclass
    class Config(Rescale.Config):
        #: 0 = pi, 1 = ntk_fixed
        b: float = 0.625

    @classmethod
    def reductions(cls) -> list[Reduction]:
        factor = {"factor": 4}
        return [
            *super().reductions(),
            Reduction("b = 1", "ntk_fixed", {"b": 1.0, **factor}, factor),
            Reduction("b = 0", "pi", {"b": 0.0, **factor}, factor),
        ]

    def __init__(self, config: Config):
        super().__init__(config)
        if not 0 <= config.b < math.inf:
            raise ConfigError(f"rescale.b={config.b}: must be at least 0")

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        share = ((ladder.pairs + 1) / (ladder.dim / 2)) ** self.config.b
        return ladder.inv_freq * scale**-share
