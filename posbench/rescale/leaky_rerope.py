"""Leaky ReRoPE: distances grow slowly beyond a window."""

import math
from dataclasses import dataclass

from torch import Tensor

from posbench.encodings.base import Reduction, wide
from posbench.errors import ConfigError, UnsupportedRescale
from posbench.registry import register
from posbench.rescale.added import Far, MapRule, check_count, window_of


@register
class LeakyReRope(MapRule):
    """Leaky ReRoPE: rotate by i - j below w, by w + (i - j - w) / k from there on.

    Su 2023, kexue.fm/archives/9708. With T - 1 <= w + k (L - 1 - w) no distance is larger than one
    seen in training; a given k goes on past that, and k = auto is the least that keeps to it, 1 up
    to L. The released code also multiplies scores, see rescale=stack.
    """

    family = "position map"
    paper = "kexue.fm/archives/9708"

    @dataclass
    class Config:
        #: w in tokens; auto = half the training length
        window: int | str = "auto"
        #: tokens for one step beyond w, at least 1; auto = max(1, (T - 1 - w) / (L - 1 - w))
        k: int | float | str = "auto"

    @classmethod
    def reductions(cls) -> list[Reduction]:
        window = {"window": 4}
        return [
            Reduction("k = 1", "none", {**window, "k": 1}),
            Reduction("k beyond every distance", "rerope", {**window, "k": 1e15}, window),
        ]

    def __init__(self, config: Config):
        super().__init__(config)
        check_count("window", config.window)
        k = config.k
        if k != "auto" and (isinstance(k, str) or not 1 <= k < math.inf):
            raise ConfigError(f"rescale.k={k}: a number of at least 1, or auto")

    @property
    def depends_on_total_length(self) -> bool:
        return bool(self.config.k == "auto")

    def scale(self, train_length: int, test_length: int) -> float:
        """The number k in use; infinite where none is large enough."""
        if self.config.k != "auto":
            return float(self.config.k)
        if test_length <= train_length:
            return 1.0
        window = window_of(self.config.window, train_length)
        left = train_length - 1 - window
        return (test_length - 1 - window) / left if left > 0 else math.inf

    def map(self, train_length: int, test_length: int) -> tuple[int, Far | None]:
        window = window_of(self.config.window, train_length)
        k = self.scale(train_length, test_length)
        if k == math.inf:
            raise UnsupportedRescale(
                f"rescale.k=auto needs a rescale.window below L - 1 = {train_length - 1}, "
                f"not {window}"
            )

        def far(q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor]:
            kind = wide(q_pos.device)
            return (q_pos.to(kind) - window) / k + window, k_pos.to(kind) / k

        return window, None if k == 1 else far
