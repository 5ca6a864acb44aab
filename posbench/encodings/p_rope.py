"""Rotary embedding whose slow pairs stand still."""

from dataclasses import dataclass

from torch import Tensor

from posbench.encodings.base import Reduction
from posbench.encodings.rope import Rope
from posbench.errors import ConfigError
from posbench.registry import register


@register
class PRope(Rope):
    """p-RoPE: RoPE with the slowest (1 - p) d/2 frequencies set to 0 (Barbero et al. 2024).

    The ladder is that of the whole head, cut off; the frozen pairs carry content alone.
    arXiv:2410.06205. Gemma 4 has p = 0.25, LFM3 0.5; rope_type "proportional" on transformers.
    p = 1 is RoPE, p = 0 is NoPE. A rescaling leaves the frozen pairs frozen.
    """

    family = "rotary"
    paper = "arXiv:2410.06205"

    @dataclass
    class Config(Rope.Config):
        #: p, the share of the pairs that turn
        rotary_fraction: float = 0.5

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [
            Reduction("rotary_fraction = 1", "rope", {"rotary_fraction": 1.0}),
            Reduction("rotary_fraction = 0", "none", {"rotary_fraction": 0.0}),
        ]

    def ladder(self) -> Tensor:
        fraction = self.config.rotary_fraction
        if not 0 <= fraction <= 1:
            raise ConfigError(f"posenc.rotary_fraction={fraction}: from 0 to 1")
        frequencies = super().ladder()
        frequencies[int(fraction * self.geometry.head_dim // 2) :] = 0
        return frequencies
