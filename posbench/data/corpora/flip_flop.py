"""Flip-flop: one bit of memory, written, read and otherwise to be left alone."""

from dataclasses import dataclass

import numpy as np

from posbench.data.corpora.task import Example, Task, filler, place, some
from posbench.errors import ConfigError
from posbench.registry import register

WRITE, READ, IGNORE = "w", "r", "i"
BITS = ("0", "1")


@register
class FlipFlop(Task):
    """After `r` comes the bit that the last `w` wrote, whatever bits follow an `i`.

    The window begins with a write and ends with a read. The last write stands at a drawn depth;
    before it an instruction is `i` with probability `data.ignore`, else `w` or `r`, after it all
    are `i` but the read at the end. Training scores the bit of every read, the test that of the
    last one. With data.ignore=0.5 at T = 11, in training both bits after `r` scored, in the test
    the last:

        w 1 i 1 r 1 w 1 i 0 r 1

    An even T begins with a symbol of filler.
    """

    family = "task"
    paper = "after Liu et al. 2023 (FFLM), arXiv 2306.00946"

    @dataclass
    class Config(Task.Config):
        """Settings of `data=flip_flop`."""

        #: probability of an instruction to ignore
        ignore: float = 0.8

        def __post_init__(self) -> None:
            if not 0 <= self.ignore <= 1:
                raise ConfigError(f"data.ignore={self.ignore}: must be from 0 to 1")

    @property
    def own(self) -> list[str]:
        return [WRITE, READ, IGNORE, *BITS]

    @property
    def chance(self) -> float:
        return 1 / len(BITS)

    @property
    def shortest(self) -> int:
        return 3

    def example(self, length: int, depth: float, draw: np.random.Generator) -> Example:
        pairs = (length + 1) // 2
        last = place(depth, pairs - 2)  # the last write
        p = self.config.ignore
        kinds = draw.choice(3, size=last, p=[p, (1 - p) / 2, (1 - p) / 2])
        said = [(IGNORE, WRITE, READ)[kind] for kind in kinds]
        said = [*said, WRITE, *[IGNORE] * (pairs - last - 2), READ]
        said[0] = WRITE
        symbols, answers = filler((length + 1) % 2, draw), []
        memory = ""
        for instruction, bit in zip(said, some(BITS, pairs, draw), strict=True):
            if instruction == WRITE:
                memory = bit
            if instruction == READ:
                answers.append(len(symbols) + 1)
            symbols += [instruction, memory if instruction == READ else bit]
        return Example(symbols, answers, 2 * (pairs - 1 - last), answers[-1:])
