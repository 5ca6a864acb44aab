"""ReRoPE: distances clipped at a window."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encodings.base import Reduction
from posbench.registry import register
from posbench.rescale.added import Far, MapRule, check_count, window_of


@register
class ReRope(MapRule):
    """ReRoPE: rotate by min(i - j, w), so that no distance is larger than one seen in training.

    Su 2023, kexue.fm/archives/9708. Beyond w the query turns by w and the key not at all. Any
    length. The released code also multiplies scores by max(1, ln(i + 1) / ln L): that is
    rescale=logn, see rescale=stack.
    """

    family = "position map"
    paper = "kexue.fm/archives/9708"

    @dataclass
    class Config:
        #: w in tokens; auto = half the training length
        window: int | str = "auto"

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("w beyond every distance", "none", {"window": 2**30})]

    def __init__(self, config: Config):
        super().__init__(config)
        check_count("window", config.window)

    def map(self, train_length: int, test_length: int) -> tuple[int, Far]:
        window = window_of(self.config.window, train_length)

        def far(q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor]:
            return torch.full_like(q_pos, window), torch.zeros_like(k_pos)

        return window, far
