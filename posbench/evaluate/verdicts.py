"""What a gain says: in units of b, against the headroom, in one word; and how far a row holds.

All on the frozen targets. b = NLL(context 16) - NLL_crop(L) is what context is worth inside L,
gain(T) = NLL_crop - NLL(T), headroom(T) = NLL_crop - NLL(T) of a run that was trained at such
lengths. Intervals are paired, over units: documents, in nats per token.

    explodes      loss above that of the n-gram model
    uses          lower end of the gain above 0.05 b
    degrades      upper end below -0.05 b
    holds         interval inside +-0.05 b
    no headroom   would be `holds`, but the headroom is less than `detectable`: with so little to
                  gain, holding says nothing
    undecided     none of these
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from posbench.data.targets import DOCUMENTS
from posbench.evaluate import statistics

#: half width of `holds` in units of b
BAND = 0.05
#: share of repeats in which an effect of the size `detectable` is found
POWER = 0.8
USES, HOLDS, DEGRADES, EXPLODES = "uses", "holds", "degrades", "explodes"
NO_HEADROOM, UNDECIDED = "no headroom", "undecided"
COLUMNS = [
    "b", "gain_b", "gain_b_lo", "gain_b_hi", "headroom", "headroom_lo", "headroom_hi",
    "detectable", "share", "share_lo", "share_hi",
]  # fmt: skip
#: what the rows of one curve have in common
FAMILY = [
    "run_id", "preset", "data", "tokenizer", "tier", "track", "train_len", "rescale", "factor",
    "options", "protocol", "targets_hash",
]  # fmt: skip
#: what a curve has in common with the unscaled one
_RUN = ["run_id", "protocol", "train_len", "targets_hash"]

Floats = npt.NDArray[np.float64]


def measured(own: Floats, crop: Floats, b: float, long: Floats | None) -> dict[str, Any]:
    """The columns of a row from the losses of its units; what cannot be said is left out.

    Losses are those of one seed [n], or of several [n, seeds]. `long` are those of the run that was
    trained at such lengths. A share is given only where the headroom is at least `detectable`.
    """
    row: dict[str, Any] = {"b": b}
    if b > 0:
        gain = statistics.two_way_interval(_crossed(crop - own))
        row |= {name: x / b for name, x in zip(COLUMNS[1:4], gain, strict=True)}
    if long is not None:
        headroom = statistics.two_way_interval(_crossed(crop - long))
        row |= dict(zip(COLUMNS[4:7], headroom, strict=True))
        row["detectable"] = detectable(crop - long)
        if row["headroom"] >= row["detectable"]:
            row |= dict(zip(COLUMNS[8:], share(crop - own, crop - long), strict=True))
    return row


def detectable(differences: Floats) -> float:
    """The least true mean of paired differences [n] or [n, seeds] that is found above or below 0.

    By a 95 % interval, in 80 % of repeats, at their standard error: (t(0.975) + t(0.8)) times it.
    nan for one unit.
    """
    from scipy.special import stdtrit

    _, variance, df = statistics.two_way(_crossed(differences))
    return float((stdtrit(df, 0.975) + stdtrit(df, POWER)) * np.sqrt(variance))


def share(gain: Floats, headroom: Floats) -> statistics.Interval:
    """(ratio of the means, low, high) of paired differences [n] or [n, seeds], as Fieller's.

    The shares s for which gain - s * headroom has a 95 % interval around 0: its variance holds both
    variances and their covariance. All nan where the headroom's own interval holds 0, since they
    have no bounds then.
    """
    from scipy.optimize import brentq

    gain, headroom = _crossed(gain), _crossed(headroom)
    mean, low, high = statistics.two_way_interval(headroom)
    if not (low > 0 or high < 0):
        return math.nan, math.nan, math.nan
    ratio = float(gain.mean()) / mean

    def outside(s: float) -> float:
        """Above 0 where the interval does not hold 0."""
        _, low, high = statistics.two_way_interval(gain - s * headroom)
        return max(low, -high)

    def end(step: float) -> float:
        """Where the interval lets go of 0, on the side of `step`."""
        while outside(ratio + step) < 0:
            step *= 2
        return float(brentq(outside, ratio, ratio + step))

    if outside(ratio) >= 0:  # gain and headroom are proportional
        return ratio, ratio, ratio
    return ratio, end(-0.1), end(0.1)


def _crossed(x: Floats) -> Floats:
    """[n] or [n, seeds] -> [n, seeds]."""
    return x.reshape(len(x), -1)


def verdict(row: dict[str, Any]) -> str:
    """The word for a row that may have one (see `may_have_one`); "" where b or intervals lack."""
    low, high = row.get("gain_b_lo", math.nan), row.get("gain_b_hi", math.nan)
    if math.isnan(low) or math.isnan(high):
        return ""
    if row["ngram_nll"] is not None and row["nll"] > row["ngram_nll"]:
        return EXPLODES
    if low > BAND:
        return USES
    if high < -BAND:
        return DEGRADES
    if not (low > -BAND and high < BAND):
        return UNDECIDED
    little = row.get("headroom", math.inf) < row.get("detectable", -math.inf)
    return NO_HEADROOM if little else HOLDS


def may_have_one(row: dict[str, Any], passed: bool) -> bool:
    """Whether a row may have a verdict: the gate, 20 documents, a length past that of training."""
    return passed and row["n_docs"] >= DOCUMENTS and row["test_len"] > row["train_len"]


def longest_within(rows: pd.DataFrame, margins: Sequence[float] = (0.01, 0.05)) -> pd.DataFrame:
    """How far the loss stays within a share of the crop loss: one line for each curve.

    `rows` as in lengths.csv, read with numbers; those without a crop reference are passed over.
    Columns: those of FAMILY, `n_seeds` and `stamp` where known, `longest` (tested), and for each
    margin `within_1%`: the longest test length such that no length from L up to it has a loss above
    (1 + margin) * crop_nll or was refused; empty where the first one is. At `longest` the true one
    may be longer. At L itself the reference is the unscaled row, where there is one: it scores all
    but one token after fewer than L, the crop none.
    """
    found = []
    plain = rows[(rows["rescale"] == "none") & (rows["test_len"] == rows["train_len"])]
    at_first = plain.set_index([name for name in _RUN if name in rows])["nll"].to_dict()
    known = [name for name in FAMILY if name in rows]
    for names, curve in rows.groupby(known, sort=False, dropna=False):
        curve = curve[curve["test_len"] >= curve["train_len"]].sort_values("test_len")
        nll, crop = curve["nll"].astype("float64"), curve["crop_nll"].astype("float64")
        if not crop.notna().any():
            continue
        line = dict(zip(known, names, strict=True))
        own = at_first.get(tuple(line[name] for name in _RUN if name in line), math.nan)
        reference = crop.mask((curve["test_len"] == curve["train_len"]) & (own == own), own)
        if "n_seeds" in curve:
            line["n_seeds"] = int(curve["n_seeds"].min())
        if "stamp" in curve:
            line["stamp"] = "; ".join(filter(None, dict.fromkeys(curve["stamp"])))
        line["longest"] = int(curve["test_len"].max())
        for margin in margins:
            within = nll <= (1 + margin) * reference
            reached = curve["test_len"][within.cummin()]
            line[f"within_{margin:.0%}"] = int(reached.max()) if len(reached) else None
        found.append(line)
    return pd.DataFrame(found, dtype=object)
