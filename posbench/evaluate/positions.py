"""Loss by the number of tokens before, in buckets that double every second one.

The last context of a bucket is L times a power of the square root of 2, rounded down: training
lengths end a bucket, so that none holds both what training has seen and what it has not.
"""

from math import isqrt
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from posbench.evaluate.plan import Cell, Key, Plan

FILE = "positions.csv"
COLUMNS = [
    "run_id", "rescale", "factor", "options", "protocol", "test_len", "bucket_lo", "bucket_hi",
    "nats", "tokens",
]  # fmt: skip


def bounds(train_length: int, longest: int) -> list[int]:
    """Last context of each bucket, ascending, until one of at least `longest` tokens."""
    found, k = {1}, -2 * train_length.bit_length()
    while max(found) < longest:
        found.add(isqrt(train_length**2 << k if k > 0 else train_length**2 >> -k))
        k += 1
    return sorted(found - {0})


class Losses:
    """Summed nats and number of tokens by context, filled batch by batch."""

    def __init__(self) -> None:
        self.nats, self.tokens = np.zeros(0), np.zeros(0, dtype=np.int64)

    def add(self, scored_S: Tensor, nats_BS: Tensor) -> None:
        """Losses at input positions, each once; position p has a context of p + 1 tokens."""
        places = scored_S.cpu().numpy()
        more = max(0, int(places[-1]) + 1 - len(self.nats))
        self.nats, self.tokens = np.pad(self.nats, (0, more)), np.pad(self.tokens, (0, more))
        self.nats[places] += nats_BS.sum(0).numpy()
        self.tokens[places] += len(nats_BS)

    def buckets(self, train_length: int) -> list[list[float]]:
        """(first context, last context, nats, tokens) of every bucket with tokens, ascending."""
        found, low = [], 1
        for high in bounds(train_length, len(self.nats)):
            part = slice(low - 1, high)
            if tokens := int(self.tokens[part].sum()):
                found.append([low, high, float(self.nats[part].sum()), tokens])
            low = high + 1
        return found


def about(todo: Plan, key: Key) -> dict[str, Any]:
    """The columns that say what a cell measured."""
    return {
        "run_id": todo.run.manifest["run_id"],
        **todo.rules()[key.rule].columns(),
        "protocol": key.protocol,
        "test_len": key.length,
    }


def table(todo: Plan, cells: dict[Key, Cell]) -> pd.DataFrame:
    """The buckets of every row; lengths read off one pass have them at the longest alone.

    Rows of `eval.distances` have none: they differ by more than their length.
    """
    found = []
    for key in (key for key in todo.wanted() if key.distance is None):
        for bucket in cells[key].positions:
            found.append(about(todo, key) | dict(zip(COLUMNS[-4:], bucket, strict=True)))
    return pd.DataFrame(found, columns=COLUMNS)
