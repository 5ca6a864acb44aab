"""Headroom from runs of the plan equals that of an evaluation with `eval.long`."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from posbench import launch
from posbench.evaluate import lengths, verdicts
from posbench.evaluate import plan as planning
from posbench.runs import Run


def test_a_row_is_as_with_the_longer_run_in_its_evaluation(worked: Any, tmp_path: Path) -> None:
    found = worked.evidence.collected("core")
    place = Path(worked.runs_root) / "default"
    long = {m["seed"]: m["run_id"] for m in worked.evidence.manifests("long") if is_rope(m)}
    compared = 0
    for manifest in filter(is_rope, worked.evidence.manifests("core")):
        reference = place / long[manifest["seed"]]
        sweeps = launch.sweeps(
            ["eval.lengths=[64,128]", f"eval.long={reference}", "eval.threads=1"]
        )
        run_id = manifest["run_id"]
        shutil.copytree(place / run_id, tmp_path / run_id)  # others count its evaluations
        run = Run.open(tmp_path / run_id)
        folder = lengths.evaluate(planning.plan(run, sweeps))
        own = pd.read_csv(folder / "lengths.csv").set_index("test_len")
        mine = found.rows[found.rows["run_id"] == manifest["run_id"]]
        mine = mine[mine["rescale"] == "none"].set_index("test_len")
        names = [name for name in verdicts.COLUMNS if name in own]
        for name in names:
            a, b = float(own.loc[128, name]), float(mine.loc[128, name])
            assert np.isclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True), name
        assert not math.isnan(mine.loc[128, "headroom"])
        assert math.isnan(mine.loc[64, "headroom"])
        compared += 1
    assert compared == 3


def is_rope(manifest: dict[str, Any]) -> bool:
    return bool(manifest["preset"] == "rope")


def test_pooled_headroom_is_the_mean_of_the_seeds(worked: Any) -> None:
    found = worked.evidence.collected("core")
    at = found.rows[(found.rows["test_len"] == 128) & (found.rows["status"] == "ok")]
    assert set(at["rescale"]) == {"none", "window"}
    for (preset, rule), own in at.groupby(["preset", "rescale"]):
        pooled = found.pooled
        row = pooled[(pooled["preset"] == preset) & (pooled["rescale"] == rule)]
        row = row[row["test_len"] == 128]
        assert np.isclose(row["headroom"].item(), own["headroom"].mean(), rtol=1e-9)
        assert not math.isnan(row["long_nll"].item())


def test_without_a_longer_run_there_is_none(worked: Any) -> None:
    assert worked.evidence.collected("normed").rows["headroom"].isna().all()
