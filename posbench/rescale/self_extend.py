"""Self-Extend: far positions are rounded down to groups."""

import math
from dataclasses import dataclass

from torch import Tensor

from posbench.encodings.base import Reduction
from posbench.errors import ConfigError, UnsupportedRescale
from posbench.registry import register
from posbench.rescale.added import Far, MapRule, check_count, window_of


@register
class SelfExtend(MapRule):
    """Self-Extend: neighbours as they are, far keys by floor(i/G) + W - W/G - floor(j/G).

    Jin et al. 2024, arXiv:2401.01325; neighbours are those with i - j < W. G must divide W. Up to
    G (L - W) + W tokens no distance is larger than one seen in training; a given G goes on past
    that, G = auto is refused where no divisor of W reaches. Adding to every position what is no
    multiple of G changes the scores.
    """

    family = "position map"
    paper = "arXiv:2401.01325"
    shift_invariant = False

    @dataclass
    class Config:
        #: W in tokens; auto = half the training length, down to a multiple of a given G
        window: int | str = "auto"
        #: G in tokens; auto = the least divisor of W that is at least (T - W) / (L - W)
        group: int | str = "auto"

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("G = 1", "none", {"group": 1})]

    def __init__(self, config: Config):
        super().__init__(config)
        window, group = config.window, config.group
        check_count("window", window)
        check_count("group", group)
        if isinstance(window, int) and isinstance(group, int) and window % group:
            raise ConfigError(f"rescale.group={group} must divide rescale.window={window}")

    @property
    def depends_on_total_length(self) -> bool:
        return bool(self.config.group == "auto")

    def _window(self, train_length: int) -> int:
        window, group = window_of(self.config.window, train_length), self.config.group
        return window if isinstance(group, str) else window - window % group

    def scale(self, train_length: int, test_length: int) -> float:
        """The number G in use; infinite where none reaches."""
        if self.config.group != "auto":
            return float(self.config.group)
        window = self._window(train_length)
        unseen, left = max(0, test_length - window), max(0, train_length - window)
        divisors = (g for g in range(1, window + 1) if window % g == 0)
        return next((float(g) for g in divisors if g * left >= unseen), math.inf)

    def map(self, train_length: int, test_length: int) -> tuple[int, Far | None]:
        window, scale = self._window(train_length), self.scale(train_length, test_length)
        if window == 0:
            raise UnsupportedRescale(
                f"rescale.group={self.config.group} is more than half of L = {train_length}: "
                "give rescale.window too, a multiple of it"
            )
        if scale == math.inf:
            reach = window * (1 + max(0, train_length - window))
            raise UnsupportedRescale(
                f"{self.name} with rescale.window={window} reaches at most {reach} tokens at "
                f"L = {train_length}, not {test_length}"
            )
        group = int(scale)

        def far(q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor]:
            return q_pos // group + (window - window // group), k_pos // group

        return window, None if group == 1 else far
