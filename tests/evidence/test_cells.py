"""Cells: what is kept of a run, and that it reads as the run does."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from posbench import runs
from posbench.evidence.cells import Cells
from posbench.evidence.plan import Evaluation
from posbench.report.collect import collect

FILES = {
    "manifest.json",
    "train.jsonl",
    "evals/#/manifest.json",
    "evals/#/lengths.csv",
    "evals/#/blocks.csv.gz",
    "evals/#/positions.csv",
}


def of(worked: Any, preset: str) -> tuple[list[Path], list[Path]]:
    """The cells of a preset in `core`, and the runs that they are of."""
    cells = [path for path in worked.evidence.runs("core") if path.name.startswith(preset)]
    return cells, [Path(worked.runs_root) / "default" / path.name for path in cells]


def test_a_cell_reads_as_the_run_does(worked: Any) -> None:
    for preset in ("rope", "alibi"):
        cells, folders = of(worked, preset)
        assert len(cells) == 3
        kept, whole = collect(cells), collect(folders)
        pd.testing.assert_frame_equal(kept.rows, whole.rows)
        numbers = kept.pooled.drop(columns="members")
        pd.testing.assert_frame_equal(numbers, whole.pooled.drop(columns="members"), rtol=1e-12)
        assert len(kept.blocks) < len(whole.blocks)


def test_a_cell_is_small_and_has_no_checkpoint(worked: Any) -> None:
    for folder in worked.cells.folder.iterdir():
        paths = [path for path in folder.rglob("*") if path.is_file()]
        names = {path.relative_to(folder).as_posix() for path in paths}
        hashes = {path.name for path in folder.glob("evals/*")}
        shown = {"/".join("#" if p in hashes else p for p in n.split("/")) for n in names}
        assert shown >= FILES and shown <= FILES | {
            "evals/#/distances.csv",
            "evals/#/attention.csv",
        }, shown
        assert sum(path.stat().st_size for path in paths) < 100_000


def test_sums_are_those_of_a_loop_over_the_blocks(worked: Any) -> None:
    cells, folders = of(worked, "rope")
    (evaluation,) = cells[0].glob("evals/*")
    sums: dict[tuple[str, ...], list[float]] = {}
    written = pd.read_csv(
        folders[0] / "evals" / evaluation.name / "blocks.csv", keep_default_na=False, dtype=str
    )
    for block in written.to_dict("records"):
        place = tuple(block[n] for n in ("rescale", "options", "protocol", "test_len", "document"))
        total = sums.setdefault(place, [0.0, 0, 0, 0])
        for i, name in enumerate(("nats", "tokens", "bytes", "correct")):
            total[i] += float(block[name])
    text = gzip.decompress((evaluation / "blocks.csv.gz").read_bytes()).decode()
    lines = text.splitlines()
    assert lines[0].split(",") == list(written.columns)
    kept = pd.read_csv(evaluation / "blocks.csv.gz", keep_default_na=False, dtype=str)
    assert len(kept) == len(sums) < len(written)
    for line in kept.to_dict("records"):
        place = tuple(line[n] for n in ("rescale", "options", "protocol", "test_len", "document"))
        found = [float(line[name]) for name in ("nats", "tokens", "bytes", "correct")]
        assert found == pytest.approx(sums.pop(place), rel=1e-12)
        assert line["block"] == "0"
    assert not sums


def test_the_log_keeps_what_was_measured_on_held_out_text(worked: Any) -> None:
    log = worked.evidence.log("tuned")
    assert set(log["seed"]) == {0, 1} and set(log["rescale"]) == {"pi"}
    for _, own in log.groupby("run_id"):
        assert list(own["step"]) == [0, 2, 4]
        assert own["target_loss"].notna().all()
    core = worked.evidence.log("core")
    assert set(core["preset"]) == {"rope", "alibi"} and (core["step"] == 20).all()
    for line in core.to_dict("records"):
        manifest = worked.cells.manifest(line["run_id"])
        assert line["val_loss"] == manifest["val_loss"]


def test_adding_again_keeps_what_is_there_and_joins_experiments(
    worked: Any, tmp_path: Path
) -> None:
    _, folders = of(worked, "rope")
    run = runs.Run.open(folders[0])
    (evaluation,) = (path.name for path in folders[0].glob("evals/*"))
    cells = Cells(tmp_path)
    assert cells.manifest(run.path.name) is None and not cells.has(run.path.name)
    one, two = Evaluation(("rescale=none",)), Evaluation(("rescale=window",))
    cells.add(run, "first", asked={evaluation: [one.key]})
    cells.add(run, "second", asked={evaluation: [two.key]})
    cells.join(run.path.name, "third")
    for same in (cells, Cells(tmp_path)):
        assert same.of("first") == same.of("second") == same.of("third") == [run.path.name]
        assert same.has(run.path.name, [one, two])
        assert not same.has(run.path.name, [Evaluation(("rescale=pi",))])
        assert set(same.asked(run.path.name)) == {one.key, two.key}
        assert same.find(run.path.name) == run.path.name and same.find("else") is None
    content = json.loads((tmp_path / run.path.name / "manifest.json").read_text())
    assert "argv" not in content and "argv" in run.manifest


def test_other_weights_take_the_place_of_the_rows(worked: Any, tmp_path: Path) -> None:
    _, folders = of(worked, "rope")
    shutil.copytree(folders[0], tmp_path / "run")
    run = runs.Run.open(tmp_path / "run")
    (evaluation,) = (path.name for path in folders[0].glob("evals/*"))
    one = Evaluation(("rescale=none",))
    cells = Cells(tmp_path / "cells")
    cells.add(run, "first", asked={evaluation: [one.key]})
    run.update(weights_sha256="1" * 64)
    cells.add(run, "second", asked={})
    assert not cells.has(folders[0].name, [one])
    assert cells.of("first") == [folders[0].name]
    assert not list(cells.folder_of(folders[0].name).glob("evals/*"))


def test_equal_rows_are_equal_bytes(worked: Any, tmp_path: Path) -> None:
    _, folders = of(worked, "alibi")
    run = runs.Run.open(folders[1])
    for place in ("a", "b"):
        Cells(tmp_path / place).add(run, "core")
    found = [sorted((tmp_path / place).rglob("*.*")) for place in ("a", "b")]
    assert [p.read_bytes() for p in found[0] if p.is_file()] == [
        p.read_bytes() for p in found[1] if p.is_file()
    ]


def test_an_experiment_has_its_own_rows_only(
    worked: Any, make_experiment: Callable[..., Any]
) -> None:
    evidence = worked.evidence
    found = evidence.collected("normed")
    assert set(found.rows["run_id"]) == {path.name for path in evidence.runs("normed")}
    assert len(evidence.runs("normed")) == 2 and len(evidence.runs("core")) == 6
    assert all(m["config"]["model"]["qk_norm"] for m in evidence.manifests("normed"))
    few = make_experiment("core", ["posenc=rope"], ("eval.lengths=[64]",))
    evidence.experiments["core"], before = few, evidence.experiments["core"]
    assert evidence.evaluated("core") == []
    evidence.experiments["core"] = before


def test_the_report_takes_the_cells(
    worked: Any, anywhere: Callable[..., Any], tmp_path: Path
) -> None:
    cells, _ = of(worked, "alibi")
    done = anywhere("report", *map(str, cells), f"--out={tmp_path}")
    assert done.code == 0, done.err
    assert (tmp_path / "lengths.csv").is_file()
