"""What every generated task provides: sequences whose answer has to be fetched from far tokens.

A task is made, not read: it has no end, no copyright, and its answers are known. Filler stands
where a task leaves room; its eight symbols occur in no answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from posbench.errors import ConfigError

FILLER = (".", ",", ";", ":", "-", "~", "^", "_")
DIGITS = tuple("0123456789")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
#: the symbol after which the answer follows
ASK = "?"


@dataclass(frozen=True)
class Example:
    """One instance of T + 1 symbols: the first T are read, all but the first can be predicted.

    answers   indices of the symbols that are scored, ascending
    distance  how far before it lies what an answer is known from; the farthest of the tested
    tested    indices that a test scores; None = all answers
    """

    symbols: list[str]
    answers: list[int]
    distance: int
    tested: list[int] | None = None


class Task(ABC):
    """Base of all tasks; a subclass names itself by its file and implements `example`."""

    group: ClassVar[str] = "data"
    name: ClassVar[str] = ""
    family: ClassVar[str] = ""
    paper: ClassVar[str] = ""

    @dataclass
    class Config:
        """Settings that all tasks have."""

        #: training windows hold instances of every length up to L; false = of length L alone
        mixed: bool = True

    def __init__(self, config: Any) -> None:
        self.config = config

    @staticmethod
    def located(config: Any) -> Any:
        """The configuration as a run keeps it: there is no path in it."""
        return config

    @property
    @abstractmethod
    def own(self) -> list[str]:
        """The task's symbols besides filler."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """Share of the answers that a guess among the symbols that can be one gets right."""

    @property
    @abstractmethod
    def shortest(self) -> int:
        """The smallest T that an instance fits into."""

    @abstractmethod
    def example(self, length: int, depth: float, draw: np.random.Generator) -> Example:
        """An instance for T = `length` >= `shortest`.

        `depth` in [0, 1) says where in the room that there is the thing asked for stands: 0 is the
        start, as far from the answer as can be. Everything else is drawn.
        """


def place(depth: float, room: int) -> int:
    """Depth as a number of symbols, 0 to `room`, each for an equal share of depths."""
    return int(depth * (room + 1))


def some(symbols: Sequence[str], n: int, draw: np.random.Generator) -> list[str]:
    """n symbols, drawn one by one."""
    return [symbols[i] for i in draw.integers(len(symbols), size=n)]


def filler(n: int, draw: np.random.Generator) -> list[str]:
    """n symbols of filler."""
    return some(FILLER, n, draw)


def shares(n: int, parts: int, draw: np.random.Generator) -> npt.NDArray[np.int64]:
    """n cut at random into so many parts [parts], some of which may be empty."""
    cuts = np.sort(draw.integers(n + 1, size=parts - 1))
    return np.diff(np.concatenate([[0], cuts, [n]]))


def check(option: str, value: int, low: int, high: int) -> None:
    """Refuse a value outside low..high, naming the option."""
    if not low <= value <= high:
        raise ConfigError(f"data.{option}={value}: must be from {low} to {high}")
