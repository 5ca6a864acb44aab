"""Medians, quartiles and ratios of timings, with intervals that assume no distribution."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class Ratio:
    """A ratio and its interval; both ends are NaN where there are too few samples for one."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def side(self) -> int:
        """-1 or 1 where the whole interval lies below or above 1, else 0."""
        return -1 if self.high < 1 else 1 if self.low > 1 else 0


def median(samples: Sequence[float]) -> float:
    """The middle sample, or the mean of the two."""
    return statistics.median(samples)


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """The first and the third, interpolated linearly (numpy's default)."""
    if len(samples) == 1:
        return samples[0], samples[0]
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return first, third


def median_interval(samples: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Interval of the median from order statistics (sign test): exact for any continuous law.

    It covers at least `level`; with fewer than 6 samples at 95 % it is the whole range, which then
    covers 1 - 2^(1-n).
    """
    n, ordered = len(samples), sorted(samples)
    below, k = 1.0, 0  # sum of binomial coefficients up to k
    while 2 * (below + math.comb(n, k + 1)) <= (1 - level) * 2**n:
        k += 1
        below += math.comb(n, k)
    return ordered[k], ordered[n - 1 - k]


def paired(samples: Sequence[float], reference: Sequence[float]) -> Ratio:
    """Median over rounds of the ratio within a round, with its interval.

    Where the two do not have the same rounds, or one only, it is the ratio of their medians,
    without one.
    """
    if len(samples) != len(reference) or len(samples) == 1:
        return Ratio(median(samples) / median(reference))
    quotients = [a / b for a, b in zip(samples, reference, strict=True)]
    return Ratio(median(quotients), *median_interval(quotients))


def between(new: Sequence[float], old: Sequence[float], level: float = LEVEL) -> Ratio:
    """Ratio of two independent sets of samples: the median of all quotients new / old.

    (Hodges & Lehmann 1963 on logarithms.) The interval is the one that belongs to the two-sided
    test of Mann and Whitney: it holds 1 exactly where that test finds no difference. Four samples
    on each side are the fewest that have one at 95 %.
    """
    quotients = sorted(a / b for a in new for b in old)
    cut = _rank(len(new), len(old), (1 - level) / 2)
    value = median(quotients)
    return Ratio(value, quotients[cut - 1], quotients[-cut]) if cut else Ratio(value)


def _rank(m: int, n: int, tail: float) -> int:
    """The largest c with P(U < c) <= tail under the null hypothesis, U being Mann and Whitney's."""
    ways = [1] + [0] * (m * n)  # coefficients of the Gaussian binomial (m + n over m)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):
            ways[u] -= ways[u - n - i]
        for u in range(i, m * n + 1):
            ways[u] += ways[u - i]
    allowed, c, below = tail * math.comb(m + n, m), 0, 0
    while c < m * n and below + ways[c] <= allowed:
        below += ways[c]
        c += 1
    return c
