"""Write everything that `posbench report` leaves in a folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from posbench.evaluate.verdicts import longest_within
from posbench.files import write_atomic
from posbench.report import accuracy, distances, extension
from posbench.report.collect import Collected, collect
from posbench.report.compare import compared
from posbench.report.figures import perplexity_figure, ratio_figure
from posbench.report.markdown import markdown_table
from posbench.report.matrix import matrix_figure
from posbench.report.pictures import gathered, write_pictures
from posbench.report.pooling import medians, seeds_of


@dataclass
class Report(Collected):
    """What a report is made of, and the names of its files."""

    files: list[str] = field(default_factory=list)


def write_report(run_dirs: Sequence[Path], out: Path) -> Report:
    """Collect the runs and write tables and figures into `out`.

    lengths.csv has a row per run and seed, verdicts.csv the pooled ones, both at full precision;
    within.csv how far each curve holds, pairs.csv every comparison. lengths.md and the figures show
    seeds pooled; matrix.* only where two entries can be compared past L; for tasks tasks.csv and
    accuracy.* in the place of perplexities, for probes distances.*, for fine-tunings extension.*,
    for pictures and clips `pictures*.png`. Equal input gives equal bytes. RunError as in `collect`,
    or for damaged pictures, before anything is written.
    """
    collected = collect(run_dirs)
    groups = gathered(collected, run_dirs)
    rows, pooled = collected.rows, collected.pooled
    pairs = compared(pooled, collected.losses)
    table = markdown_table(pooled, pairs)
    if collected.skipped:
        gaps = [f"- {name}: {why}" for name, why in sorted(collected.skipped.items())]
        table += "\nNot in the table:\n\n" + "\n".join(gaps) + "\n"
    columns = [*collected.columns, "nll_median", "n_seeds"]
    rows = rows.assign(nll_median=medians(rows, collected.losses), n_seeds=seeds_of(rows))
    tables = {
        "lengths.csv": rows[columns],
        "verdicts.csv": pooled[columns],
        "within.csv": longest_within(pooled[pooled["windows_hash"] == ""]),
        "pairs.csv": pairs,
    }
    for name, frame in tables.items():
        _write(frame, out / name, "%.6g" if name == "pairs.csv" else None)
    by_distance, more = distances.write_distances(collected, run_dirs, out)
    of_tuning, last = extension.write_extension(run_dirs, out)
    table += "".join(f"\n{part}" for part in (more, last) if part)
    write_atomic(out / "lengths.md", table.encode())
    text = pooled[~accuracy.of_tasks(pooled)]
    figures = ["perplexity", "ratio"] if len(text) else []
    for name, draw in zip(figures, (perplexity_figure, ratio_figure), strict=False):
        draw(text, out / name)
    figures += ["matrix"] if matrix_figure(pooled, pairs, out / "matrix") else []
    files = [*tables, "lengths.md", *(f"{name}.{{png,svg}}" for name in figures)]
    files += accuracy.write_tasks(pooled, out) + by_distance + of_tuning
    return Report(**vars(collected), files=files + write_pictures(groups, out))


def _write(frame: pd.DataFrame, path: Path, floats: str | None) -> None:
    """A CSV; without columns it is empty."""
    text = frame.to_csv(index=False, lineterminator="\n", float_format=floats)
    write_atomic(path, text.encode())
