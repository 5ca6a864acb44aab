"""What was the very first token?"""

from dataclasses import dataclass

import numpy as np

from posbench.data.corpora.task import ASK, DIGITS, Example, Task, check, filler, some
from posbench.registry import register


@register
class FirstToken(Task):
    """Say at the end which digit the window began with.

    Other digits follow it, since among filler it could be told without knowing where it stands;
    data.distractors=false is that easier task. Of T = 7, the last digit scored:

        4 1 7 0 8 9 ? 4
    """

    family = "task"
    paper = "after Chiang and Cholak 2022 (FIRST), arXiv 2202.12172"

    @dataclass
    class Config(Task.Config):
        """Settings of `data=first_token`."""

        #: digits of the alphabet
        symbols: int = 10
        #: what follows the first digit: other digits, or filler
        distractors: bool = True

        def __post_init__(self) -> None:
            check("symbols", self.symbols, 2, len(DIGITS))

    @property
    def own(self) -> list[str]:
        return [*DIGITS[: self.config.symbols], ASK]

    @property
    def chance(self) -> float:
        return 1 / self.config.symbols

    @property
    def shortest(self) -> int:
        return 2

    def example(self, length: int, depth: float, draw: np.random.Generator) -> Example:
        """As for any task; the first token has one depth only."""
        digits = DIGITS[: self.config.symbols]
        (first,) = some(digits, 1, draw)
        room = length - 2
        between = some(digits, room, draw) if self.config.distractors else filler(room, draw)
        return Example([first, *between, ASK, first], [length], length)
