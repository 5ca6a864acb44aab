"""The tables of the evidence, against numbers made by hand from the runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from posbench.evidence import rates, tables
from posbench.evidence.cells import Cells, Evidence


@pytest.fixture(scope="module")
def out(worked: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    names = tables.write(worked.evidence, folder, 1, worked.runs_root)
    assert sorted(names) == sorted(path.name for path in folder.iterdir())
    return folder


def document_means(worked: Any, run_id: str, rule: str, length: int) -> "pd.Series[float]":
    """Nats per token of every document, from the run's own blocks."""
    (path,) = (Path(worked.runs_root) / "default" / run_id / "evals").glob("*/blocks.csv")
    blocks = pd.read_csv(path)
    own = blocks[(blocks["protocol"] == "same_targets") & (blocks["rescale"] == rule)]
    sums = own[own["test_len"] == length].groupby("document")[["nats", "tokens"]].sum()
    return sums["nats"] / sums["tokens"]


def test_verdicts_have_every_row_of_text_with_its_seeds(worked: Any, out: Path) -> None:
    found = pd.read_csv(out / "verdicts.csv")
    assert list(found.columns[:2]) == ["experiment", "rate"] and found.columns[-1] == "n_seeds"
    assert set(found["experiment"]) == {"core", "long", "normed", "tuned"}
    core = found[found["experiment"] == "core"]
    assert len(core) == 2 * 2 * 2 and (core["n_seeds"] == 3).all()
    assert (found["rate"] == "base").all()
    row = core[(core["preset"] == "rope") & (core["rescale"] == "none")]
    runs = [m["run_id"] for m in worked.evidence.manifests("core") if m["preset"] == "rope"]
    means = [document_means(worked, run_id, "none", 128).mean() for run_id in runs]
    assert np.isclose(row[row["test_len"] == 128]["nll"].item(), np.mean(means), rtol=1e-9)


def test_references_are_those_of_the_rows(out: Path) -> None:
    found = pd.read_csv(out / "references.csv")
    rows = pd.read_csv(out / "verdicts.csv")
    assert set(found["reference"]) >= {"crop", "window", "ngram", "trained_long"}
    long = rows[(rows["experiment"] == "long") & (rows["preset"] == "alibi")]
    mine = found[(found["reference"] == "trained_long") & (found["preset"] == "alibi")]
    assert list(mine["test_len"]) == [128]
    assert np.isclose(mine["nll"].item(), long[long["test_len"] == 128]["nll"].item(), rtol=1e-9)
    assert not found.duplicated(["experiment", "preset", "test_len", "reference"]).any()


def test_sensitivity_is_the_paired_difference_of_common_seeds(worked: Any, out: Path) -> None:
    found = pd.read_csv(out / "sensitivity.csv")
    assert set(found["experiment"]) == {"normed"} and (found["n_seeds"] == 2).all()
    assert set(found["against"]) == {"core"}
    row = found[(found["rescale"] == "none") & (found["test_len"] == 128)]
    ids = {
        name: {
            m["seed"]: m["run_id"] for m in worked.evidence.manifests(name) if m["preset"] == "rope"
        }
        for name in ("normed", "core")
    }
    pairs = [
        document_means(worked, ids["normed"][seed], "none", 128)
        - document_means(worked, ids["core"][seed], "none", 128)
        for seed in (0, 1)
    ]
    table = pd.concat(pairs, axis=1)
    assert np.isclose(row["difference"].item(), table.to_numpy().mean(), rtol=1e-9)
    assert row["lo"].item() < row["difference"].item() < row["hi"].item()
    assert np.isclose(row["nll"] - row["nll_without"], row["difference"], atol=0.2).all()


def test_probes_show_the_distribution_over_seeds(worked: Any, out: Path) -> None:
    found = pd.read_csv(out / "probes.csv").set_index("test_len")
    assert list(found.index) == [64, 128] and set(found["data"]) == {"copy"}
    accuracies = []
    for manifest in worked.evidence.manifests("tasks"):
        run = Path(worked.runs_root) / "default" / manifest["run_id"]
        (path,) = run.glob("evals/*/lengths.csv")
        own = pd.read_csv(path)
        accuracies.append(own[own["test_len"] == 128]["accuracy"].item())
    line = found.loc[128]
    assert line["n_seeds"] == len(accuracies) == 3
    low, middle, high = sorted(accuracies)
    assert (line["least"], line["median"], line["largest"]) == (low, middle, high)
    assert np.isclose(line["accuracy"], sum(accuracies) / 3) and line["solved"] == 0
    assert line["learned"] == line["exact"] == 0 and 0 < line["chance"] < 0.1


def test_probes_by_distance_add_up_to_the_tables_accuracy(worked: Any, out: Path) -> None:
    found = pd.read_csv(out / "distances.csv")
    found = found[found["test_len"] == 128]
    assert set(found["experiment"]) == {"tasks"} and (found["n_seeds"] == 3).all()
    totals = []
    for manifest in worked.evidence.manifests("tasks"):
        run = Path(worked.runs_root) / "default" / manifest["run_id"]
        (path,) = run.glob("evals/*/distances.csv")
        own = pd.read_csv(path)
        own = own[own["test_len"] == 128]
        totals.append((own["correct"] / own["tokens"]).to_numpy())
    assert np.allclose(found["accuracy"], np.mean(totals, axis=0))
    assert np.allclose(found["accuracy_max"], np.max(totals, axis=0))


def test_schemes_are_compared_as_in_a_report(worked: Any, out: Path) -> None:
    text = (out / "verdicts.md").read_text()
    assert text.startswith("**tier demo, same_targets, text")
    within = pd.read_csv(out / "within.csv").set_index(["preset", "rescale"])
    assert set(within.index.get_level_values("preset")) == {"rope", "alibi"}
    assert (within["longest"] == 128).all() and (within["n_seeds"] == 3).all()
    assert pd.read_csv(out / "pairs.csv").empty  # no row at 4 or 16 L


def test_a_solved_length_counts_by_seeds(worked: Any, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(worked.cells.folder, tmp_path / "cells")
    own = Evidence(Cells(tmp_path / "cells"), worked.experiments)
    for share, folder in zip(("0.95", "0.9", "0.89"), own.runs("tasks"), strict=True):
        (path,) = folder.glob("evals/*/lengths.csv")
        rows = pd.read_csv(path, dtype=str, keep_default_na=False)
        rows["exact"] = share
        rows["accuracy"] = np.where(rows["test_len"] == "64", share, "0.99")
        rows.to_csv(path, index=False)
    found = tables.probes(own)
    assert found["solved"].tolist() == pytest.approx([2 / 3, 2 / 3])
    assert found["learned"].tolist() == pytest.approx([2 / 3, 2 / 3])
    assert found["exact"].tolist() == pytest.approx([2.74 / 3, 2.74 / 3])
    assert found["accuracy"].tolist() == pytest.approx([2.74 / 3, 0.99])


def test_extension_has_the_curve_and_the_tax(worked: Any, out: Path) -> None:
    found = pd.read_csv(out / "extension.csv")
    assert list(found["step"]) == [0, 2, 4] and (found["n_seeds"] == 2).all()
    curves, taxes = [], []
    for manifest in worked.evidence.manifests("tuned"):
        run = Path(worked.runs_root) / "default" / manifest["run_id"]
        lines = map(json.loads, (run / "train.jsonl").read_text().splitlines())
        known = {line["step"]: line.get("target_loss") for line in lines}
        curves.append([known[step] for step in (0, 2, 4)])
        stored = json.loads((run / "manifest.json").read_text())["extension"]["short_loss"]
        taxes.append(stored["end"] - stored["base"])
    assert np.allclose(found["target_loss"], np.mean(curves, axis=0), rtol=1e-12)
    assert np.allclose(found["largest"], np.max(curves, axis=0), rtol=1e-12)
    assert found["tax"].isna().tolist() == [True, True, False]
    assert np.isclose(found["tax"].iloc[-1], np.mean(taxes), rtol=1e-9)
    aims = [m["extension"]["aim"] for m in worked.evidence.manifests("tuned")]
    assert (found["target"] == 128).all() and np.allclose(found["aim"], np.mean(aims))


def test_status_counts_runs_and_what_is_missing(worked: Any, out: Path, tmp_path: Path) -> None:
    text = (out / "status.md").read_text()
    assert "| core | 6 | 3 | 0 | 0 |" in text and "| tuned | 2 | 2 | 0 | 0 |" in text
    assert "19 runs are in, 0 are missing" in text and "all at the base rate" in text
    empty = Evidence(Cells(tmp_path / "none"), worked.experiments)
    lines = tables.status(empty, tmp_path, 1, str(tmp_path)).splitlines()
    assert "| core | 0 | 0 | 6 | 0 | a test |" in lines
    (tmp_path / "claims.csv").write_text("id,verdict\nS01,holds\nS02,undecided\nS03,holds\n")
    text = tables.status(empty, tmp_path, 1, str(tmp_path))
    assert "Claims: 3, of which 2 holds, 1 undecided." in text


def test_an_empty_folder_gives_empty_tables(worked: Any, tmp_path: Path) -> None:
    empty = Evidence(Cells(tmp_path / "none"), worked.experiments)
    tables.write(empty, tmp_path, 1, str(tmp_path))
    for path in tmp_path.glob("*.csv"):
        assert len(pd.read_csv(path)) == 0 and len(pd.read_csv(path).columns) > 5


class Grid(Cells):
    """Cells of a grid of rates that never were trained."""

    def __init__(self, runs: list[tuple[str, float, float | None]]):
        self.content = {
            f"run{i}": {
                "run_id": f"run{i}",
                "preset": preset,
                "status": "diverged" if loss is None else "finished",
                "val_loss": loss,
                "config": {
                    "model": {"d_model": 64},
                    "train": {"lr": multiple * 0.6 / 64},
                    "data": {"name": "sotu"},
                },
            }
            for i, (preset, multiple, loss) in enumerate(runs)
        }

    def of(self, experiment: str) -> list[str]:
        return list(self.content) if experiment == rates.GRID else []

    def manifest(self, run_id: str) -> Any:
        return self.content[run_id]


def test_the_best_rate_is_chosen_once_all_were_tried() -> None:
    rope = [("rope", 0.5, 2.0), ("rope", 1.0, 1.8), ("rope", 2.0, 1.7), ("rope", 4.0, None)]
    alibi = [("alibi", 0.5, 1.0), ("alibi", 1.0, 2.0), ("alibi", 2.0, 3.0)]
    assert rates.best(Grid([*rope, *alibi])) == {"rope": 2.0}
    assert rates.best(Grid(rope[:3])) == {}
    assert rates.best(Grid([*rope, *alibi, ("alibi", 4.0, 4.0)])) == {"rope": 2.0, "alibi": 0.5}
    assert rates.best(Grid([])) == {}


def test_rows_say_where_their_rate_is_from(worked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "best", lambda cells: {"rope": 1.0, "alibi": 2.0})
    found = tables.verdicts(worked.evidence)
    found = found[found["experiment"] == "core"]
    assert dict(zip(found["preset"], found["rate"], strict=True)) == {
        "rope": "grid",
        "alibi": "base",
    }
    late = worked.evidence.untuned("core")
    assert {run.split("-")[0] for run in late} == {"alibi"} and len(late) == 3
    assert worked.evidence.untuned("tuned") == set()
    monkeypatch.setattr(rates, "BASE_RATE", 0.3)
    found = tables.verdicts(worked.evidence)
    found = found[found["experiment"] == "core"].set_index("preset")["rate"]
    assert set(found["alibi"]) == {"grid"} and set(found["rope"]) == {"given"}
