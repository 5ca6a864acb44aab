"""Checks of claims about what is best of several: a number of a grid, a default, an order."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from posbench.evaluate.statistics import interval
from posbench.evidence.checks import NATS
from posbench.evidence.effect import EVEN, Effect, Floats, Levels, NotYet, over_seeds
from posbench.evidence.select import Selection, Source, about, effect_of, paired, select

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
    losses = np.stack(paired(sides))
    chosen = losses.mean(1).argmin(0)
    as_good = [_as_good(losses[:, :, seed], best) for seed, best in enumerate(chosen)]
    logs = np.log2(np.asarray(grid, dtype=np.float64) / reference)
    cuts = np.concatenate(([-np.inf], (logs[1:] + logs[:-1]) / 2, [np.inf]))
    mean, _, _, detectable = over_seeds(logs[chosen], levels)
    low = cuts[[own.min() for own in as_good]]
    high = cuts[[own.max() + 1 for own in as_good]]
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


def _as_good(losses: Floats, best: int) -> Integers:
    """Which of the rows of losses [values, documents] cannot be told from that of `best`."""
    lows = [interval(row - losses[best])[1] for row in losses]
    return np.flatnonzero([not low > 0 for low in lows])


def best_of_each(
    source: Source,
    better: Sequence[Selection],
    worse: Sequence[Selection],
    levels: Levels = EVEN,
) -> Effect:
    """Loss of the best of the grid `worse` less that of the best of `better`.

    For every seed and every second document each best is chosen on the other documents of the other
    seeds, so that the choice gains nothing by chance. NotYet with one seed.
    """
    sides = [select(source, one) for one in (*better, *worse)]
    losses = paired(sides)
    documents, seeds = losses[0].shape
    if seeds == 1:
        raise NotYet("one seed, the choice takes another")
    x = np.empty_like(losses[0])
    for seed in range(seeds):
        others = np.arange(seeds) != seed
        for part in (0, 1):
            half = np.arange(documents) % 2 == part
            apart = np.ix_(~half, others)
            good, bad = (
                min(grid, key=lambda one: float(one[apart].mean()))[half, seed]
                for grid in (losses[: len(better)], losses[len(better) :])
            )
            x[half, seed] = bad - good
    return effect_of(x, sides, levels, NATS)


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
