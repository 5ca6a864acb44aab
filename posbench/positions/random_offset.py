"""Consecutive positions from a random start."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encodings.base import Tied
from posbench.errors import ConfigError
from posbench.positions.base import PositionSampler
from posbench.registry import register


@register
class RandomOffset(PositionSampler):
    """SHAPE: each training sequence begins at a random position (Kiyono et al. 2021).

    Positions k, k + 1, .. with k from 0 to K - 1, in training drawn for every sequence, in test one
    constant: here the last that training draws. The released code has K, one more, of which a
    learned table would never train the last row. With test_offset=0 every position below K + L - 1
    is trained, so that much longer sequences meet no new one. arXiv:2109.05644.
    """

    family = "positions"
    paper = "arXiv:2109.05644"
    consecutive = True

    @dataclass
    class Config:
        #: K, the paper's is 500; auto = 4 times the training length
        offsets: int | str = "auto"
        #: first position in test; auto = K - 1
        test_offset: int | str = "auto"

    def __init__(self, config: Config, train_length: int):
        super().__init__(config, train_length)
        offsets = 4 * train_length if config.offsets == "auto" else config.offsets
        if not isinstance(offsets, int) or offsets < 1:
            raise ConfigError(f"positions.offsets={config.offsets}: at least 1, or auto")
        first = offsets - 1 if config.test_offset == "auto" else config.test_offset
        if not isinstance(first, int) or first < 0:
            raise ConfigError(f"positions.test_offset={config.test_offset}: at least 0, or auto")
        self.offsets, self.test_offset = offsets, first

    def tied(self) -> list[Tied]:
        return [
            Tied("positions.offsets", "500", str(self.offsets)),
            Tied("positions.test_offset", "K = 500", str(self.test_offset)),
        ]

    @property
    def trained(self) -> int:
        return self.offsets - 1 + self.train_length

    def span(self, length: int) -> int:
        return max(self.trained, self.test_offset + length)

    def draw(self, batch: int, length: int, generator: torch.Generator, training: bool) -> Tensor:
        if training:
            first = torch.randint(self.offsets, (batch, 1, 1), generator=generator)
        else:
            first = torch.full((1, 1, 1), self.test_offset)
        return first + torch.arange(length)[None, :, None]
