"""The needle: one number in a text of filler, asked for at the end."""

from dataclasses import dataclass

import numpy as np

from posbench.data.corpora.task import ASK, DIGITS, Example, Task, check, filler, place, some
from posbench.registry import register

#: stands before the number
KEY = "key"


@register
class Passkey(Task):
    """A number hidden in filler, asked for at the end.

    With data.digits=3 at T = 14, the digits after the question mark scored:

        _ - - ~ key 8 2 5 . ; , ? 8 2 5
    """

    family = "task"
    paper = "after Mohtashami and Jaggi 2023, arXiv 2305.16300"

    @dataclass
    class Config(Task.Config):
        """Settings of `data=passkey`."""

        #: digits of the number
        digits: int = 5

        def __post_init__(self) -> None:
            check("digits", self.digits, 1, 64)

    @property
    def own(self) -> list[str]:
        return [*DIGITS, KEY, ASK]

    @property
    def chance(self) -> float:
        return 1 / len(DIGITS)

    @property
    def shortest(self) -> int:
        return 2 * self.config.digits + 1

    def example(self, length: int, depth: float, draw: np.random.Generator) -> Example:
        digits = self.config.digits
        room = length - self.shortest
        start = place(depth, room)
        number = some(DIGITS, digits, draw)
        before, between = filler(start, draw), filler(room - start, draw)
        symbols = [*before, KEY, *number, *between, ASK, *number]
        answers = list(range(length + 1 - digits, length + 1))
        return Example(symbols, answers, answers[0] - start - 1)
