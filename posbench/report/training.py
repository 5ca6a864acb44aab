"""What runs took and reached in training: for choosing optimizer, rate and number of steps."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from posbench.files import write_atomic
from posbench.report.learning import learning, write_learning
from posbench.runs import Run
from posbench.settings import changed, differing, flat, in_words

COLUMNS = ["run", "differs", "tokens", "val_loss", "seconds", "share", "tokens_per_s", "compiled"]


def training_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a finished run, the lowest validation loss first.

    `differs` are the settings that are not the same in all of them, `seconds` the wall time of the
    whole loop (validation, checkpoints and compiling included), `share` that of the slowest run.
    """
    found = _finished(runs)
    settings = differing([flat(changed(run.config)) for run in found])
    rows = [
        {
            "run": run.path.name,
            "differs": in_words(own),
            "tokens": run.manifest["tokens"],
            "val_loss": run.manifest["val_loss"],
            "seconds": run.manifest["seconds"],
            "tokens_per_s": run.manifest["tokens_per_s"],
            "compiled": bool(run.manifest.get("compiled", False)),
        }
        for run, own in zip(found, settings, strict=True)
    ]
    table = pd.DataFrame(rows, columns=COLUMNS)
    table["share"] = table["seconds"] / table["seconds"].max()
    return table.sort_values(["val_loss", "run"], ignore_index=True)


def _finished(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.status == "finished"]


def write_training(runs: Sequence[Run], out: Path) -> tuple[str, list[str]]:
    """training.csv and learning.* in a folder: the table as text, and the names of the files."""
    table, curves = training_table(runs), learning(_finished(runs))
    write_atomic(out / "training.csv", table.to_csv(index=False, lineterminator="\n"))
    files = ["training.csv", *write_learning(curves, out)]
    shown = [
        [
            row["differs"] or row["run"],
            f"{row['tokens'] / 1e6:.2f}",
            f"{row['val_loss']:.4f}",
            f"{row['seconds']:.0f}",
            f"{row['share']:.2f}",
            f"{row['tokens_per_s']:,}",
            "yes" if row["compiled"] else "no",
        ]
        for row in table.to_dict("records")
    ]
    heads = ["run", "Mtok", "val loss", "s", "share", "tok/s", "comp."]
    text = tabulate(
        shown, heads, tablefmt="plain", disable_numparse=True, maxcolwidths=[28, *[None] * 6]
    )
    return text, files
