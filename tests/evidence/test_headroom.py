"""Headroom from runs of the plan equals that of an evaluation with `eval.long`."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from posbench import launch
from posbench.evaluate import lengths, verdicts
from posbench.evaluate import plan as planning
from posbench.evidence import headroom
from posbench.report.collect import Collected
from posbench.runs import Run


@pytest.fixture(scope="module")
def found(worked: Any) -> Collected:
    """The main runs, as if those trained longer had been trained enough."""
    evidence = worked.evidence
    long = evidence.collected("long")
    sound = replace(long, rows=long.rows.assign(passed=True))
    return headroom.joined(evidence.collected("core"), [sound])


def test_a_row_is_as_with_the_longer_run_in_its_evaluation(
    worked: Any, found: Collected, tmp_path: Path
) -> None:
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


def test_pooled_headroom_is_the_mean_of_the_seeds(found: Collected) -> None:
    at = found.rows[(found.rows["test_len"] == 128) & (found.rows["status"] == "ok")]
    assert set(at["rescale"]) == {"none", "window"}
    for (preset, rule), own in at.groupby(["preset", "rescale"]):
        pooled = found.pooled
        row = pooled[(pooled["preset"] == preset) & (pooled["rescale"] == rule)]
        row = row[row["test_len"] == 128]
        assert np.isclose(row["headroom"].item(), own["headroom"].mean(), rtol=1e-9)
        assert not math.isnan(row["long_nll"].item())


def test_a_longer_run_below_its_gate_tells_of_no_headroom(worked: Any) -> None:
    """These were trained for a few steps; their loss is shown all the same."""
    evidence = worked.evidence
    assert not evidence.collected("long").rows["passed"].any()
    found = evidence.collected("core")
    past = found.pooled[(found.pooled["test_len"] == 128) & (found.pooled["status"] == "ok")]
    assert past["long_nll"].notna().all() and (past["long_preset"] == past["preset"]).all()
    assert not past["long_passed"].any()
    for rows in (found.rows, found.pooled):
        assert rows["headroom"].isna().all() and not rows["verdict"].eq("no headroom").any()


def test_a_preset_whose_longer_runs_pass_stands_in_for_one_whose_do_not(worked: Any) -> None:
    evidence = worked.evidence
    long = evidence.collected("long")
    passed = long.rows["preset"].eq("alibi")
    found = headroom.joined(
        evidence.collected("core"), [replace(long, rows=long.rows.assign(passed=passed))]
    )
    past = found.pooled[(found.pooled["test_len"] == 128) & (found.pooled["status"] == "ok")]
    assert set(past["long_preset"]) == {"alibi"} and past["headroom"].notna().all()


def test_without_a_longer_run_there_is_none(worked: Any) -> None:
    assert worked.evidence.collected("normed").rows["headroom"].isna().all()
