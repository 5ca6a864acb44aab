"""Consecutive positions but for gaps, from a range far wider than the training length."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encodings.base import Tied
from posbench.errors import ConfigError
from posbench.positions.base import PositionSampler
from posbench.registry import register


@register
class Pose(PositionSampler):
    """PoSE: L positions in chunks, with random gaps between them, below a target (Zhu et al. 2023).

    Anew for every training sequence. The first of n chunks has 1 to L/n tokens, rounded up, the
    second 1 to 1/(n - 1) of the rest, and so on: for two chunks the released code's lengths. Chunk
    i is moved up by u_i, u_0 = 0, each drawn from u_(i-1) to target - L. Tests have positions 0,
    1, 2, ... The text of a sequence stays contiguous (the paper's case v_i = 0; its released code
    also skips text between the chunks). arXiv:2309.10400.
    """

    family = "positions"
    paper = "arXiv:2309.10400"

    @dataclass
    class Config:
        #: length to prepare for; auto = 8 times the training length, as the paper's 16k from 2k
        target: int | str = "auto"
        #: chunks of a training sequence
        chunks: int = 2

    def __init__(self, config: Config, train_length: int):
        super().__init__(config, train_length)
        target = 8 * train_length if config.target == "auto" else config.target
        if not isinstance(target, int) or target < train_length:
            raise ConfigError(
                f"positions.target={config.target}: at least train.seq_len = {train_length}, or "
                "auto"
            )
        if not 2 <= config.chunks <= train_length:
            raise ConfigError(
                f"positions.chunks={config.chunks}: from 2 to train.seq_len = {train_length}"
            )
        self.reach = target

    def tied(self) -> list[Tied]:
        return [Tied("positions.target", "16384", str(self.reach))]

    @property
    def target(self) -> int:
        return self.reach

    def span(self, length: int) -> int:
        return max(self.reach, length)

    def draw(self, batch: int, length: int, generator: torch.Generator, training: bool) -> Tensor:
        pos = torch.arange(length)[None, :, None]
        if not training:
            return pos
        return torch.cat([pos + self._skips(length, generator) for _ in range(batch)])

    def _skips(self, length: int, generator: torch.Generator) -> Tensor:
        """How far every token of a sequence is moved up [1, length, 1]."""

        def uniform(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (), generator=generator))

        skips, start, skip = torch.zeros(1, length, 1, dtype=torch.int64), 0, 0
        for left in range(self.config.chunks, 1, -1):
            start += uniform(1, max(1, -(-(length - start) // left)))
            skip = uniform(skip, self.reach - length)
            skips[:, start:] = skip
        return skips
