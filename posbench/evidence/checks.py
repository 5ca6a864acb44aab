"""Checks of claims that compare losses: named, general functions of selections, which are data.

Each takes the evidence and the arguments of an entry of claims.yaml and returns an Effect that is
positive in the direction its docstring says; `levels` are those of the ends of its interval. NotYet
where runs or rows are missing. Checks that choose, and those of exact facts: `choices` and `facts`.
"""

import math
from collections.abc import Sequence

from posbench.evidence.effect import EVEN, TIMES, Effect, Levels, NotYet, least, together
from posbench.evidence.select import Selected, Selection, Source, effect_of, paired, select

#: units of a loss: as it is, or divided by what context is worth inside L
NATS, B = "nats", "b"


def difference(
    source: Source,
    better: Selection,
    worse: Selection,
    measure: str = "nll",
    unit: str = NATS,
    levels: Levels = EVEN,
) -> Effect:
    """How much lower the loss (or higher the accuracy) of `better` is, paired by document and seed.

    unit `b`: the loss divided by the mean b of the rows of `worse`, or else of `better`: a run that
    was trained longer is measured in the b of the one it is compared with.
    """
    sides = [select(source, one, measure) for one in (better, worse)]
    good, bad = paired(sides)
    if measure == "accuracy":
        return effect_of(good - bad, sides, levels, measure)
    found = effect_of(bad - good, sides, levels, NATS)
    return _in_b(found, sides) if unit == B else found


def _in_b(found: Effect, sides: Sequence[Selected]) -> Effect:
    """An effect in units of the mean b of the last of the sides that has one."""
    b = next((side.b for side in reversed(sides) if math.isfinite(side.b)), math.nan)
    if not b > 0:
        raise NotYet("b is not known, or not above 0")
    return found.times(1 / b, B)


def contrast(
    source: Source,
    better: Selection,
    worse: Selection,
    than: Sequence[Selection],
    unit: str = NATS,
    levels: Levels = EVEN,
) -> Effect:
    """By how much more `better` is better than `worse` than the first of `than` than the second.

    A difference of two differences in loss, paired by document and seed: what a control shows too
    does not count. unit `b` as in `difference`.
    """
    sides = [select(source, one) for one in (better, worse, *than)]
    good, bad, plain, reference = paired(sides)
    found = effect_of((bad - good) - (reference - plain), sides, levels, NATS)
    return _in_b(found, sides[:2]) if unit == B else found


def value(
    source: Source, row: Selection, measure: str = "accuracy", levels: Levels = EVEN
) -> Effect:
    """The accuracy (or the loss) itself."""
    side = select(source, row, measure)
    unit = NATS if measure == "nll" else measure
    return effect_of(paired([side])[0], [side], levels, unit)


def ratio(source: Source, above: Selection, below: Selection, levels: Levels = EVEN) -> Effect:
    """Perplexity of `above` over that of `below`: exp of the mean difference and of its ends."""
    found = difference(source, below, above, levels=levels)
    return found.mapped(lambda x: math.exp(x) if x < 700 else math.inf, TIMES)


def ordering(
    source: Source, order: Sequence[Selection], measure: str = "nll", levels: Levels = EVEN
) -> Effect:
    """The weakest link of a row of selections: by how much each is better than the next."""
    own = together(levels, len(order) - 1)
    links = zip(order, order[1:], strict=False)
    return least([difference(source, a, b, measure, levels=own) for a, b in links])


def best(
    source: Source,
    first: Selection,
    others: Sequence[Selection],
    measure: str = "nll",
    levels: Levels = EVEN,
) -> Effect:
    """By how much `first` is better than the best of the others."""
    own = together(levels, len(others))
    return least([difference(source, first, other, measure, levels=own) for other in others])


def jump(
    source: Source,
    smooth: Selection,
    rough: Selection,
    ratios: Sequence[float],
    levels: Levels = EVEN,
) -> Effect:
    """Largest rise between neighbouring lengths: that of `rough` less that of `smooth`.

    Of each where the mean over documents and seeds rises most.
    """
    curves = [[select(source, {**one, "ratio": r}) for r in ratios] for one in (smooth, rough)]
    every = [side for curve in curves for side in curve]
    arrays = paired(every)
    steps = []
    for losses in (arrays[: len(ratios)], arrays[len(ratios) :]):
        rises = [after - before for before, after in zip(losses, losses[1:], strict=False)]
        steps.append(max(rises, key=lambda rise: float(rise.mean())))
    return effect_of(steps[1] - steps[0], every, levels, NATS)
