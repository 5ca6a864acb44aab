"""LongRoPE: a factor for every pair, given by the user."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posbench.encodings.base import PositionalEncoding, Reduction
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.rescale.base import Ladder, Rescale, positive


@register
class LongRope(Rescale):
    """LongRoPE: theta_p / lambda_p, with factors lambda_p that were searched for the model.

    Ding et al. 2024, arXiv:2402.13753, as released: the long factors iff T > L, else the short ones
    (so T changes earlier tokens at L); cos and sin times sqrt(1 + ln s / ln L) at every length that
    has s > 1, with a given s also at short ones. Factors come from a search: there is no default.
    Made for up to s * L tokens; it goes on past them.
    """

    family = "rescaling"
    paper = "arXiv:2402.13753"

    @dataclass
    class Config(Rescale.Config):
        #: what frequencies are divided by past L: a number for each pair, the fastest first, or one
        #: for all
        long_factor: list[float] | None = None
        #: the same up to L
        short_factor: list[float] = field(default_factory=lambda: [1.0])
        #: the whole factor on cos and sin, at every length; null = sqrt(1 + ln s / ln L)
        attention_factor: float | None = None

    @classmethod
    def example(cls, dim: int) -> dict[str, Any]:
        """Factors from 1 to 4 in equal ratios, as `ntk` has them at s = 4; not searched."""
        return {"long_factor": [4.0 ** (p / max(1, dim // 2 - 1)) for p in range(dim // 2)]}

    @classmethod
    def reductions(cls) -> list[Reduction]:
        plain = {"short_factor": [1.0], "long_factor": [1.0], "attention_factor": 1.0}
        interpolated = {"short_factor": [4.0], "long_factor": [4.0], "attention_factor": 1.0}
        return [
            Reduction("all factors 1, no temperature", "none", plain),
            Reduction("all factors 4, no temperature", "pi", interpolated, {"factor": 4}),
        ]

    def __init__(self, config: Config):
        super().__init__(config)
        positive("attention_factor", config.attention_factor)
        for option in ("long_factor", "short_factor"):
            for value in getattr(config, option) or []:
                if not isinstance(value, int | float):
                    raise ConfigError(f"rescale.{option}: {value} is not a number")
                positive(option, value)

    @property
    def depends_on_total_length(self) -> bool:
        return True

    def factors(self, pairs: int, long: bool) -> Tensor:
        """The factors [pairs] in use, float64; ConfigError where their number is wrong."""
        for option in ("long_factor", "short_factor"):
            values = getattr(self.config, option)
            if values is None or len(values) not in (1, pairs):
                reason = "must be given" if values is None else f"holds {len(values)} numbers"
                raise ConfigError(
                    f"rescale.{option} {reason}: rescale=longrope needs {pairs}, one for each "
                    "rotary pair, or one for all"
                )
        used = self.config.long_factor if long else self.config.short_factor
        return torch.tensor(used, dtype=torch.float64).expand(pairs)

    def on(
        self, encoding: PositionalEncoding, train_length: int, test_length: int
    ) -> PositionalEncoding:
        fitted = _AtLength(self, train_length, test_length)
        return encoding.rescaled(fitted, train_length, test_length)


class _AtLength(Rescale):
    """LongRoPE at one training and test length."""

    name = "longrope"

    def __init__(self, rule: LongRope, train_length: int, test_length: int):
        super().__init__(rule.config)
        self.rule = rule
        self.train_length = train_length
        self.long = test_length > train_length

    def at(self, train_length: int, test_length: int) -> Rescale:
        return _AtLength(self.rule, train_length, test_length)

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        return ladder.inv_freq / self.rule.factors(len(ladder.inv_freq), self.long)

    def rotation_scale(self, scale: float) -> float:
        given = self.config.attention_factor
        if given is not None:
            return float(given)
        return math.sqrt(1 + math.log(scale) / math.log(self.train_length))
