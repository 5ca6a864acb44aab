"""What a check measured, with its interval, in the direction of its claim."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from posbench.evaluate.statistics import two_way_interval
from posbench.evaluate.verdicts import POWER

Floats = npt.NDArray[np.float64]


class NotYet(Exception):
    """A check lacks what it needs: runs, a row that was not refused, a file."""


@dataclass(frozen=True)
class Effect:
    """A measured effect: positive = as claimed.

    `lo` and `hi` end its interval, nan where it has none. `detectable` is the least true effect
    that an interval of this many runs finds in 80 % of repeats. `n_seeds` is None for what has no
    seeds (timings), `n_docs` where documents do not count. `below` are presets with a run below its
    gate, `untuned` those with a run at another learning rate than the grid chose for them, `tiers`
    those of the runs; `note` is what else is to be known.
    """

    effect: float
    lo: float = math.nan
    hi: float = math.nan
    n_seeds: int | None = None
    detectable: float = math.nan
    unit: str = "nats"
    n_docs: int | None = None
    below: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    untuned: tuple[str, ...] = ()
    note: str = ""

    def mapped(self, to: Callable[[float], float], unit: str) -> "Effect":
        """In other numbers, of an increasing function."""
        numbers: dict[str, Any] = {
            name: to(getattr(self, name)) for name in ("effect", "lo", "hi", "detectable")
        }
        return replace(self, unit=unit, **numbers)

    def times(self, factor: float, unit: str) -> "Effect":
        """In another unit; a negative factor turns the direction."""
        found = self.mapped(lambda x: x * factor, unit)
        if factor > 0:
            return found
        return replace(found, lo=found.hi, hi=found.lo, detectable=-found.detectable)


def measured(x: Floats, level: float = 0.95) -> tuple[float, float, float, float]:
    """(mean, low, high, detectable) of paired differences [documents, seeds].

    detectable = the half widths of the interval and of one at 60 %, that is (t((1 + level) / 2) +
    t(0.8)) standard errors with the same degrees of freedom.
    """
    mean, low, high = two_way_interval(x, level)
    _, least_low, least_high = two_way_interval(x, 2 * POWER - 1)
    return mean, low, high, (high - low + least_high - least_low) / 2


def over_seeds(values: npt.ArrayLike, level: float = 0.95) -> tuple[float, float, float, float]:
    """As `measured`, of one number a seed."""
    return measured(np.asarray(values, dtype=np.float64)[:, None], level)


def least(effects: Sequence[Effect]) -> Effect:
    """The smallest of several effects whose intervals hold together.

    Its own runs between the smallest lower end and the smallest upper end. Seeds and documents are
    the fewest that one of them has.
    """

    def fewest(name: str) -> int | None:
        counts = [getattr(e, name) for e in effects if getattr(e, name) is not None]
        return min(counts, default=None)

    together: dict[str, Any] = {
        name: tuple(dict.fromkeys(word for e in effects for word in getattr(e, name)))
        for name in ("below", "tiers", "untuned")
    }
    return replace(
        min(effects, key=lambda e: e.effect),
        lo=float(np.min([e.lo for e in effects])),
        hi=float(np.min([e.hi for e in effects])),
        n_seeds=fewest("n_seeds"),
        n_docs=fewest("n_docs"),
        **together,
    )
