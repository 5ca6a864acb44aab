"""Fine-tunings in the report: loss at the target length by step, and what the first length lost.

Of runs that go on from another (`posbench train init=RUN`). All losses are nats per token on
validation windows (see posbench.extension), the base run's too: `aim` is its loss for the same
tokens from the last L alone, which a fine-tuning at a longer length is to reach.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from posbench.files import write_atomic
from posbench.finetune import names
from posbench.report.collect import model_hash
from posbench.report.curves import Axis, Panel, curve, draw, over_seeds
from posbench.report.judged import pipe
from posbench.report.style import RESCALINGS, Style, rescale_style, scheme_style
from posbench.runs import Run
from posbench.train import LOG
from posbench.trainlog import reached
from posbench.trainlog import read as read_log

#: columns of extension.csv: one line per run and logged step
COLUMNS = [
    "run_id", "base", "method", "seed", "train_len", "seq_len", "target", "steps", "step",
    "target_loss", "base_target_loss", "aim", "base_short_loss", "short_loss_end", "tax",
]  # fmt: skip
#: what fine-tunings in one panel have in common
PANEL = ["base", "train_len", "target"]
#: part of the steps after which the table shows the loss: 200 of PI's 1,000
EARLY = 0.2


def fine_tunings(run_dirs: Sequence[Path]) -> pd.DataFrame:
    """The log of every finished fine-tuning among the runs; COLUMNS, and `model` as in rows."""
    found = [line for path in run_dirs for line in _lines(Run.open(path))]
    table = pd.DataFrame(found, columns=[*COLUMNS, "model"])
    return _named_apart(table).sort_values(
        [*PANEL, "method", "model", "seed", "run_id", "step"], ignore_index=True
    )


def _lines(run: Run) -> Iterator[dict[str, Any]]:
    """The steps of a run whose loss at the target was taken."""
    manifest = run.manifest
    measured = manifest.get("extension")
    if "base" not in manifest or not measured:
        return
    base, method = names(manifest)
    what = {
        "run_id": manifest["run_id"],
        "base": base,
        "method": method,
        "seed": manifest["config"]["seed"],
        "train_len": measured["length"],
        "seq_len": manifest["config"]["train"]["seq_len"],
        "target": measured["target"],
        "steps": manifest["config"]["train"]["steps"],
        "base_target_loss": measured["target_loss"]["base"],
        "aim": measured.get("aim", math.nan),
        "base_short_loss": measured["short_loss"]["base"],
        "short_loss_end": measured["short_loss"]["end"],
        "tax": measured["tax"],
        "model": model_hash(manifest["config"], manifest.get("plugins")),
    }
    for line in read_log(run.path / LOG):
        if "target_loss" in line:
            yield what | {"step": line["step"], "target_loss": line["target_loss"]}


def _named_apart(table: pd.DataFrame) -> pd.DataFrame:
    """Methods of one name that differ in more: by training length, steps, or a hash."""
    renamed = {}
    for (*_, method), group in table.groupby([*PANEL, "method"]):
        models = group.drop_duplicates("model").set_index("model")
        if len(models) == 1:
            continue
        words = {"seq_len": "L", "steps": "steps"}
        shown = [name for name in words if models[name].nunique() > 1]
        for model, row in models.iterrows():
            tail = [f"{words[name]}={row[name]}" for name in shown] or [str(model)[:6]]
            renamed[str(model)] = " ".join([str(method), *tail])
    pairs = zip(table["model"], table["method"], strict=True)
    return table.assign(method=[renamed.get(model, method) for model, method in pairs])


def write_extension(run_dirs: Sequence[Path], out: Path) -> tuple[list[str], str]:
    """extension.csv and extension.png/.svg: what was written, and the table in Markdown.

    Nothing where none of the runs is a fine-tuning.
    """
    table = fine_tunings(run_dirs)
    if table.empty:
        return [], ""
    text = table[COLUMNS].to_csv(index=False, lineterminator="\n")
    write_atomic(out / "extension.csv", text.encode())
    panels = [_panel(group) for _, group in table.groupby(PANEL, sort=True)]
    note = (
        "Lines: mean of the seeds; bands: least to largest. Loss of the last L tokens of windows "
        "of validation documents, of the target length, from all that is before them; the base "
        "run also from the last L tokens alone."
    )
    axis = Axis("step of the fine-tuning", "loss at the target (nats per token)")
    draw(out / "extension", "Loss at the target length by step", panels, axis, [note])
    return ["extension.csv", "extension.{png,svg}"], markdown(table)


def _panel(group: pd.DataFrame) -> Panel:
    first = group.iloc[0]
    curves, seen = [], Counter[str]()
    for method, own in group.groupby("method", sort=True):
        rule = _rule(str(method))
        style = _style(str(method), seen[rule])
        curves.append(curve(f"{first['base']} {method}", style, _by_step(own)))
        seen[rule] += 1
    runs = group.drop_duplicates("run_id")
    levels = {
        "base run, last L tokens": _mean(runs["aim"]),
        "base run at the target": _mean(runs["base_target_loss"]),
    }
    seeds = runs["seed"].nunique()
    facts = f"L = {first['train_len']}, {seeds} seed{'' if seeds == 1 else 's'}"
    known = {name: level for name, level in levels.items() if not math.isnan(level)}
    return Panel(f"{first['base']}, target {first['target']} tokens", facts, curves, known)


def _by_step(own: pd.DataFrame) -> pd.DataFrame:
    return over_seeds(own, "step", "target_loss", "mean")


def _rule(method: str) -> str:
    """The first word of what a fine-tuning is called."""
    return re.split(r"[@. ]", method.strip().removeprefix("+"))[0]


def _style(method: str, rank: int) -> Style:
    """That of the rescaling it is trained under, for the first of them; else one of its own."""
    rule = _rule(method)
    if rule in RESCALINGS and not rank:
        return rescale_style(rule, "8")
    return scheme_style(f"fine-tuning {method}")


def _mean(values: pd.Series) -> float:
    """nan where a value is missing."""
    return float(values.astype("float64").mean(skipna=False))


def markdown(table: pd.DataFrame) -> str:
    """Per method: loss at the target before, early and at the end, steps to the base's, tax."""
    parts = []
    for _, group in table.groupby(PANEL, sort=True):
        first = group.iloc[0]
        body = [
            [f"{first['base']} {method}", *_summary(own)]
            for method, own in group.groupby("method", sort=True)
        ]
        runs = group.drop_duplicates("run_id")
        heads = ["fine-tuning", "seeds", "loss at step 0", "early", "at the end", "reaches base"]
        title = (
            f"**fine-tunings of {first['base']}, L = {first['train_len']}, loss at "
            f"{first['target']} tokens (nats per token, mean of the seeds)**"
        )
        facts = [
            f"base run: {_nats(_mean(runs['base_target_loss']))} at the target, "
            f"{_nats(_mean(runs['aim']))} for the same tokens from the last L alone, "
            f"{_nats(_mean(runs['base_short_loss']))} at L",
            "reaches base: the first logged step with a loss at the target at most the base run's "
            "from the last L tokens (median of the seeds that get there)",
            "tax: loss at L after the fine-tuning minus that of the base run",
        ]
        listed = "\n".join(f"- {fact}" for fact in facts)
        parts.append("\n\n".join([title, pipe([*heads, "tax at L"], body), listed]))
    return "\n\n".join(parts) + "\n"


def _summary(own: pd.DataFrame) -> list[str]:
    """The cells of a method."""
    runs = own.drop_duplicates("run_id")
    steps = int(runs["steps"].min())
    logged = sorted(set(own["step"]) - {0})
    early = min(logged, key=lambda step: abs(step - EARLY * steps))
    losses = [_mean(own["target_loss"][own["step"] == step]) for step in (0, early, steps)]
    arrived = [step for _, log in own.groupby("run_id") if (step := reached(log)) is not None]
    middle = f"{pd.Series(arrived).median():g}" if arrived else "not"
    share = "" if len(arrived) in (0, len(runs)) else f" ({len(arrived)}/{len(runs)})"
    texts = [_nats(losses[0]), f"{_nats(losses[1])} ({early})", f"{_nats(losses[2])} ({steps})"]
    return [str(len(runs)), *texts, middle + share, _nats(_mean(runs["tax"]), sign="+")]


def _nats(value: float, sign: str = "") -> str:
    return "-" if math.isnan(value) else f"{value:{sign}.3f}"
