"""Generated tasks over seeds: the spread of the accuracy, and how many seeds solve a length.

Length generalisation swings with the seed, so that a mean alone says little: beside it stand least,
median and largest accuracy of the seeds, the share of seeds that solve the length, and what
guessing among the answers' symbols gives.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import pandas as pd

from posbench.report.columns import OF_SEEDS
from posbench.report.entries import Cell

#: the protocol of tasks
PROTOCOL = "generated"
#: share of the windows that a seed which solves a length has all right
SOLVED = 0.9
#: accuracy at L from which on a run has learned its task; before that, others say nothing
LEARNED = 0.9
#: seeds that a distribution takes at least
SEEDS = 5


def over_seeds(seeds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The columns of a pooled row from those of its seeds; nan unless all were scored."""
    known = [seed for seed in seeds if seed["protocol"] == PROTOCOL and seed["status"] == "ok"]
    if len(known) < len(seeds):
        return dict.fromkeys(OF_SEEDS, math.nan)
    right = [float(seed["accuracy"]) for seed in seeds]
    solved = sum(seed["exact"] >= SOLVED for seed in seeds) / len(seeds)
    spread = min(right), statistics.median(right), max(right), solved
    return dict(zip(OF_SEEDS, spread, strict=True))


def learned(rows: pd.DataFrame) -> set[str]:
    """Run ids of those, among rows of tasks, that have learned their task at T = L."""
    own = rows[(rows["protocol"] == PROTOCOL) & (rows["status"] == "ok") & (rows["ratio"] == 1)]
    own = own[own["rescale"] == "none"]
    return set(own["run_id"][own["accuracy"].astype("float64") >= LEARNED])


def spread(cell: Cell) -> str:
    """`31-98`: least and largest accuracy of several seeds in %; empty for one."""
    low, _, high, _ = cell.over_seeds
    return f"{100 * low:.0f}-{100 * high:.0f}" if cell.n_seeds > 1 and low == low else ""


def solved(cell: Cell) -> str:
    """`4/5`: the seeds of several that solve the length; empty for one."""
    share = cell.over_seeds[3]
    return f"{share * cell.n_seeds:.0f}/{cell.n_seeds:.0f}" if spread(cell) else ""


def notes(cells: Sequence[Cell]) -> list[str]:
    """What the numbers of a task mean, its chance level, and whether there are enough seeds."""
    found = [f"chance: {100 * chance:.3g} % of the tokens" for chance in levels(cells)]
    seeds = int(min((cell.n_seeds for cell in cells), default=1))
    if any(map(spread, cells)):
        found.append(
            "beside the means: least to largest accuracy of the seeds, and how many of them have "
            f"at least {SOLVED:.0%} of the windows all right"
        )
    if seeds < SEEDS:
        found.append(
            f"{seeds} seed{'' if seeds == 1 else 's'}: length generalisation swings with the seed; "
            f"it takes {SEEDS} at least to show it"
        )
    return found


def levels(cells: Sequence[Cell]) -> list[float]:
    """The chance levels of a section: one, but for evaluations that did not state it."""
    return sorted({cell.chance for cell in cells if not math.isnan(cell.chance)})
