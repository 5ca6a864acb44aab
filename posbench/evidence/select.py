"""From a selection, which is data, to the losses of its documents under every seed.

A selection is a mapping. `in` names experiments; `ratio` is the test length over L; a key with a
dot is an option of the run, as in `posenc.unscaled: true`; every other key is a column of
lengths.csv. The protocol `crop` selects the reference of the unscaled runs, each token after
exactly the L before it, whatever the rest says of rescaling and length.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from posbench.errors import ConfigError
from posbench.evaluate.references import STAMP
from posbench.evidence.effect import STANDING, Effect, Floats, Levels, NotYet, measured
from posbench.report import tasks
from posbench.report.collect import model_hash

Selection = Mapping[str, Any]
CROP, WHERE = "crop", "in"
#: keys that select by the length of the test, which a crop does not have
LENGTHS = ("ratio", "test_len")
#: what a selection says unless it says otherwise
DEFAULTS: dict[str, Any] = {
    "rescale": "none",
    "factor": "",
    "options": "",
    "protocol": "same_targets",
    "data": "code",
}
PLAIN = {key: DEFAULTS[key] for key in ("rescale", "factor", "options", "protocol")}
#: what is measured -> the column of blocks.csv that is summed
MEASURES = {"nll": "nats", "accuracy": "correct"}
#: columns that tell the blocks of one row from those of another row of the run
ROW = ["eval_id", "rescale", "factor", "options", "protocol", "test_len"]


class Source(Protocol):
    """What checks read: see posbench.evidence.cells.Evidence."""

    def runs(self, name: str) -> list[Any]: ...
    def evaluated(self, name: str) -> list[Any]: ...
    def collected(self, name: str) -> Any: ...
    def manifests(self, name: str) -> list[dict[str, Any]]: ...
    def log(self, name: str) -> pd.DataFrame: ...
    def untuned(self, name: str) -> set[str]: ...


@dataclass(frozen=True)
class Selected:
    """Means [documents x seeds], tiers, mean b of the rows, and what is said in `standing`."""

    values: pd.DataFrame
    tiers: tuple[str, ...]
    b: float
    below: tuple[str, ...] = ()
    untuned: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def full(selection: Selection) -> dict[str, Any]:
    """A selection with what it leaves unsaid."""
    own = {**DEFAULTS, **selection}
    if own["protocol"] == CROP:
        own |= {**PLAIN, "protocol": CROP}
        for length in LENGTHS:
            own.pop(length, None)
    return own


def options(selection: Selection) -> dict[str, Any]:
    """Options of the run that a selection asks for."""
    return {key: value for key, value in selection.items() if "." in key}


def named(selection: Selection) -> str:
    """A selection in a few words: `rope pi@8 at 4 L`."""
    own = full(selection)
    rule = "" if own["rescale"] == "none" else str(own["rescale"])
    words = [
        own.get("preset") or " and ".join(own.get(WHERE, [])),
        rule + (f"@{own['factor']}" if own["factor"] else ""),
    ]
    words += [own["options"], *(f"{key}={value}" for key, value in options(own).items())]
    words += [own[key] if own[key] != DEFAULTS[key] else "" for key in ("protocol", "data")]
    words += [f"at {own['ratio']:g} L"] if "ratio" in own else []
    words += [f"at {own['test_len']} tokens"] if "test_len" in own else []
    return " ".join(str(word) for word in words if word)


def fits(manifest: Mapping[str, Any], selection: Selection) -> bool:
    """Whether a run has the preset and the options of a selection."""
    if manifest["preset"] != selection.get("preset", manifest["preset"]):
        return False
    for key, value in options(selection).items():
        found: Any = manifest["config"]
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found != value:
            return False
    return True


def rows_of(source: Source, selection: Selection) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    """The rows of a selection, one a seed, and the blocks of each of its experiments.

    Of `crop` any row of its runs. NotYet without runs or rows; ConfigError where the rows are of
    several configurations.
    """
    own = full(selection)
    found = [source.collected(name) for name in own[WHERE] if source.evaluated(name)]
    if not found:
        raise NotYet("no runs")
    rows = pd.concat([one.rows for one in found], ignore_index=True)
    manifests = {m["run_id"]: m for name in own[WHERE] for m in source.manifests(name)}
    chosen = {run for run, manifest in manifests.items() if fits(manifest, own)}
    rows = rows[rows["run_id"].isin(chosen)]
    columns = {key: value for key, value in own.items() if key != WHERE and "." not in key}
    if own["protocol"] == CROP:
        columns = {key: value for key, value in columns.items() if key not in PLAIN}
    for key, value in columns.items():
        if key not in rows:
            raise ConfigError(f"claims: {key} is no column of lengths.csv, nor `in`, nor an option")
        number = pd.api.types.is_numeric_dtype(rows[key])
        rows = rows[rows[key] == (value if number else str(value))]
    if rows.empty:
        raise NotYet(f"no row of {named(selection)}")
    if (models := rows["model"].nunique()) > 1:
        raise ConfigError(
            f"claims: {named(selection)} in {', '.join(own[WHERE])} fits {models} configurations; "
            "give `in`, or an option of the run"
        )
    if own["protocol"] == CROP and "b" in rows:  # any row will do, one with b is better
        rows = rows.iloc[rows["b"].notna().argsort(kind="stable")]
    rows = rows.drop_duplicates("seed", keep="last").sort_values("seed")
    return rows, [one.blocks for one in found]


def select(source: Source, selection: Selection, measure: str = "nll") -> Selected:
    """The losses in nats per token (or the accuracy) of a selection.

    NotYet where a row was refused. Documents are those that every seed has.
    """
    rows, blocks = rows_of(source, selection)
    crop, columns = full(selection)["protocol"] == CROP, {}
    for row in rows.to_dict("records"):
        if not crop and row["status"] != "ok":
            raise NotYet(f"{named(selection)}: {row['status'].replace('_', ' ')}")
        mine = pd.concat([own[own["run_id"] == row["run_id"]] for own in blocks])
        for name, value in [("protocol", CROP)] if crop else [(name, row[name]) for name in ROW]:
            mine = mine[mine[name] == value]
        if crop:  # of the evaluation that scored most, as the rows that are compared with it
            scored = mine.assign(tokens=pd.to_numeric(mine["tokens"])).groupby("eval_id")["tokens"]
            mine = mine[mine["eval_id"] == scored.sum().idxmax()] if len(mine) else mine
        mine = mine.drop_duplicates(["document", "block"])
        if mine.empty:
            raise NotYet(f"no blocks of {named(selection)}")
        sums = mine[[MEASURES[measure], "tokens"]].astype("float64")
        sums = sums.groupby(mine["document"]).sum()
        columns[row["seed"]] = sums[MEASURES[measure]] / sums["tokens"]
    b = pd.to_numeric(rows["b"], errors="coerce").mean() if "b" in rows else np.nan
    names = full(selection)[WHERE]
    of = f" of {names[0]}" if len(names) == 1 else ""
    runs = [
        (run, f"{preset}{of}") for run, preset in zip(rows["run_id"], rows["preset"], strict=True)
    ]
    return Selected(
        values=pd.concat(columns, axis=1, join="inner"),
        tiers=tuple(rows["tier"].unique()),
        b=float(b),
        **standing(source, names, runs),
    )


def standing(
    source: Source, names: Sequence[str], runs: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Which of (run id, what it is called) of these experiments decide nothing, by their names.

    `below`: a run does not pass the gate, or, in brackets, has not learned its task at L (which has
    no reference to beat) or was not evaluated. `untuned`: it is at another learning rate than the
    grid chose. `lost`: other seeds of its configuration diverged or failed, and how many.
    """
    late = set[str]().union(*(source.untuned(name) for name in names))
    passed = set[str]()
    why: dict[str, str] = {}
    for rows in (source.collected(name).rows for name in names if source.evaluated(name)):
        generated = set(rows["run_id"][rows["protocol"] == tasks.PROTOCOL])
        stamped = set(rows["run_id"][rows["stamp"].astype(str).str.contains(STAMP)])
        why |= dict.fromkeys(rows["run_id"], "")
        why |= dict.fromkeys(generated, " (its task not learned at L)")
        passed |= set(rows["run_id"]) - stamped - generated | tasks.learned(rows)
    below = [p + why.get(run, " (not evaluated)") for run, p in runs if run not in passed]
    untuned = [preset for run, preset in runs if run in late]
    return {
        "below": tuple(dict.fromkeys(below)),
        "untuned": tuple(dict.fromkeys(untuned)),
        "lost": _lost(source, names, {run for run, _ in runs}),
    }


def _lost(source: Source, names: Sequence[str], runs: Collection[str]) -> tuple[str, ...]:
    """What became of other seeds of the configurations of these runs."""
    every = {m["run_id"]: m for name in names for m in source.manifests(name)}
    gone = [m for m in every.values() if m["status"] != "finished"]
    if not gone:
        return ()

    def model(manifest: Mapping[str, Any]) -> str:
        return model_hash(manifest["config"], manifest.get("plugins"))

    ours = {model(every[run]): every[run]["preset"] for run in runs}
    counts = Counter(model(m) for m in every.values())
    lost = Counter(model(m) for m in gone)
    return tuple(
        f"{preset}: {lost[own]} of {counts[own]} seeds diverged or failed"
        for own, preset in ours.items()
        if lost[own]
    )


def paired(sides: Sequence[Selected]) -> list[Floats]:
    """Arrays [documents, seeds] of the documents and seeds that all sides have."""
    frames = [one.values for one in sides]
    seeds = sorted(set.intersection(*(set(frame.columns) for frame in frames)))
    documents = sorted(set.intersection(*(set(frame.index) for frame in frames)))
    if not seeds or not documents:
        raise NotYet("no seed or no document in common")
    return [frame.loc[documents, seeds].to_numpy("float64") for frame in frames]


def about(sides: Sequence[Selected]) -> dict[str, Any]:
    """Of the runs behind an effect: who may decide nothing (see `standing`), and the tiers."""
    return {
        name: tuple(dict.fromkeys(word for side in sides for word in getattr(side, name)))
        for name in STANDING
    }


def effect_of(x: Floats, sides: Sequence[Selected], levels: Levels, unit: str) -> Effect:
    """The mean of paired differences [documents, seeds]."""
    mean, low, high, detectable = measured(x, levels)
    return Effect(mean, low, high, x.shape[1], detectable, unit, x.shape[0], **about(sides))
