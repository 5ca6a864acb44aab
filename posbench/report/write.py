"""Write everything that `posbench report` leaves in a folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from posbench.files import write_atomic
from posbench.report.collect import Collected, collect
from posbench.report.figures import perplexity_figure, ratio_figure
from posbench.report.markdown import markdown_table
from posbench.report.pictures import gathered, write_pictures


@dataclass
class Report(Collected):
    """What a report is made of, and the names of its pictures."""

    pictures: list[str] = field(default_factory=list)


def write_report(run_dirs: Sequence[Path], out: Path) -> Report:
    """Collect the runs and write lengths.csv, lengths.md, perplexity.* and ratio.* into `out`.

    For runs on pictures or clips also `pictures*.png`. The CSV has a row per run and seed, at full
    precision; the table and the figures show seeds pooled. Equal input gives equal bytes. RunError
    as in `collect`, or for damaged pictures, before anything is written.
    """
    collected = collect(run_dirs)
    groups = gathered(collected, run_dirs)
    table = markdown_table(collected.pooled)
    if collected.skipped:
        gaps = [f"- {name}: {why}" for name, why in sorted(collected.skipped.items())]
        table += "\nNot in the table:\n\n" + "\n".join(gaps) + "\n"
    text = collected.rows[collected.columns].to_csv(index=False, lineterminator="\n")
    write_atomic(out / "lengths.csv", text.encode())
    write_atomic(out / "lengths.md", table.encode())
    perplexity_figure(collected.pooled, out / "perplexity")
    ratio_figure(collected.pooled, out / "ratio")
    return Report(**vars(collected), pictures=write_pictures(groups, out))
