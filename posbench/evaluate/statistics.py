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
    _check_level(level)
    if not len(x) or not np.isfinite(x).all():
        return math.nan, math.nan, math.nan
    mean, centred = _centred(x)
    if len(x) == 1:
        return mean, math.nan, math.nan
    df = len(x) - 1
    return _around(mean, float(np.sum(centred**2)) / df / len(x), df, level)


def two_way_interval(x: npt.ArrayLike, level: float = 0.95) -> Interval:
    """(mean, low, high) for documents crossed with seeds, both drawn at random.

    x: [documents, seeds], the mean of each document under each seed; for a gain the paired
    differences. The variance of the grand mean is (MS_documents + MS_seeds - MS_residual) / (D S),
    with Satterthwaite's degrees of freedom. That difference can come out near or below 0; it is
    never taken to be less than the residual alone, MS_residual / (D S) on (D-1)(S-1) degrees of
    freedom. One seed: as `interval`. One document: low and high are nan, however many seeds. Any
    value that is not finite, or none at all: all three are nan.
    """
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2:
        raise ValueError(f"expected [documents, seeds], got an array of shape {x.shape}")
    _check_level(level)
    if not x.size or not np.isfinite(x).all():
        return math.nan, math.nan, math.nan
    docs, seeds = x.shape
    if seeds == 1:
        return interval(x[:, 0], level)
    mean, centred = _centred(x)
    if docs == 1:
        return mean, math.nan, math.nan
    by_doc = centred.mean(axis=1, keepdims=True)
    by_seed = centred.mean(axis=0, keepdims=True)
    df_doc, df_seed, df_rest = docs - 1, seeds - 1, (docs - 1) * (seeds - 1)
    ms_doc = seeds * float(np.sum(by_doc**2)) / df_doc
    ms_seed = docs * float(np.sum(by_seed**2)) / df_seed
    ms_rest = float(np.sum((centred - by_doc - by_seed) ** 2)) / df_rest
    combined = ms_doc + ms_seed - ms_rest
    if combined <= ms_rest:
        return _around(mean, ms_rest / (docs * seeds), df_rest, level)
    spread = ms_doc**2 / df_doc + ms_seed**2 / df_seed + ms_rest**2 / df_rest
    df = max(combined**2 / spread, min(df_doc, df_seed))  # the subtraction may undershoot
    return _around(mean, combined / (docs * seeds), df, level)


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


def _centred(x: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
    """Mean, and values minus mean: exactly 0 where all values are equal."""
    shifted = x - x.flat[0]
    offset = float(shifted.mean())
    return float(x.flat[0]) + offset, shifted - offset


def _around(mean: float, variance: float, df: float, level: float) -> Interval:
    from scipy.special import stdtrit  # scipy.stats would take half a second to import

    half = float(stdtrit(df, 0.5 + level / 2)) * math.sqrt(variance)
    return mean, mean - half, mean + half


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
