"""The table of training: what differs, who is best, how long it took; its curves."""

import json

import pandas as pd
import pytest

from posbench import runs
from posbench.report.learning import learning, panels_of, write_learning
from posbench.report.training import training_table, write_training


@pytest.fixture
def finished(tmp_path, settings_of):
    """Three runs that differ in optimizer and rate, and one that is not finished."""

    def run(name, status="finished", optimizer="adamw", lr=0.01, **facts):
        config = settings_of("rope", train={"lr": lr, "steps": 200}, optimizer={"name": optimizer})
        manifest = runs.new_manifest(config, name, ["posbench"])
        (tmp_path / name).mkdir()
        end = facts.get("val_loss", 9.0)
        lines = [{"step": s, "val_loss": v} for s, v in ((50, None), (100, end + 1), (200, end))]
        (tmp_path / name / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return runs.Run(tmp_path / name, manifest | {"status": status, **facts})

    def facts(loss, seconds):
        return {
            "val_loss": loss,
            "seconds": seconds,
            "tokens": 2_000_000,
            "tokens_per_s": round(2e6 / seconds),
        }

    return [
        run("slow", **facts(1.5, 200.0), compiled=True),
        run("quick", optimizer="muon", lr=0.02, **facts(1.4, 120.0)),
        run("alike", optimizer="muon", **facts(1.5, 100.0)),
        run("stopped", status="interrupted"),
    ]


def test_one_row_a_finished_run_the_best_first(finished):
    table = training_table(finished)
    assert list(table["run"]) == ["quick", "alike", "slow"]
    assert list(table["share"]) == [0.6, 0.5, 1.0]
    assert list(table["compiled"]) == [False, False, True]
    assert list(table["differs"]) == [
        "optimizer=muon train.lr=0.02", "optimizer=muon train.lr=0.01", "optimizer=adamw "
        "train.lr=0.01",
    ]  # fmt: skip


def test_the_csv_is_the_table_and_the_text_fits_a_terminal(finished, tmp_path):
    text, files = write_training(finished, tmp_path)
    stored = pd.read_csv(tmp_path / "training.csv")
    pd.testing.assert_frame_equal(stored, training_table(finished))
    assert max(map(len, text.splitlines())) <= 80
    assert "0.60" in text and "stopped" not in text
    assert files == ["training.csv", "learning.csv", "learning.{png,svg}"]
    assert (tmp_path / "learning.png").stat().st_size > 10_000
    curves = pd.read_csv(tmp_path / "learning.csv").set_index(["run_id", "step"])
    # half of the steps took half of the tokens and of the time
    assert curves.loc[("quick", 100), "tokens"] == 1_000_000
    assert curves.loc[("quick", 100), "seconds"] == 60.0
    assert curves.loc[("slow", 200), ["seconds", "val_loss"]].tolist() == [200.0, 1.5]
    assert len(curves) == 6 and "stopped" not in curves.index
    # the usual settings, two of three in each, are not said
    labels = curves["label"].groupby("run_id").first().to_dict()
    assert labels == {"slow": "rope adamw", "quick": "rope lr=0.02", "alike": "rope"}


def test_seeds_are_one_curve_by_tokens_and_by_time(finished):
    seeds = [runs.Run(run.path, json.loads(json.dumps(run.manifest))) for run in finished[:2]]
    for seed, run in enumerate(seeds):
        run.manifest["config"]["seed"] = seed
    by_tokens, by_time = panels_of(learning(seeds).assign(label="rope"), {})
    (curve,) = by_tokens.curves
    assert list(curve.x) == [1.0, 2.0] and list(curve.y) == pytest.approx([2.45, 1.45])
    assert list(curve.low) == [2.4, 1.4] and list(curve.high) == [2.5, 1.5]
    assert list(by_time.curves[0].x) == pytest.approx([80 / 60, 160 / 60])
    assert "minutes" in by_time.xlabel and "2 seeds" in by_time.facts


def test_curves_are_of_what_can_be_compared(finished, tmp_path):
    slow, quick, alike, _ = finished
    quick.manifest["data"] = {"content_sha256": "another text"}
    alike.manifest["base"] = {"run_id": "slow"}
    files = write_learning(learning([slow, quick, alike, slow]), tmp_path)
    table = pd.read_csv(tmp_path / files[0])
    assert sorted(table["run_id"]) == ["quick", "quick", "slow", "slow"]
    assert set(table["label"]) == {"rope"}  # alone in its panel
    assert learning([alike]).empty and write_learning(learning([alike]), tmp_path) == []


def test_a_point_of_a_curve_is_of_all_seeds(finished):
    seeds = [runs.Run(run.path, json.loads(json.dumps(run.manifest))) for run in finished[:2]]
    log = seeds[1].path / "train.jsonl"
    log.write_text(log.read_text().replace('"step": 100', '"step": 150'))
    table = learning(seeds).assign(label="rope")
    (curve,) = panels_of(table, {})[0].curves
    assert list(curve.x) == [2.0] and list(curve.y) == pytest.approx([1.45])


def test_the_command(swept_here, monkeypatch, anywhere):
    place, _ = swept_here
    monkeypatch.chdir(place)
    done = anywhere("report", "default", "--training", "--out", "made")
    assert done.code == 0, done.err
    table = pd.read_csv(place / "made" / "training.csv")
    assert len(table) == len(list((place / "runs" / "default").glob("*/manifest.json")))
    assert table["val_loss"].is_monotonic_increasing
    done = anywhere("report", "nothing", "--training")
    assert done.code == 2 and "nothing" in done.err
