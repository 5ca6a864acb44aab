"""The learning rate of every scheme: the best multiple of the base rate, from the plan's grid.

Chosen by the validation loss at L alone. A scheme is decided once every multiple of the grid was
trained (or diverged); until then its trainings take the base rate.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from posbench.settings import BASE_RATE

if TYPE_CHECKING:
    from posbench.evidence.cells import Cells

#: the experiment that is the grid
GRID = "rates"
#: multiples of the base rate that a scheme is tried at
MULTIPLES = (0.5, 1.0, 2.0, 4.0)
COLUMNS = ["preset", "data", "multiple", "lr", "val_loss", "status", "best"]


def table(cells: "Cells") -> pd.DataFrame:
    """One line a run of the grid; `best` is 1 for the chosen one of a complete scheme."""
    lines = []
    for run_id in cells.of(GRID):
        manifest = cells.manifest(run_id) or {}
        config = manifest["config"]
        loss = manifest.get("val_loss") if manifest["status"] == "finished" else None
        lines.append(
            {
                "preset": manifest["preset"],
                "data": config["data"]["name"],
                "multiple": multiple(config),
                "lr": config["train"]["lr"],
                "val_loss": math.nan if loss is None else loss,
                "status": manifest["status"],
                "best": 0,
            }
        )
    found = pd.DataFrame(lines, columns=COLUMNS).sort_values(["data", "preset", "multiple"])
    for _, own in found.groupby(["data", "preset"]):
        if set(own["multiple"]) >= set(MULTIPLES) and own["val_loss"].notna().any():
            found.loc[own["val_loss"].idxmin(), "best"] = 1
    return found.reset_index(drop=True)


def multiple(config: Mapping[str, Any]) -> float:
    """A run's learning rate over the base rate of its width; `config` as in its manifest."""
    return round(config["train"]["lr"] * config["model"]["d_model"] / BASE_RATE, 6)


def best(cells: "Cells") -> dict[str, float]:
    """Preset -> the multiple of the base rate that it is trained with, of decided schemes."""
    found = table(cells)
    chosen = found[found["best"] == 1]
    return dict(zip(chosen["preset"], chosen["multiple"], strict=True))
