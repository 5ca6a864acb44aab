"""Consecutive positions but for gaps, from a range far wider than the training length."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encodings.base import Tied
from posbench.errors import ConfigError
from posbench.positions.base import PositionSampler
from posbench.registry import register
from posbench.seeds import seeded
from posbench.settings import one_of

CONTIGUOUS, SKIPPED, ALIGNED = TEXTS = ("contiguous", "skipped", "aligned")


@register
class Pose(PositionSampler):
    """PoSE: L positions in chunks, with random gaps between them, below a target (Zhu et al. 2023).

    Anew for every training sequence. The first of n chunks has 1 to L/n tokens, rounded up, the
    second 1 to 1/(n - 1) of the rest, and so on: for two chunks the released code's lengths. Chunk
    i is moved up by u_i, u_0 = 0, each drawn from u_(i-1) to target - L. Tests have positions 0,
    1, 2, ...

    What stands in chunk i lies v_i tokens further on in the text than it would in a window: v_i = 0
    (`contiguous`), drawn apart from u_i, from v_(i-1) to 4 L (`skipped`: as in the released code,
    for two chunks and documents of 5 L), or u_i (`aligned`: every token at its own position). The
    last token of a chunk is to predict the first of the next one. arXiv:2309.10400.
    """

    family = "positions"
    paper = "arXiv:2309.10400"

    @dataclass
    class Config:
        #: length to prepare for; auto = 8 times the training length, as the paper's 16k from 2k
        target: int | str = "auto"
        #: chunks of a training sequence
        chunks: int = 2
        #: where in the text the chunks lie: contiguous, skipped or aligned
        text: str = CONTIGUOUS

        def __post_init__(self) -> None:
            one_of("positions.text", self.text, TEXTS)

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

    @property
    def skipped(self) -> int:
        aligned = self.reach - self.train_length
        return {CONTIGUOUS: 0, SKIPPED: 4 * self.train_length, ALIGNED: aligned}[self.config.text]

    def span(self, length: int) -> int:
        return max(self.reach, length)

    def draw(self, batch: int, length: int, generator: torch.Generator, training: bool) -> Tensor:
        pos = torch.arange(length)[None, :, None]
        if not training:
            return pos
        return torch.cat([pos + self._gaps(length, generator)[:, None] for _ in range(batch)])

    def places(self, batch: int, length: int, seed: int, step: int) -> Tensor:
        drawn, own = (seeded(seed, f"{what}:{step}") for what in ("positions", "text"))
        text = None if self.config.text == ALIGNED else own
        gaps = torch.stack([self._gaps(length, drawn, text) for _ in range(batch)])
        return torch.arange(length + 1) + torch.cat([gaps, gaps[:, -1:]], dim=1)

    def _gaps(
        self, length: int, generator: torch.Generator, text: torch.Generator | None = None
    ) -> Tensor:
        """How far every token of a sequence is moved up [length]; with `text` that in the text."""
        gaps, moved = torch.zeros(length, dtype=torch.int64), 0
        for start, skip in self._chunks(length, generator):
            moved = skip if text is None else _uniform(moved, self.skipped, text)
            gaps[start:] = moved
        return gaps

    def _chunks(self, length: int, generator: torch.Generator) -> Iterator[tuple[int, int]]:
        """First token and u of every chunk but the first."""
        start, skip = 0, 0
        for left in range(self.config.chunks, 1, -1):
            start += _uniform(1, max(1, -(-(length - start) // left)), generator)
            skip = _uniform(skip, self.reach - length, generator)
            yield start, skip


def _uniform(low: int, high: int, generator: torch.Generator) -> int:
    """A whole number from low to high."""
    return int(torch.randint(low, high + 1, (), generator=generator))
