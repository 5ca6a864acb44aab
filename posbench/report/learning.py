"""Held-out loss in training by tokens and by time: the equal-token and the equal-time view.

Of runs on the same data and training length, from their `train.jsonl`; seeds are pooled.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from posbench.files import write_atomic
from posbench.report.curves import Axis, Curve, Panel, draw, over_seeds
from posbench.report.style import scheme_style
from posbench.runs import Run
from posbench.train import LOG
from posbench.trainlog import read as read_log

#: one line per run and step with a held-out loss
COLUMNS = ["data", "train_len", "label", "preset", "seed", "run", "step", "tokens", "seconds",
           "val_loss"]  # fmt: skip
#: what the curves of a panel have in common
PANEL = ["data", "train_len", "text"]
VIEWS = {"tokens": ("equal tokens", 1e6), "seconds": ("equal time", 60.0)}
NOTE = (
    "Nats per token of validation windows. Lines: mean of the seeds; bands: least to largest. Time "
    "is that of the whole training, spread evenly over its steps, on the machine and beside the "
    "jobs that it was measured with. Where the rate falls towards the end, a curve that is cut "
    "off is not what a shorter training would reach."
)


def learning(runs: Sequence[Run], labels: Sequence[str]) -> pd.DataFrame:
    """The held-out losses of finished runs, each called by its label; COLUMNS and `text`, a hash.

    Fine-tunings are left out: their tokens begin where others end (see `extension`). `seconds` of a
    step are its share of the run's. RunError where a log is damaged.
    """
    named = {run.manifest["run_id"]: (run, label) for run, label in zip(runs, labels, strict=True)}
    chosen = [(run, label) for run, label in named.values() if "base" not in run.manifest]
    lines = [line for run, label in chosen for line in _lines(run, label)]
    return pd.DataFrame(lines, columns=[*COLUMNS, "text"])


def _lines(run: Run, label: str) -> Iterator[dict[str, Any]]:
    manifest = run.manifest
    config = manifest["config"]
    hashes = manifest.get("data") or {}
    what = {
        "text": "".join(str(hashes.get(f"{k}_sha256")) for k in ("content", "tokenizer")),
        "data": config["data"]["name"],
        "train_len": math.prod(config["data"].get("shape") or [config["train"]["seq_len"]]),
        "label": label,
        "preset": manifest["preset"],
        "seed": config["seed"],
        "run": run.path.name,
    }
    for line in read_log(run.path / LOG):
        if line.get("val_loss") is None:
            continue
        share = line["step"] / config["train"]["steps"]
        spent = {"tokens": share * manifest["tokens"], "seconds": share * manifest["seconds"]}
        yield what | {"step": line["step"], **spent, "val_loss": line["val_loss"]}


def write_learning(runs: Sequence[Run], labels: Sequence[str], out: Path) -> list[str]:
    """learning.csv and learning.png/.svg in a folder; the names of what was written."""
    table = learning(runs, labels)
    if table.empty:
        return []
    text = table[COLUMNS].to_csv(index=False, lineterminator="\n", float_format="%.10g")
    write_atomic(out / "learning.csv", text.encode())
    panels = [panel for _, group in table.groupby(PANEL, sort=True) for panel in panels_of(group)]
    axis = Axis("", "held-out loss (nats per token)", from_zero=True)
    draw(out / "learning", "Held-out loss in training", panels, axis, [NOTE], columns=len(VIEWS))
    return ["learning.csv", "learning.{png,svg}"]


def panels_of(group: pd.DataFrame) -> list[Panel]:
    """The views of runs that can be compared."""
    first = group.iloc[0]
    seeds = group["seed"].nunique()
    facts = f"L = {first['train_len']}, {seeds} seed{'' if seeds == 1 else 's'}"
    units = {"tokens": "million training tokens", "seconds": "minutes of training"}
    return [
        Panel(f"{first['data']}: {title}", facts, _curves(group, x, unit), xlabel=units[x])
        for x, (title, unit) in VIEWS.items()
    ]


def _curves(group: pd.DataFrame, x: str, unit: float) -> list[Curve]:
    """A curve for every label, the lowest loss at the end first."""
    found, presets = [], set()
    for label, own in group.groupby("label", sort=False):
        preset = own["preset"].iloc[0]
        style = scheme_style(preset if preset not in presets else f"{preset} {label}")
        presets.add(preset)
        everywhere = own.groupby("step")["run"].transform("nunique") == own["run"].nunique()
        own = own[everywhere]  # a mean of some seeds is no point of the curve
        losses = over_seeds(own, "step", "val_loss", "mean")
        at = own.groupby("step")[x].mean() / unit
        ys = (losses[name].tolist() for name in ("y", "low", "high"))
        found.append(Curve(str(label), style, [at[step] for step in losses["x"]], *ys))
    return sorted(found, key=lambda one: one.y[-1] if len(one.y) else math.inf)
