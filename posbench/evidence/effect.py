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
#: of the lower and of the upper end of an interval: an end is that of an interval at its level
Levels = tuple[float, float]
EVEN: Levels = (0.95, 0.95)
#: unit of a ratio, in which a bound and what is detectable multiply
TIMES = "times"
#: of an effect's runs, in words that all of its sides add to
STANDING = ("below", "tiers", "untuned", "lost")


class NotYet(Exception):
    """A check lacks what it needs: runs, a row that was not refused, a file."""


@dataclass(frozen=True)
class Effect:
    """A measured effect: positive = as claimed.

    `lo` and `hi` end its interval, nan where it has none. `detectable` is the least true effect
    that an interval of this many runs finds in 80 % of repeats. `n_seeds` is None for what has no
    seeds (timings), `n_docs` where documents do not count. `below` are presets with a run below its
    gate, `untuned` those with a run at another learning rate than the grid chose for them, `lost`
    says how many seeds diverged or failed, `tiers` are those of the runs; `note` is what else is to
    be known.
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
    lost: tuple[str, ...] = ()
    note: str = ""

    def beyond(self, bound: float) -> float:
        """The least true effect that is found beyond a bound: by `detectable`, or so many times."""
        return bound * self.detectable if self.unit == TIMES else bound + self.detectable

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


def measured(x: Floats, levels: Levels = EVEN) -> tuple[float, float, float, float]:
    """(mean, low, high, detectable) of paired differences [documents, seeds].

    detectable = how far the lower end and that of an interval at 60 % are from the mean, that is
    (t((1 + level) / 2) + t(0.8)) standard errors with the same degrees of freedom.
    """
    mean, low, _ = two_way_interval(x, levels[0])
    high = two_way_interval(x, levels[1])[2]
    return mean, low, high, mean - low + mean - two_way_interval(x, 2 * POWER - 1)[1]


def over_seeds(values: npt.ArrayLike, levels: Levels = EVEN) -> tuple[float, float, float, float]:
    """As `measured`, of one number a seed."""
    return measured(np.asarray(values, dtype=np.float64)[:, None], levels)


def together(levels: Levels, n: int) -> Levels:
    """Levels of each of n effects, so that their `least` has an interval at `levels`.

    The lower ends need no correction: the smallest of them is above the smallest true effect only
    where that effect's own is. An upper end below it may be any of the n (Bonferroni).
    """
    return levels[0], 1 - (1 - levels[1]) / n


def least(effects: Sequence[Effect]) -> Effect:
    """The smallest of several effects, measured at levels that are `together`.

    Its interval runs between the smallest lower end and the smallest upper end. Seeds and documents
    are the fewest that one of them has, `detectable` is the largest.
    """

    def fewest(name: str) -> int | None:
        counts = [getattr(e, name) for e in effects if getattr(e, name) is not None]
        return min(counts, default=None)

    words: dict[str, Any] = {
        name: tuple(dict.fromkeys(word for e in effects for word in getattr(e, name)))
        for name in STANDING
    }
    return replace(
        min(effects, key=lambda e: e.effect),
        lo=float(np.min([e.lo for e in effects])),
        hi=float(np.min([e.hi for e in effects])),
        detectable=float(np.max([e.detectable for e in effects])),
        n_seeds=fewest("n_seeds"),
        n_docs=fewest("n_docs"),
        **words,
    )
