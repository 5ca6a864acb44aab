"""Checks of claims about what is best of several: a number of a grid, a default, an order."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from posbench.evaluate.statistics import interval
from posbench.evidence.checks import difference
from posbench.evidence.effect import EVEN, Effect, Floats, Levels, least, over_seeds, together
from posbench.evidence.select import Selection, Source, about, paired, select

Integers = npt.NDArray[np.intp]


def argmin(
    source: Source,
    row: Selection,
    key: str,
    grid: Sequence[float],
    written: Sequence[str],
    reference: float,
    below: bool = False,
    levels: Levels = EVEN,
) -> Effect:
    """log2 of the grid value with the least loss over `reference`, one choice a seed.

    Rows of value i have `written[i]` in the column `key`. A choice stands for all values up to half
    way (in log2) to its neighbours, without bound at the ends of the grid, and so does every value
    that the seed's documents cannot tell from it (paired t at 95 %); the interval runs from that of
    the lower bounds to that of the upper ones. `below`: claimed to lie below the reference.
    """
    if below:
        levels = levels[::-1]  # the ends change places
    sides = [select(source, {**row, key: word}) for word in written]
    logs = np.log2(np.asarray(grid, dtype=np.float64) / reference)
    chosen, low, high = reach(np.stack(paired(sides)), logs)
    mean, _, _, detectable = over_seeds(logs[chosen], levels)
    lo = over_seeds(low, levels)[1] if np.isfinite(low).all() else -math.inf
    hi = over_seeds(high, levels)[2] if np.isfinite(high).all() else math.inf
    found = Effect(
        mean,
        lo,
        hi,
        len(chosen),
        max(detectable, mean - lo, hi - mean),  # no less than the grid tells apart
        "log2",
        note=f"{key} with the least loss, by seed: {', '.join(written[i] for i in chosen)}",
        **about(sides),
    )
    return found.times(-1, "log2") if below else found


def reach(losses: Floats, grid: Floats) -> tuple[Integers, Floats, Floats]:
    """The best value of a grid in every seed, and how far what is as good as it reaches.

    losses [values, documents, seeds], grid [values] increasing -> index, low, high [seeds] each.
    """
    cuts = np.concatenate(([-np.inf], (grid[1:] + grid[:-1]) / 2, [np.inf]))
    chosen = losses.mean(1).argmin(0)
    low, high = np.empty(len(chosen)), np.empty(len(chosen))
    for seed, best in enumerate(chosen):
        excess = losses[:, :, seed] - losses[best, :, seed]
        as_good = np.flatnonzero([not interval(one)[1] > 0 for one in excess])
        low[seed], high[seed] = cuts[as_good[0]], cuts[as_good[-1] + 1]
    return chosen, low, high


def best_of_each(
    source: Source,
    better: Sequence[Selection],
    worse: Sequence[Selection],
    levels: Levels = EVEN,
) -> Effect:
    """Loss of the best of the grid `worse` less that of the best of `better`.

    Which are best is not known, so nothing rests on a choice: the lower end is that of the one of
    `better` with the highest lead over all of `worse`, at a level for as many as there are in
    `better` (Bonferroni); the upper end is the reverse.
    """
    own = together(levels[::-1], len(better))[1], together(levels, len(worse))[1]
    leads = [[difference(source, a, b, levels=own) for b in worse] for a in better]
    lo, mean, hi = (
        np.array([[getattr(e, name) for e in row] for row in leads])
        for name in ("lo", "effect", "hi")
    )
    best = int(mean.min(1).argmax())
    shown = leads[best][int(mean[best].argmin())]
    every = least([e for row in leads for e in row])  # for the fewest seeds and who may not decide
    return replace(
        every,
        effect=shown.effect,
        lo=float(lo.min(1).max()),
        hi=float(hi.max(0).min()),
    )


def agreement(
    source: Source,
    order: Sequence[Selection],
    over: Sequence[Selection],
    measure: str = "accuracy",
    levels: Levels = EVEN,
) -> Effect:
    """Kendall's tau between the claimed order, best first, and the measured one.

    For every seed the mean over the cases of `over`; equal results count as no order.
    """
    cases = [[select(source, {**one, **case}, measure) for one in order] for case in over]
    every = [side for sides in cases for side in sides]
    seeds = sorted(set.intersection(*(set(side.values.columns) for side in every)))
    taus = [_tau([side.values[seeds].mean().to_numpy() for side in sides]) for sides in cases]
    values = np.mean(taus, axis=0) * (1 if measure == "accuracy" else -1)
    mean, low, high, detectable = over_seeds(values, levels)
    return Effect(mean, low, high, len(seeds), detectable, "tau", **about(every))


def _tau(means: Sequence[Floats]) -> Floats:
    """Mean over all pairs of the sign of the first less the second [seeds]."""
    pairs = [(i, j) for j in range(len(means)) for i in range(j)]
    return np.asarray(np.mean([np.sign(means[i] - means[j]) for i, j in pairs], axis=0))
