"""Indirect indexing: go to a place that is named, then some steps on."""

from dataclasses import dataclass

import numpy as np

from posbench.data.corpora.task import (
    ASK,
    LETTERS,
    Example,
    Task,
    check,
    filler,
    place,
    shares,
    some,
)
from posbench.registry import register


@register
class Indexing(Task):
    """Go to a mark, then k steps on or back, and say the letter there.

    Each mark has `data.steps` letters on either side and occurs once; filler lies between. What
    (the mark) and where (k) have to be combined. With data.marks=2 and data.steps=2 at T = 16, the
    last letter scored:

        : ; k a B c c l d A f n ^ ? A -2 l
    """

    family = "task"
    paper = "after Gopalakrishnan et al. 2025 (PoPE), arXiv 2509.10534"

    @dataclass
    class Config(Task.Config):
        """Settings of `data=indexing`."""

        #: marks in a window, and the largest k
        marks: int = 4
        steps: int = 4
        #: letters of the alphabet
        symbols: int = 16

        def __post_init__(self) -> None:
            check("marks", self.marks, 1, len(LETTERS))
            check("steps", self.steps, 1, 64)
            check("symbols", self.symbols, 2, len(LETTERS))

    @property
    def own(self) -> list[str]:
        return [*LETTERS[: self.config.symbols], *self._marks, *self._steps, ASK]

    @property
    def _marks(self) -> list[str]:
        return [letter.upper() for letter in LETTERS[: self.config.marks]]

    @property
    def _steps(self) -> list[str]:
        most = self.config.steps
        return [f"{k:+d}" for k in range(-most, most + 1) if k]

    @property
    def chance(self) -> float:
        return 1 / self.config.symbols

    @property
    def shortest(self) -> int:
        return self.config.marks * (2 * self.config.steps + 1) + 3

    def example(self, length: int, depth: float, draw: np.random.Generator) -> Example:
        marks, steps = self.config.marks, self.config.steps
        room = length - self.shortest
        order = [self._marks[i] for i in draw.permutation(marks)]
        asked = place(depth, marks - 1)  # so many marks stand before the one that is asked for
        ahead = place(depth, room)
        gaps = [*shares(ahead, asked + 1, draw), *shares(room - ahead, marks - asked, draw)]
        symbols: list[str] = []
        for i, mark in enumerate(order):
            letters = some(LETTERS[: self.config.symbols], 2 * steps, draw)
            symbols += [*filler(gaps[i], draw), *letters[:steps], mark, *letters[steps:]]
        symbols += filler(gaps[marks], draw)
        (step,) = some(self._steps, 1, draw)
        source = symbols.index(order[asked]) + int(step)
        symbols += [ASK, order[asked], step, symbols[source]]
        return Example(symbols, [length], length - source)
