"""What runs took and reached in training: for choosing optimizer, rate and number of steps."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from posbench.files import write_atomic
from posbench.runs import Run
from posbench.settings import changed, flat

COLUMNS = ["run", "differs", "tokens", "val_loss", "seconds", "share", "tokens_per_s", "compiled"]


def training_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a finished run, the lowest validation loss first.

    `differs` are the settings that are not the same in all of them, `seconds` the wall time of the
    whole loop (validation, checkpoints and compiling included), `share` that of the slowest run.
    """
    found = [run for run in runs if run.status == "finished"]
    settings = [flat(changed(run.config)) for run in found]
    keys = sorted({k for one in settings for k in one})
    vary = [k for k in keys if len({str(one.get(k)) for one in settings}) > 1]
    rows = [
        {
            "run": run.path.name,
            "differs": " ".join(f"{k}={one[k]}" for k in vary if k in one),
            "tokens": run.manifest["tokens"],
            "val_loss": run.manifest["val_loss"],
            "seconds": run.manifest["seconds"],
            "tokens_per_s": run.manifest["tokens_per_s"],
            "compiled": bool(run.manifest.get("compiled", False)),
        }
        for run, one in zip(found, settings, strict=True)
    ]
    table = pd.DataFrame(rows, columns=COLUMNS)
    table["share"] = table["seconds"] / table["seconds"].max()
    return table.sort_values(["val_loss", "run"], ignore_index=True)


def write_training(runs: Sequence[Run], out: Path) -> str:
    """training.csv in a folder, and the table as text."""
    table = training_table(runs)
    write_atomic(out / "training.csv", table.to_csv(index=False, lineterminator="\n"))
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
    return tabulate(
        shown, heads, tablefmt="plain", disable_numparse=True, maxcolwidths=[28, *[None] * 6]
    )
