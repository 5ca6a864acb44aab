"""Generated tasks in the report: accuracy by test length as Markdown, CSV and figure."""

import math
from pathlib import Path

import pandas as pd

from posbench.files import write_atomic
from posbench.report import tasks
from posbench.report.columns import OF_SEEDS
from posbench.report.curves import Axis, Curve, Panel, draw
from posbench.report.entries import Cell
from posbench.report.judged import pipe
from posbench.report.panels import panels_of
from posbench.report.sections import Section, sections
from posbench.report.tables import MISSING, REFUSALS, head, lines_of, notes_of

#: columns of tasks.csv
WRITTEN = [
    "data", "tokenizer", "tier", "preset", "positions", "rescale", "factor", "options",
    "train_len", "test_len", "n_seeds", "seed", "status", "chance", "accuracy", *OF_SEEDS,
    "exact",
]  # fmt: skip


def of_tasks(rows: pd.DataFrame) -> pd.Series:
    """Which rows are of tasks."""
    return rows["protocol"] == tasks.PROTOCOL


def markdown(section: Section) -> str:
    """Accuracy of every scheme and length: mean (least, median, largest), seeds that solve it."""
    body, shown = [], []
    for name, rest, entry in lines_of(section):
        texts = [_full(entry.cells.get(n)) if entry.cells else "" for n in section.lengths]
        shown += texts
        label = f"{name.lstrip().removesuffix('*')} {rest}".strip()
        body.append([f"&nbsp;&nbsp;{label}" if name.startswith(" ") else label, *texts])
    heads = ["accuracy %", *(head(section, length) for length in section.lengths)]
    facts = [note.replace("* ", "\\* ", 1) for note in notes_of(section, shown)]
    legend = "mean (least, median, largest of the seeds) and seeds that solve the length"
    title = f"**{', '.join(section.facts())}; {legend}**"
    return "\n\n".join([title, pipe(heads, body), "\n".join(f"- {fact}" for fact in facts)])


def _full(cell: Cell | None) -> str:
    """`87.1 (31.0, 93.5, 98.0) 4/5`; of one seed `87.1, exact 80.2`."""
    if cell is None:
        return MISSING
    if cell.status != "ok":
        return REFUSALS.get(cell.status, cell.status)
    if not tasks.spread(cell):
        return f"{100 * cell.accuracy:.1f}, exact {100 * cell.exact:.1f}"
    spread = ", ".join(f"{100 * value:.1f}" for value in cell.over_seeds[:3])
    return f"{100 * cell.accuracy:.1f} ({spread}) {tasks.solved(cell)}"


def write_tasks(pooled: pd.DataFrame, out: Path) -> list[str]:
    """tasks.csv and accuracy.png/.svg for what is of tasks; what was written."""
    own = pooled[of_tasks(pooled)]
    if own.empty:
        return []
    text = own.reindex(columns=WRITTEN).to_csv(index=False, lineterminator="\n")
    write_atomic(out / "tasks.csv", text.encode())
    panels = [panel for section in sections(own) for panel in _panels(section)]
    axis = Axis("test length (tokens)", "share of tokens right", True, (-0.02, 1.04))
    note = "Lines: median of the seeds; bands: least to largest. They end where a row is refused."
    draw(out / "accuracy", "Accuracy against test length", panels, axis, [note])
    return ["tasks.csv", "accuracy.{png,svg}"]


def _panels(section: Section) -> list[Panel]:
    """Accuracy by test length: the trained schemes of a task, then each with its rescalings."""
    cells = [cell for entry in section.entries for cell in entry.cells.values()]
    chance = dict(zip(["chance"], tasks.levels(cells), strict=False))
    seeds = section.counts("n_seeds") or "1"
    facts = f"tier {section.keys['tier']}, {seeds} seed{'' if seeds == '1' else 's'}"
    marks = {f"L = {section.train_shape}": float(section.train_len)}
    found = []
    for one in panels_of(section):
        curves = []
        for entry, style, label in one.lines:
            known = [(n, c) for n, c in sorted(entry.cells.items()) if not math.isnan(c.accuracy)]
            low, y, high = ([cell.over_seeds[i] for _, cell in known] for i in range(3))
            curves.append(Curve(label, style, [n for n, _ in known], y, low, high))
        title = f"{section.keys['data']}: {one.title}"
        found.append(Panel(title, facts, curves, chance, marks))
    return found
