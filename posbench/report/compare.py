"""Who is better than whom: paired tests between all schemes and rescalings of a section.

The difference of two losses is paired by document (or block) and, where both have a seed of that
number, by seed: mean, 95 % interval and p value as in `statistics.two_way`. Holm corrects all pairs
of a section and length together; his p values have seeds - 1 degrees of freedom, since those of
Satterthwaite fail far out in the tails (6 equal schemes, 3 seeds: a false winner in 27 % of 300
repeats; so in none). With one common seed the test is over
documents alone: what it finds holds for these two runs and may not for other seeds.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from posbench.evaluate import statistics
from posbench.report.entries import Cell, Entry
from posbench.report.pooling import Losses
from posbench.report.sections import COMPARABLE, Section, sections

COLUMNS = [
    *COMPARABLE, "test_len", "test_shape", "a", "b", "difference", "lo", "hi", "p", "p_holm",
    "n_units", "n_seeds", "winner", "a_stamp", "b_stamp",
]  # fmt: skip
#: a difference counts where the corrected p is below
ALPHA = 0.05
#: multiples of L that are shown, the CSV has all
MULTIPLES = (4, 16)
#: entries that a matrix has room for
ROOM = 25


def compared(pooled: pd.DataFrame, losses: Losses) -> pd.DataFrame:
    """Every pair of entries at every length of every section; columns COLUMNS.

    `difference` is the loss of a minus that of b in nats per token; `winner` is the better one, or
    empty where the corrected p is not below 0.05. Pairs without a common seed are left out.
    """
    parts = [
        pairs
        for section in sections(pooled)
        for length in section.lengths
        if len(pairs := _pairs(section, length, losses))
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


def _pairs(section: Section, length: int, losses: Losses) -> pd.DataFrame:
    """All pairs at one length, corrected together."""
    names: list[str] = []
    stamps: list[str] = []
    tables: list[pd.DataFrame] = []
    for entry, cell in scored(section, length):
        known = {seed: losses.of(row) for seed, row in cell.members}
        if known and all(series is not None for series in known.values()):
            names.append(entry.label)
            stamps.append("; ".join(entry.stamps))
            tables.append(pd.DataFrame(known))
    seeds = [set(map(int, table.columns)) for table in tables]
    by_seeds: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for i, j in combinations(range(len(names)), 2):
        common = tuple(sorted(seeds[i] & seeds[j]))
        if common:
            by_seeds.setdefault(common, []).append((i, j))
    parts = [tested(tables, list(common), pairs) for common, pairs in by_seeds.items()]
    if not parts:
        return pd.DataFrame(columns=COLUMNS)
    found = pd.concat(parts, ignore_index=True).sort_values(["i", "j"], ignore_index=True)
    found["p_holm"] = statistics.holm(found.pop("tail"))
    for side, column in (("i", "a"), ("j", "b")):
        found[column] = [names[i] for i in found[side]]
        found[f"{column}_stamp"] = [stamps[i] for i in found[side]]
    better = found["a"].where(found["difference"] < 0, found["b"])
    found["winner"] = better.where(found["p_holm"] < ALPHA, "")
    place = {**section.keys, "test_len": length, "test_shape": section.shapes[length]}
    return found.assign(**place)[COLUMNS]


def tested(
    tables: list[pd.DataFrame], seeds: list[int], pairs: list[tuple[int, int]]
) -> pd.DataFrame:
    """Difference, interval and p of pairs that have these seeds in common."""
    entries = sorted({i for pair in pairs for i in pair})
    mine = {i: tables[i][seeds].dropna() for i in entries}
    units = mine[entries[0]].index
    for table in mine.values():
        units = units.intersection(table.index)
    stacked = np.stack([mine[i].loc[units].to_numpy(dtype="float64") for i in entries])
    place = {i: k for k, i in enumerate(entries)}
    left, right = ([place[pair[side]] for pair in pairs] for side in (0, 1))
    mean, variance, df = statistics.two_way(stacked[left] - stacked[right])
    half = statistics.half_width(variance, df)
    least = len(seeds) - 1 or len(units) - 1
    return pd.DataFrame(
        {
            "i": [i for i, _ in pairs],
            "j": [j for _, j in pairs],
            "difference": mean,
            "lo": mean - half,
            "hi": mean + half,
            "p": statistics.p_value(mean, variance, df),
            "tail": statistics.p_value(mean, variance, np.minimum(df, least)),
            "n_units": len(units),
            "n_seeds": len(seeds),
        }
    )


def scored(section: Section, length: int) -> list[tuple[Entry, Cell]]:
    """The entries that have a loss at a length."""
    cells = ((entry, entry.cells.get(length)) for entry in section.entries)
    return [(entry, cell) for entry, cell in cells if cell is not None and cell.status == "ok"]


def shown(section: Section, length: int) -> list[Entry]:
    """The entries of a matrix: all, or where they are many the plain and the best of the others."""
    found = scored(section, length)
    others = sorted((cell.nll, i) for i, (entry, cell) in enumerate(found) if not entry.plain)
    room = max(0, ROOM - (len(found) - len(others)))
    chosen = {i for _, i in others[:room]}
    return [entry for i, (entry, _) in enumerate(found) if entry.plain or i in chosen]


def lengths_of(section: Section) -> list[int]:
    """The lengths at which a matrix is shown."""
    return [m * section.train_len for m in MULTIPLES if m * section.train_len in section.lengths]


def outcomes(section: Section, length: int, pairs: pd.DataFrame) -> dict[tuple[str, str], int]:
    """(row, column) -> 1 where the row's entry is better than the column's, -1 worse, 0 neither."""
    mine = pairs[pairs["test_len"] == length]
    for name, value in section.keys.items():
        mine = mine[mine[name] == value]
    sides: Iterable[Any] = zip(mine["a"], mine["b"], mine["winner"], strict=True)
    found = {}
    for a, b, winner in sides:
        sign = (winner == a) - (winner == b)
        found[a, b], found[b, a] = sign, -sign
    return found
