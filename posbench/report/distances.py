"""Probes by how far back the source of an answer lies: accuracy of tasks, gain of a repeat.

From the distances.csv of the evaluations behind the rows. Seeds are pooled; buckets are as there:
none holds distances both within and beyond the training length.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from posbench.evaluate.distances import FILE
from posbench.files import write_atomic
from posbench.report.collect import Collected, factor_text, read_table
from posbench.report.columns import RULE, SOURCE
from posbench.report.curves import Axis, Panel, curve, draw, over_seeds
from posbench.report.entries import rescale_label
from posbench.report.judged import pipe
from posbench.report.names import run_name
from posbench.report.sections import records
from posbench.report.style import rescale_style, scheme_style
from posbench.report.tables import MISSING
from posbench.report.tasks import PROTOCOL

#: what a row of the evaluation says of its lines
FACTS = ["data", "tokenizer", "tier", "train_len", "preset", "positions", "base", "model", "seed"]
SUMS = ["windows", "nats", "tokens", "correct", "exact", "control_nats"]
BUCKET = ["test_len", "distance_lo", "distance_hi"]
#: what the lines of one panel have in common
PANEL = ["data", "tokenizer", "tier", "train_len", "protocol"]
CURVE = [*PANEL, "preset", "positions", "base", "model", *RULE]
#: lengths of tasks are shown up to this many times L: beyond it most fail at any distance
SHOWN = 4


def by_distance(collected: Collected, run_dirs: Sequence[Path]) -> pd.DataFrame:
    """One line per configuration, length, bucket and seed: sums, `nll`, `accuracy`, and `gain`.

    `nll` and `gain` are in nats per token, `gain` of `repeat` alone. Empty where nothing has
    distances.
    """
    rows = collected.rows.drop_duplicates([*SOURCE, *RULE, "protocol", "test_len"])
    kept = set(rows["eval_id"])
    every = (path.resolve() for run in run_dirs for path in Path(run).glob(f"evals/*/{FILE}"))
    folders = {path for path in every if path.parent.name in kept}
    found = []
    for path in sorted(folders):
        lines = read_table(path, ["run_id", *RULE, "protocol", *BUCKET, *SUMS[:-1]])
        lines = lines.assign(eval_id=path.parent.name)
        lines["factor"] = [factor_text(text) for text in lines["factor"]]
        for name in [*BUCKET, *SUMS]:
            lines[name] = pd.to_numeric(lines.get(name, math.nan))
        found.append(lines)
    if not found:
        return pd.DataFrame()
    keys = [*SOURCE, *RULE, "protocol", "test_len"]
    known = pd.concat(found).merge(rows[[*keys, *FACTS]], on=keys)
    sums = known.groupby([*CURVE, "seed", *BUCKET], sort=True)[SUMS].sum(min_count=1).reset_index()
    sums["nll"] = sums["nats"] / sums["tokens"]
    sums["accuracy"] = sums["correct"] / sums["tokens"]
    sums["gain"] = (sums["control_nats"] - sums["nats"]) / sums["tokens"]
    return sums


def pooled(lines: pd.DataFrame) -> pd.DataFrame:
    """Seeds as one line: mean, least, largest of `nll`, `accuracy` and `gain`, and `n_seeds`."""
    groups = lines.groupby([*CURVE, *BUCKET], sort=False)
    found = groups.agg(n_seeds=("seed", "nunique"), windows=("windows", "sum"))
    for name in ("nll", "accuracy", "gain"):
        found[[name, f"{name}_min", f"{name}_max"]] = groups[name].agg(["mean", "min", "max"])
    return found.reset_index()


def write_distances(
    collected: Collected, run_dirs: Sequence[Path], out: Path
) -> tuple[list[str], str]:
    """distances.csv and distances.png/.svg: what was written, and the tables in Markdown."""
    lines = by_distance(collected, run_dirs)
    if lines.empty:
        return [], ""
    text = pooled(lines).drop(columns="model").to_csv(index=False, lineterminator="\n")
    write_atomic(out / FILE, text.encode())
    parts = [(_chosen(group), group) for _, group in lines.groupby(PANEL, sort=True)]
    shown = [group[group["test_len"].isin(lengths)] for lengths, group in parts]
    panels = [_panel(group) for group in shown]
    axis = Axis("tokens back to the source (end of the bucket)", "accuracy or gain", True)
    notes = [
        "Tasks: share of tokens right. Repeat: loss without the earlier copy minus the loss with "
        "it, nats per token. Lines: median of the seeds; bands: least to largest."
    ]
    draw(out / "distances", "By distance of the source", panels, axis, notes)
    tables = "\n".join(_markdown(group) for group in shown)
    return [FILE, "distances.{png,svg}"], tables


def _chosen(group: pd.DataFrame) -> list[int]:
    """The test lengths of a panel: one, or all where each has one distance."""
    lengths = sorted({int(length) for length in group["test_len"]})
    buckets = {n: group["distance_hi"][group["test_len"] == n].nunique() for n in lengths}
    several = [length for length in lengths if buckets[length] > 1]
    if not several:
        return lengths
    if group["protocol"].iloc[0] != PROTOCOL:
        return [max(several, key=lambda length: (buckets[length], length))]
    near = [length for length in several if length <= SHOWN * group["train_len"].iloc[0]]
    return [max(near or several[:1])]


def _value(group: pd.DataFrame) -> str:
    return "accuracy" if group["protocol"].iloc[0] == PROTOCOL else "gain"


def _curves(group: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Name and lines of every configuration."""
    found = []
    for _, own in group.groupby(CURVE, sort=False):
        first = records(own)[0]
        rule = f"{rescale_label(first['rescale'], first['factor'])} {first['options']}".strip()
        found.append((f"{run_name(first)} {'' if rule == 'none' else rule}".strip(), own))
    return found


def _panel(group: pd.DataFrame) -> Panel:
    first, curves = group.iloc[0], []
    for name, own in _curves(group):
        rule = own[RULE].iloc[0]
        plain = rule["rescale"] == "none"
        style = scheme_style(own["preset"].iloc[0]) if plain else rescale_style(*rule)
        curves.append(curve(name, style, over_seeds(own, "distance_hi", _value(group))))
    marks = {f"L = {first['train_len']}": float(first["train_len"])}
    seeds = group["seed"].nunique()
    facts = f"{_lengths(group)}, {seeds} seed{'' if seeds == 1 else 's'}"
    return Panel(f"{first['data']}: {first['protocol']}, {_value(group)}", facts, curves, {}, marks)


def _lengths(group: pd.DataFrame) -> str:
    lengths = sorted(set(group["test_len"]))
    return f"T = {lengths[0]}" if len(lengths) == 1 else f"T = {lengths[0]} to {lengths[-1]}"


def _markdown(group: pd.DataFrame) -> str:
    """Mean over seeds of a panel's lines, buckets as columns."""
    first, value = group.iloc[0], _value(group)
    buckets = sorted(set(zip(group["distance_lo"], group["distance_hi"], strict=True)))
    body = []
    for name, own in _curves(group):
        means = own.groupby(["distance_lo", "distance_hi"])[value].mean()
        texts = [
            MISSING if bucket not in means.index else _text(means[bucket]) for bucket in buckets
        ]
        body.append([name, *texts])
    heads = [f"{low:.0f}-{high:.0f}" for low, high in buckets]
    what = "share of tokens right" if value == "accuracy" else "gain of the copy, nats per token"
    title = (
        f"**tier {first['tier']}, {first['protocol']}, {first['data']} {first['tokenizer']}, "
        f"L = {first['train_len']}, {_lengths(group)}: {what} by tokens back to the source**"
    )
    return f"{title}\n\n{pipe([value, *heads], body)}\n"


def _text(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.2f}"
