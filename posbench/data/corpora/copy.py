"""Copying: the answer is as long as the question, and every symbol of it has its own source."""

from dataclasses import dataclass

import numpy as np

from posbench.data.corpora.task import LETTERS, Example, Task, check, filler, place, some
from posbench.registry import register

#: between a text and its copy
BAR = "|"


@register
class Copy(Task):
    """Say again what stood before the bar.

    The text fills half of the length, or has `data.size` letters and filler around it, so that the
    distance varies while the answer stays as long. Of T = 8, the letters after the bar scored:

        t v l r | t v l r

    and with data.size=3 at T = 12:

        ; w y i : _ - , ; | w y i
    """

    family = "task"
    paper = "after Kazemnejad et al. 2023, arXiv 2305.19466"

    @dataclass
    class Config(Task.Config):
        """Settings of `data=copy`."""

        #: letters of the text; null = as many as fit
        size: int | None = None
        #: letters of the alphabet
        symbols: int = 26

        def __post_init__(self) -> None:
            check("symbols", self.symbols, 2, len(LETTERS))
            if self.size is not None:
                check("size", self.size, 1, 4096)

    @property
    def own(self) -> list[str]:
        return [*LETTERS[: self.config.symbols], BAR]

    @property
    def chance(self) -> float:
        return 1 / self.config.symbols

    @property
    def shortest(self) -> int:
        return 2 * (self.config.size or 1)

    def answer(self, text: list[str]) -> list[str]:
        """What is to be said of a text."""
        return text

    def sources(self, size: int) -> list[int]:
        """Index in the text of every symbol of the answer."""
        return list(range(size))

    def example(self, length: int, depth: float, draw: np.random.Generator) -> Example:
        size = self.config.size or length // 2
        room = length - 2 * size
        start = place(depth, room)
        text = some(LETTERS[: self.config.symbols], size, draw)
        before, between = filler(start, draw), filler(room - start, draw)
        answers = list(range(length + 1 - size, length + 1))
        distance = max(a - s for a, s in zip(answers, self.sources(size), strict=True)) - start
        return Example([*before, *text, *between, BAR, *self.answer(text)], answers, distance)
