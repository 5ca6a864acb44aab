"""Associative recall: which value stood beside this key?"""

from dataclasses import dataclass

import numpy as np

from posbench.data.corpora.task import ASK, Example, Task, check, filler, place, some
from posbench.errors import ConfigError
from posbench.registry import register


@register
class Recall(Task):
    """Multi-query associative recall (MQAR): pairs of a key and a value; some keys are asked for.

    Keys differ, values may repeat. Zoology's queries lie scattered; here they follow each other
    after the question mark, so that one number says how far back a window's pairs are. With
    data.pairs=3 and data.queries=2 at T = 13, V54 and V3 scored:

        ^ - K58 V3 K49 V46 K9 V54 - ? K9 V54 K58 V3
    """

    family = "task"
    paper = "after Arora et al. 2023 (Zoology), arXiv 2312.04927"

    @dataclass
    class Config(Task.Config):
        """Settings of `data=recall`."""

        #: pairs of a window, and how many of them are asked for
        pairs: int = 8
        queries: int = 4
        #: sizes of the two alphabets
        keys: int = 64
        values: int = 64

        def __post_init__(self) -> None:
            check("keys", self.keys, 2, 4096)
            check("values", self.values, 2, 4096)
            for option, most, of in (
                ("pairs", self.keys, "keys"),
                ("queries", self.pairs, "pairs"),
            ):
                value = getattr(self, option)
                if not 1 <= value <= most:
                    raise ConfigError(f"data.{option}={value}: must be from 1 to data.{of}={most}")

    @property
    def own(self) -> list[str]:
        return [*self._keys, *self._values, ASK]

    @property
    def _keys(self) -> list[str]:
        return [f"K{i}" for i in range(self.config.keys)]

    @property
    def _values(self) -> list[str]:
        return [f"V{i}" for i in range(self.config.values)]

    @property
    def chance(self) -> float:
        return 1 / self.config.values

    @property
    def shortest(self) -> int:
        return 2 * (self.config.pairs + self.config.queries)

    def example(self, length: int, depth: float, draw: np.random.Generator) -> Example:
        pairs, queries = self.config.pairs, self.config.queries
        room = length - self.shortest
        start = place(depth, room)
        keys = [f"K{i}" for i in draw.permutation(self.config.keys)[:pairs]]
        values = some(self._values, pairs, draw)
        asked = draw.permutation(pairs)[:queries].tolist()
        before, between = filler(start, draw), filler(room - start, draw)
        answers = list(range(length + 2 - 2 * queries, length + 1, 2))
        distance = max(a - start - 2 * i - 1 for a, i in zip(answers, asked, strict=True))

        def said(chosen: list[int]) -> list[str]:
            return [symbol for i in chosen for symbol in (keys[i], values[i])]

        symbols = [*before, *said(list(range(pairs))), *between, ASK, *said(asked)]
        return Example(symbols, answers, distance)
