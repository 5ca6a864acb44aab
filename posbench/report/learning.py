"""Held-out loss in training by tokens and by time: the equal-token and the equal-time view.

Of runs on the same data and training length, from their `train.jsonl`; seeds are pooled.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from posbench.files import write_atomic
from posbench.report import names
from posbench.report.collect import identity_of
from posbench.report.curves import Axis, Curve, Panel, draw, over_seeds
from posbench.report.sections import records
from posbench.runs import Run
from posbench.settings import digest, flat
from posbench.train import LOG
from posbench.trainlog import read as read_log

#: of learning.csv: one line per run and step with a held-out loss
COLUMNS = ["data", "train_shape", "label", "preset", "seed", "run_id", "step", "tokens", "seconds",
           "val_loss"]  # fmt: skip
#: what the curves of a panel have in common
PANEL = ["data", "train_shape", "text"]
#: column -> title, what the axis says, its unit
VIEWS = {
    "tokens": ("equal tokens", "million training tokens", 1e6),
    "seconds": ("equal time", "minutes of training", 60.0),
}
NOTE = (
    "Nats per token of validation windows. Lines: mean of the seeds; bands: least to largest. Time "
    "is that of the whole training, spread evenly over its steps, on the machine and beside the "
    "jobs that it was measured with. Where the rate falls towards the end, a curve that is cut "
    "off is not what a shorter training would reach."
)


def learning(runs: Sequence[Run]) -> pd.DataFrame:
    """The held-out losses of finished runs, a line each; `model` and `settings` as in `Collected`.

    Fine-tunings are left out: their tokens begin where others end (see `extension`). `seconds` of a
    step are its share of the run's. RunError where a log is damaged.
    """
    every = {run.manifest["run_id"]: run for run in runs if "base" not in run.manifest}
    return pd.DataFrame([line for run in every.values() for line in _lines(run)])


def _lines(run: Run) -> Iterator[dict[str, Any]]:
    manifest = run.manifest
    config, hashes = manifest["config"], manifest.get("data") or {}
    identity = identity_of(config, manifest.get("plugins"))
    shape = config["data"].get("shape") or [config["train"]["seq_len"]]
    what = {
        "text": "".join(str(hashes.get(f"{k}_sha256")) for k in ("content", "tokenizer")),
        "data": config["data"]["name"],
        "train_shape": "x".join(map(str, shape)),
        "preset": manifest["preset"],
        "positions": (config.get("positions") or {}).get("name", ""),
        "model": digest(identity),
        "settings": json.dumps(flat(identity)),
        "seed": config["seed"],
        "run_id": manifest["run_id"],
    }
    for line in read_log(run.path / LOG):
        if line.get("val_loss") is None:
            continue
        share = line["step"] / config["train"]["steps"]
        spent = {"tokens": share * manifest["tokens"], "seconds": share * manifest["seconds"]}
        yield what | {"step": line["step"], **spent, "val_loss": line["val_loss"]}


def write_learning(table: pd.DataFrame, out: Path) -> list[str]:
    """learning.csv and learning.png/.svg in a folder, of what `learning` gives.

    The names of what was written; nothing where there is no loss.
    """
    if table.empty:
        return []
    parts, panels, notes = [], list[Panel](), [NOTE]
    for _, group in table.groupby(PANEL, sort=True):
        firsts = records(group.drop_duplicates("model"))
        called, variants = names.names_of(firsts)
        labels = {first["model"]: called[first["run_id"]] for first in firsts}
        parts.append(group.assign(label=group["model"].map(labels)))
        panels += panels_of(parts[-1], variants)
        notes += names.lines_of(variants)
    text = pd.concat(parts)[COLUMNS].to_csv(index=False, lineterminator="\n", float_format="%.10g")
    write_atomic(out / "learning.csv", text.encode())
    axis = Axis("", "held-out loss (nats per token)", from_zero=True)
    draw(out / "learning", "Held-out loss in training", panels, axis, notes, columns=len(VIEWS))
    return ["learning.csv", "learning.{png,svg}"]


def panels_of(group: pd.DataFrame, variants: Mapping[str, names.Variant]) -> list[Panel]:
    """The views of runs that can be compared, each with its `label`."""
    first = group.iloc[0]
    seeds = group["seed"].nunique()
    facts = f"L = {first['train_shape']}, {seeds} seed{'' if seeds == 1 else 's'}"
    return [
        Panel(f"{first['data']}: {title}", facts, _curves(group, x, unit, variants), xlabel=xlabel)
        for x, (title, xlabel, unit) in VIEWS.items()
    ]


def _curves(
    group: pd.DataFrame, x: str, unit: float, variants: Mapping[str, names.Variant]
) -> list[Curve]:
    """A curve for every label, the lowest loss at the end first."""
    found = []
    for label, own in group.groupby("label", sort=False):
        name = str(label)
        everywhere = own.groupby("step")["run_id"].transform("nunique") == own["run_id"].nunique()
        own = own[everywhere]  # a mean of some seeds is no point of the curve
        losses = over_seeds(own, "step", "val_loss", "mean")
        at = own.groupby("step")[x].mean() / unit
        ys = (losses[column].tolist() for column in ("y", "low", "high"))
        style = names.style_of(group["preset"][group["label"] == label].iloc[0], name, variants)
        found.append(Curve(name, style, [at[step] for step in losses["x"]], *ys))
    return sorted(found, key=lambda one: one.y[-1] if len(one.y) else math.inf)
