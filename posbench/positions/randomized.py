"""Random ascending positions from a wide range."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encodings.base import Tied
from posbench.errors import ConfigError
from posbench.positions.base import PositionSampler
from posbench.registry import register


@register
class Randomized(PositionSampler):
    """T different whole numbers below M, in order, in training and in test (Ruoss et al. 2023).

    One draw for all sequences of a batch, as in the released code, anew for every training step; a
    test is the mean over eval.draws of them. Longer sequences than M have no positions. Relative
    schemes see the distances of the drawn positions (the released code draws distances for them).
    arXiv:2305.16843.
    """

    family = "positions"
    paper = "arXiv:2305.16843"
    random_test = True

    @dataclass
    class Config:
        #: M, the paper's is 2048; auto = 64 times the training length
        below: int | str = "auto"

    def __init__(self, config: Config, train_length: int):
        super().__init__(config, train_length)
        below = 64 * train_length if config.below == "auto" else config.below
        if not isinstance(below, int) or below < train_length:
            raise ConfigError(
                f"positions.below={config.below}: at least train.seq_len = {train_length}, or auto"
            )
        self.below = below

    def tied(self) -> list[Tied]:
        return [Tied("positions.below", "2048", str(self.below))]

    @property
    def max_length(self) -> int:
        return self.below

    def span(self, length: int) -> int:
        return self.below

    def draw(self, batch: int, length: int, generator: torch.Generator, training: bool) -> Tensor:
        if length > self.below:
            raise ValueError(f"{length} positions are asked for, there are {self.below}")
        drawn = torch.randperm(self.below, generator=generator)[:length]
        return drawn.sort().values[None, :, None]
