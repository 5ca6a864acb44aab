"""Seeds of one configuration as one row: two-way intervals, gain, headroom, and the verdict anew.

The losses behind every row are at hand by unit (document, or block where documents are few), so
that intervals are paired by unit and seed, in the table as in comparisons between schemes.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from posbench.errors import RunError
from posbench.evaluate import protocols, verdicts
from posbench.evaluate.rows import BLOCKWISE, perplexity
from posbench.evaluate.statistics import two_way_interval
from posbench.report import tasks
from posbench.report.columns import COUNTS, IDENTITY, PLACE, PROBES, SHOWN, SOURCE
from posbench.report.sections import LONG, records, sorted_rows, stamp_parts

#: seeds that verdicts of a tier need
SEEDS = {"evidence": 3}
#: columns of which several seeds have the mean: those that carry no interval of their own
MEANS = [
    "crop_nll", "base_nll", "ngram_nll", "mean_context", "scale", "bpb", "b", *PROBES[:3],
    "train_seconds",
]  # fmt: skip
#: columns that several seeds have only where all of them were measured
MEASURED = [
    "nll", "nll_lo", "nll_hi", "ppl", "bpb", "gain", "gain_lo", "gain_hi", *PROBES,
    *verdicts.COLUMNS,
]  # fmt: skip
#: what the rows of one configuration have in common
FAMILY = ["preset", "model"]
CURVE = [*FAMILY, *(name for name in IDENTITY if name != "run_id")]

Floats = npt.NDArray[np.float64]
Place = tuple[Any, ...]


class Losses:
    """Nats per token of the units of every scored cell: see `of`."""

    def __init__(self, rows: pd.DataFrame, blocks: pd.DataFrame) -> None:
        """`rows` and `blocks` as in `Collected`."""
        mine = blocks.merge(rows[[*SOURCE, "interval_over"]].drop_duplicates(SOURCE), on=SOURCE)
        blockwise = mine["interval_over"].isin(BLOCKWISE)
        # only probes at a distance have several cells of one name; tasks draw one for each window
        probes = mine["protocol"] == protocols.REPEAT
        mine["distance"] = mine["distance"].where(probes, "")
        mine["block"] = mine["block"].where(blockwise, 0)
        place = [*PLACE, "distance"]
        units = mine.groupby([*place, "document", "block"], sort=True)
        sums = units[["nats", "tokens"]].sum()
        losses = sums["nats"] / sums["tokens"].astype("float64")
        levels: list[Any] = list(range(len(place)))
        self._found: dict[Place, pd.Series] = {}
        parts: Any = losses.groupby(level=levels, sort=False)
        for name, part in parts:
            self._found[name] = part.droplevel(levels)
            self._found.setdefault((*name[:-1], ""), self._found[name])

    def of(self, row: dict[str, Any], **other: Any) -> pd.Series | None:
        """Losses by unit of a row's cell, or of one that differs from it; None if unknown."""
        where = {**row, **other}
        return self._found.get(tuple(where[name] for name in [*PLACE, "distance"]))

    def reference(self, row: dict[str, Any], protocol: str) -> pd.Series | None:
        """As `of`, for the unscaled model or another one: `crop`, or `trained_long` at a length."""
        plain = {"rescale": "none", "factor": "", "options": "", "distance": ""}
        if protocol == "crop":
            plain |= {"test_len": row["train_len"], "test_shape": row["train_shape"]}
        return self.of(row, protocol=protocol, **plain)


def aligned(*kinds: Sequence[pd.Series | None]) -> list[Floats] | None:
    """Losses of some kinds, each by seed -> an array [units, seeds] of each, over common units.

    None where one is not known.
    """
    columns = [one for kind in kinds for one in kind if one is not None]
    if len(columns) < sum(map(len, kinds)) or not columns:
        return None
    first = columns[0].index
    if first.is_monotonic_increasing and all(first.equals(one.index) for one in columns):
        values = np.stack([one.to_numpy(dtype="float64") for one in columns], axis=1)
    else:
        table = pd.concat(columns, axis=1, join="inner").sort_index()
        values = table.to_numpy(dtype="float64")
    return list(np.split(values, len(kinds), axis=1))


def pool(rows: pd.DataFrame, losses: Losses) -> pd.DataFrame:
    """One row per configuration, rescaling, protocol and length.

    A single seed keeps its own numbers; fewer than the tier asks for have no verdict. A stamp on
    any row of any seed stays on all of them. New columns: `n_seeds`, `nll_median` over units and
    seeds, those of `tasks.over_seeds`, `long_nll`, `long_lo`, `long_hi` of the run that was trained
    longer, and `members`: (seed, row) of each seed.
    """
    joined = {}
    for key, group in rows.groupby(FAMILY, sort=False):
        seeds = group.drop_duplicates("run_id").sort_values(["seed", "run_id"])
        joined[key] = {
            "run_id": "+".join(seeds["run_id"]),
            "seed": "+".join(str(seed) for seed in seeds["seed"]),
            "stamp": "; ".join(stamp_parts(group["stamp"])),
        }
    every, pooled = dict(zip(rows.index, records(rows), strict=True)), []
    for key, own in rows.groupby(CURVE, sort=False)["seed"]:
        each = [every[i] for i in own[~own.duplicated(keep="last")].index]
        row = {**(each[0] if len(each) == 1 else _several(each, losses)), **joined[key[:2]]}
        row["n_seeds"] = len(each)
        row |= tasks.over_seeds(each)
        if few := _too_few(row):
            row |= {"stamp": "; ".join(stamp_parts([row["stamp"], few])), "verdict": ""}
        row["members"] = tuple((seed["seed"], _place(seed)) for seed in each)
        pooled.append(row | _beside(row, each, losses))
    frame = pd.DataFrame(pooled)
    for name in COUNTS:
        if name != "seed":
            frame[name] = frame[name].astype("Int64")
    return sorted_rows(frame)


def seeds_of(rows: pd.DataFrame) -> pd.Series:
    """How many seeds the pooled row of each row has."""
    return rows.groupby(CURVE, sort=False, dropna=False)["seed"].transform("nunique").astype(int)


def medians(rows: pd.DataFrame, losses: Losses) -> list[float]:
    """Median loss over units of each row of one seed; nan where it was refused."""
    found = (losses.of(row) if row["status"] == "ok" else None for row in records(rows))
    return [math.nan if one is None else float(one.median()) for one in found]


def _place(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in [*PLACE, "distance"]}


def _too_few(row: dict[str, Any]) -> str:
    """The stamp of a tier that asks for more seeds."""
    n, least = row["n_seeds"], SEEDS.get(row["tier"], 1)
    return f"{n} seed{'' if n == 1 else 's'} of {least}" if n < least else ""


def _known(seeds: list[dict[str, Any]], name: str) -> list[float]:
    """What the seeds have in a column, of those that have something."""
    return [seed[name] for seed in seeds if not pd.isna(seed[name])]


def _several(seeds: list[dict[str, Any]], losses: Losses) -> dict[str, Any]:
    """One row for several seeds: means and two-way intervals over units crossed with seeds."""

    def all_have(name: str) -> bool:
        return len(_known(seeds, name)) == len(seeds)

    row = dict(seeds[-1])
    for name in MEANS:
        values = _known(seeds, name)
        row[name] = float(np.mean(values)) if values else math.nan
    row |= {"n_eff": float(min(_known(seeds, "n_eff"), default=math.nan)), "verdict": ""}
    row["n_docs"] = min(_known(seeds, "n_docs"), default=pd.NA)
    row |= dict.fromkeys([name for name in MEASURED if name not in MEANS], math.nan)
    if refused := [seed["status"] for seed in seeds if seed["status"] != "ok"]:
        # a mean over the seeds that survived would hide the failure
        return {**row, **dict.fromkeys(MEASURED, math.nan), "status": refused[0]}
    mine = [losses.of(seed) for seed in seeds]
    if (found := aligned(mine)) is None or not found[0].size:
        raise RunError(f"blocks.csv holds no block that all seeds of {row['preset']} scored")
    row["nll"], row["nll_lo"], row["nll_hi"] = two_way_interval(found[0])
    row["ppl"] = perplexity(row["nll"])
    crop = [losses.reference(seed, "crop") for seed in seeds]
    if all_have("gain") and (pair := aligned(mine, crop)):
        row["gain"], row["gain_lo"], row["gain_hi"] = two_way_interval(pair[1] - pair[0])
        if all_have("b"):
            sound = all(seed.get("long_passed", True) for seed in seeds)
            three = aligned(mine, crop, _long(seeds, losses)) if sound else None
            row |= _judged(row, pair, three)
            if verdicts.may_have_one(row, all(seed["passed"] for seed in seeds)):
                row["verdict"] = verdicts.verdict(row)
    control = [losses.of(seed, protocol="control", distance="") for seed in seeds]
    if all_have("repeat_gain") and (pair := aligned(mine, control)):
        gain = two_way_interval(pair[1] - pair[0])
        row |= dict(zip(PROBES[3:], gain, strict=True))
    return row


def _long(seeds: list[dict[str, Any]], losses: Losses) -> list[pd.Series | None]:
    return [losses.reference(seed, LONG) for seed in seeds]


def _judged(row: dict[str, Any], pair: list[Floats], three: list[Floats] | None) -> dict[str, Any]:
    """Gain in units of b, headroom and share of pooled losses, as of one seed's."""
    own, crop = pair
    if three is None:
        return verdicts.measured(own, crop, row["b"], None)
    return verdicts.measured(three[0], three[1], row["b"], three[2])


def _beside(row: dict[str, Any], seeds: list[dict[str, Any]], losses: Losses) -> dict[str, Any]:
    """The median loss, and the loss of the run that was trained longer."""
    found = dict.fromkeys(["nll_median", *SHOWN[1:]], math.nan)
    if row["status"] != "ok":
        return found
    if mine := aligned([losses.of(seed) for seed in seeds]):
        found["nll_median"] = float(np.median(mine[0]))
    if row["b"] == row["b"] and (long := aligned(_long(seeds, losses))):
        found |= dict(zip(SHOWN[1:], two_way_interval(long[0]), strict=True))
    return found
