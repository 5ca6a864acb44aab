"""Loss and accuracy by how far back lies what the answers are known from.

For windows that say so: those of a task, and of the protocol `repeat`, with the loss of its control
beside (`control_nats`). Buckets are those of positions.csv, so that L ends one: none holds
distances both within and beyond the training length.
"""

from bisect import bisect_left
from dataclasses import replace
from typing import Any

import pandas as pd

from posbench.evaluate import positions, protocols
from posbench.evaluate.plan import Cell, Key, Plan
from posbench.evaluate.score import Block

FILE = "distances.csv"
COLUMNS = [
    "run_id", "rescale", "factor", "options", "protocol", "test_len", "distance_lo", "distance_hi",
    "windows", "nats", "tokens", "correct", "exact", "control_nats",
]  # fmt: skip


def table(todo: Plan, cells: dict[Key, Cell]) -> pd.DataFrame:
    """Sums over the windows of every row and bucket; empty where no window has a distance."""
    found = []
    for key in todo.wanted():
        what = positions.about(todo, key)
        control = replace(key, protocol=protocols.SAME_TARGETS, distance=None)
        plain = cells[control].blocks if key.protocol == protocols.REPEAT else []
        found += [what | sums for sums in buckets(cells[key].blocks, todo.train_length, plain)]
    return pd.DataFrame(found, columns=COLUMNS)


def buckets(
    blocks: list[Block], train_length: int, control: list[Block] | None = None
) -> list[dict[str, Any]]:
    """Sums over the blocks of every bucket of distances that holds any, ascending.

    `control`: the same blocks as they are without an earlier copy.
    """
    known = [(block.distance, block) for block in blocks if block.distance is not None]
    if not known:
        return []
    plain = {(b.document, b.block): b.nats for b in control or []}
    ends = positions.bounds(train_length, max(distance for distance, _ in known))
    groups: dict[int, list[Block]] = {}
    for distance, block in known:
        groups.setdefault(bisect_left(ends, distance), []).append(block)
    return [
        {
            "distance_lo": ends[i - 1] + 1 if i else 1,
            "distance_hi": ends[i],
            "windows": len(own),
            "nats": sum(b.nats for b in own),
            "tokens": sum(b.tokens for b in own),
            "correct": sum(b.correct for b in own),
            "exact": sum(b.correct == b.tokens for b in own),
            "control_nats": sum(plain[b.document, b.block] for b in own) if plain else None,
        }
        for i, own in sorted(groups.items())
    ]
