"""Probes by distance in the report: pooled over seeds, no bucket across L, tables and figures."""

from pathlib import Path

import pandas as pd
import pytest

from posbench.evaluate.distances import COLUMNS
from posbench.report import distances
from posbench.report.collect import collect
from posbench.report.write import write_report

from .conftest import PLAIN, Runs

CURVE: list[float | str] = [27.0, 24.5, 26.3, 29.8, 38.3, 46.9]
BUCKETS = [(65, 90), (91, 128), (129, 181), (182, 256)]


def add(runs: Runs, protocol: str, lines: list[tuple[float, ...]], seed: int = 0) -> Path:
    """A run with a distances.csv: (test_len, lo, hi, windows, nats, tokens, correct, control)."""
    changes = {"protocol": protocol}
    changes |= {"windows_hash": "t", "data": "copy"} if protocol == "generated" else {}
    run = runs.add("rope", {PLAIN: CURVE}, seed=seed, **changes)
    (folder,) = run.glob("evals/*")
    made = [
        dict.fromkeys(COLUMNS, "")
        | {"run_id": run.name, "rescale": "none", "protocol": protocol, "test_len": int(length)}
        | {"distance_lo": lo, "distance_hi": hi, "windows": n, "nats": nats, "tokens": tokens}
        | {"correct": right, "exact": 0, "control_nats": control}
        for length, lo, hi, n, nats, tokens, right, control in lines
    ]
    pd.DataFrame(made, columns=COLUMNS).to_csv(folder / distances.FILE, index=False)
    return run


def of_task(right: list[list[float]]) -> list[tuple[float, ...]]:
    """Lines of a task at 256 and 1,024 tokens: correct of 10 tokens in each bucket."""
    return [
        (length, *bucket, 10, 5.0, 10, n, float("nan"))
        for length, own in zip((256, 1024), right, strict=True)
        for bucket, n in zip(BUCKETS, own, strict=True)
    ]


def test_accuracy_by_distance_is_pooled_over_seeds(runs: Runs, tmp_path: Path) -> None:
    right = [[[10, 9, 8, 7], [5, 4, 3, 2]], [[10, 7, 8, 1], [5, 4, 3, 0]]]
    found = [add(runs, "generated", of_task(own), seed) for seed, own in enumerate(right)]
    files, text = distances.write_distances(collect(found), found, tmp_path)
    assert files == ["distances.csv", "distances.{png,svg}"]
    table = pd.read_csv(tmp_path / "distances.csv").set_index(["test_len", "distance_hi"])
    assert table.loc[256, "accuracy"].tolist() == pytest.approx([1.0, 0.8, 0.8, 0.4])
    assert table.loc[256, "accuracy_min"].tolist() == [1.0, 0.7, 0.8, 0.1]
    assert table.loc[1024, "accuracy_max"].tolist() == [0.5, 0.4, 0.3, 0.2]
    assert (table["n_seeds"] == 2).all() and (table["windows"] == 20).all()
    assert table["nll"].tolist() == pytest.approx([0.5] * 8)
    assert table["gain"].isna().all()
    # shown up to 4 L = 512 tokens
    assert "T = 256" in text and "| rope" in text and "0.80" in text and "0.45" not in text


def test_the_gain_of_a_copy_by_distance_is_per_token_against_the_control(
    runs: Runs, tmp_path: Path
) -> None:
    lines = [(256, *bucket, 4, 8.0, 16, 0, 24.0 - i) for i, bucket in enumerate(BUCKETS)]
    lines.append((256, *BUCKETS[0], 4, 8.0, 16, 0, 40.0))  # another distance of the same bucket
    run = add(runs, "repeat", lines)
    _, text = distances.write_distances(collect([run]), [run], tmp_path)
    table = pd.read_csv(tmp_path / "distances.csv")
    assert table["gain"].tolist() == pytest.approx([48 / 32, 15 / 16, 14 / 16, 13 / 16])
    assert "gain of the copy" in text and "1.50" in text


def test_one_distance_for_each_length_is_one_curve(runs: Runs) -> None:
    lines = [(n, n // 2, n, 4, 8.0, 16, 0, 24.0) for n in (64, 128, 256)]
    run = add(runs, "repeat", lines)
    found = distances.by_distance(collect([run]), [run])
    assert distances._chosen(found) == [64, 128, 256]
    panel = distances._panel(found)
    assert [list(one.x) for one in panel.curves] == [[64, 128, 256]]
    assert panel.marks == {"L = 128": 128.0} and panel.curves[0].label == "rope"


def test_tables_without_distances_or_controls_leave_nothing(runs: Runs, tmp_path: Path) -> None:
    plain = runs.add("alibi", {PLAIN: CURVE})
    write_report([plain], tmp_path / "plain")
    assert not (tmp_path / "plain" / "distances.csv").exists()
    run = add(runs, "generated", of_task([[1, 1, 1, 1], [1, 1, 1, 1]]))
    (file,) = run.glob("evals/*/distances.csv")
    table = pd.read_csv(file).drop(columns="control_nats")  # as it was written before
    table.to_csv(file, index=False)
    report = write_report([run], tmp_path / "old")
    assert "distances.csv" in report.files
    assert "by tokens back to the source" in (tmp_path / "old" / "lengths.md").read_text()
