"""Sums, means and 95 % intervals; no resampling.

Every interval is over document means, of a quantity or of a paired difference: for a gain pass the
differences (same block, document and seed on both sides), never two intervals. Where the data
cannot bear an interval its ends are nan, which tables leave empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Interval = tuple[float, float, float]
Floats = npt.NDArray[np.float64]


def summed(nats: Iterable[float], counts: Iterable[float]) -> float:
    """Nats per token (or per byte): all nats summed, divided once by all counts.

    The sum is exactly rounded, so it does not depend on the order of its terms. Raises ValueError
    if nothing was counted.
    """
    total = math.fsum(counts)
    if not total > 0:
        raise ValueError("no scored tokens to average over")
    return math.fsum(nats) / total


def interval(doc_means: npt.ArrayLike, level: float = 0.95) -> Interval:
    """(mean, low, high) for one seed: Student t over the means of documents.

    doc_means: [documents], in any unit; for a gain the paired differences. With one document low
    and high are nan; with none, or with any value that is not finite, all three are.
    """
    x = np.asarray(doc_means, dtype=np.float64)
    if x.ndim != 1:
        raise ValueError(f"expected one mean per document, got an array of shape {x.shape}")
    return two_way_interval(x[:, None], level)


def two_way_interval(x: npt.ArrayLike, level: float = 0.95) -> Interval:
    """(mean, low, high) for documents crossed with seeds, both drawn at random; see `two_way`.

    Above 95 % there are at most seeds - 1 degrees of freedom: Satterthwaite's fail so far out in
    the tails (3 seeds, 99.5 %: 2 % missed instead of a half).

    x: [documents, seeds]. One document: low and high are nan, however many seeds. Any value that
    is not finite, or none at all: all three are nan.
    """
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2:
        raise ValueError(f"expected [documents, seeds], got an array of shape {x.shape}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    if not x.size or not np.isfinite(x).all():
        return math.nan, math.nan, math.nan
    mean, variance, df = two_way(x)
    if level > 0.95 and x.shape[1] > 1:
        df = np.minimum(df, x.shape[1] - 1)
    half = half_width(variance, df, level)
    return float(mean), float(mean - half), float(mean + half)


def two_way(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, variance of the mean and its degrees of freedom, for documents crossed with seeds.

    x: [..., documents, seeds], finite: the mean of each document under each seed, or the paired
    difference of two such; three arrays [...]. The variance of the grand mean is (MS_documents +
    MS_seeds - MS_residual) / (D S), with Satterthwaite's degrees of freedom. That difference can
    come out near or below 0; it is never taken to be less than the residual alone, MS_residual /
    (D S) on (D-1)(S-1) degrees of freedom. One seed: the variance of the mean over documents. One
    document: variance and degrees of freedom are nan.
    """
    docs, seeds = x.shape[-2:]
    shifted = x - x[..., :1, :1]
    offset = shifted.mean((-2, -1), keepdims=True)
    centred = shifted - offset  # exactly 0 where all values are equal
    mean = (x[..., :1, :1] + offset)[..., 0, 0]
    if docs == 1:
        return mean, np.full_like(mean, math.nan), np.full_like(mean, math.nan)
    by_doc, by_seed = centred.mean(-1, keepdims=True), centred.mean(-2, keepdims=True)
    ms_doc = seeds * _squares(by_doc) / (docs - 1)
    if seeds == 1:
        return mean, ms_doc / docs, np.full_like(mean, docs - 1)
    df_rest = (docs - 1) * (seeds - 1)
    ms_seed = docs * _squares(by_seed) / (seeds - 1)
    ms_rest = _squares(centred - by_doc - by_seed) / df_rest
    combined = ms_doc + ms_seed - ms_rest
    spread = ms_doc**2 / (docs - 1) + ms_seed**2 / (seeds - 1) + ms_rest**2 / df_rest
    df = np.divide(combined**2, spread, out=np.zeros_like(mean), where=spread > 0)
    df = np.maximum(df, min(docs, seeds) - 1)  # the subtraction may undershoot
    alone = combined <= ms_rest
    variance = np.where(alone, ms_rest, combined) / (docs * seeds)
    return mean, variance, np.where(alone, df_rest, df)


def half_width(variance: npt.ArrayLike, df: npt.ArrayLike, level: float = 0.95) -> Floats:
    """Half of a t interval around a mean with this variance."""
    from scipy.special import stdtrit  # scipy.stats would take half a second to import

    t = np.asarray(stdtrit(np.asarray(df, np.float64), 0.5 + level / 2), np.float64)
    return np.asarray(t * np.sqrt(np.asarray(variance, np.float64)), np.float64)


def p_value(mean: npt.ArrayLike, variance: npt.ArrayLike, df: npt.ArrayLike) -> Floats:
    """Two-sided p of a true mean of 0, by t; 1 for a mean of 0 without variance."""
    from scipy.special import stdtr

    mean, variance = np.asarray(mean, np.float64), np.asarray(variance, np.float64)
    without = np.where(mean == 0, 0.0, math.inf)
    t = np.divide(np.abs(mean), np.sqrt(variance), out=without, where=variance > 0)
    return np.asarray(np.where(np.isnan(variance), math.nan, 2 * stdtr(df, -t)))


def holm(p: npt.ArrayLike) -> Floats:
    """p values [n] corrected for being n tests (Holm, Scand. J. Stat. 6, 1979); nan stays nan.

    The r-th smallest, counted from 0, times n - r; none below a smaller one's, none above 1.
    """
    p = np.asarray(p, np.float64)
    corrected = np.full_like(p, math.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    steps = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    corrected[order] = np.minimum(steps, 1.0)
    return corrected


def n_effective(weights: npt.ArrayLike) -> float:
    """Kish's effective number of equally weighted units: (sum w)^2 / sum w^2; 0 without weight.

    Raises ValueError for a weight that is negative or not finite.
    """
    w = np.asarray(weights, dtype=np.float64)
    if not np.isfinite(w).all() or (w < 0).any():
        raise ValueError("weights must be finite and not negative")
    if not w.any():
        return 0.0
    w = w / w.max()
    return float(w.sum() ** 2 / np.sum(w**2))


def _squares(x: Floats) -> Floats:
    """Sum of squares over documents and seeds."""
    return np.asarray(np.sum(x**2, (-2, -1)))
