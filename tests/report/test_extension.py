"""Fine-tunings in the report: their names, curves over seeds, and the table."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from posbench.report import extension
from posbench.report.collect import collect
from posbench.report.sections import sections
from posbench.report.write import write_report

from .conftest import PLAIN, Runs

CURVE: list[float | str] = [27.0, 24.5, 26.3, 29.8, 38.3, 46.9]
STEPS = [0, 10, 20, 50, 100]
#: loss at the target by seed; the base run has 3.2 at L and 5.0 at the target
PI = [[4.0, 3.6, 3.3, 3.15, 3.0], [4.2, 3.7, 3.25, 3.2, 3.1], [4.1, 3.9, 3.5, 3.3, 3.25]]
CONTROL = [[5.0, 4.0, 3.9, 3.6, 3.5], [5.0, 4.2, 4.0, 3.8, 3.6], [5.1, 4.4, 4.1, 3.7, 3.7]]


def tuned(runs: Runs, method: str, curves: list[list[float]], **train: Any) -> list[Path]:
    """Finished fine-tunings of rope at L = 128 for 1,024 tokens, one for each curve."""
    found = []
    for seed, curve in enumerate(curves):
        preset = f"rope{method}"
        run = runs.add(preset, {PLAIN: CURVE}, seed=seed, evaluation=f"e{train.get('steps', 100)}")
        manifest = json.loads((run / "manifest.json").read_text())
        config = manifest["config"] | {"base": {"weights_sha256": str(seed), "train_length": 128}}
        config["train"] = {"seq_len": 1024, "steps": 100, "batch_size": 4} | train
        manifest["config"] = config
        base = {"run_id": f"rope-L128-s{seed}-0123abcd", "preset": "rope"}
        manifest["base"] = base | {"train_length": 128}
        manifest["extension"] = {
            "length": 128,
            "target": 1024,
            "target_loss": {"base": 5.0, "start": curve[0], "end": curve[-1]},
            "short_loss": {"base": 3.2, "start": 3.3, "end": 3.25 + 0.01 * seed},
            "aim": 3.1,
            "tax": 0.05 + 0.01 * seed,
        }
        (run / "manifest.json").write_text(json.dumps(manifest))
        steps = [s for s in STEPS if s <= config["train"]["steps"]]
        lines = [
            {"step": s, "loss": 3, "target_loss": v} for s, v in zip(steps, curve, strict=False)
        ]
        lines.insert(1, {"step": 5, "loss": 3.0, "val_loss": 3.1})  # without a loss at the target
        (run / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        found.append(run)
    return found


@pytest.fixture
def both(runs: Runs) -> list[Path]:
    base = [runs.add("rope", {PLAIN: CURVE}, seed=seed) for seed in range(3)]
    return [*base, *tuned(runs, "+pi@8", PI), *tuned(runs, "+tuned", CONTROL)]


def test_every_logged_step_is_a_line(both: list[Path]) -> None:
    table = extension.fine_tunings(both)
    assert len(table) == 2 * 3 * 5 and set(table["base"]) == {"rope"}
    assert list(dict.fromkeys(table["method"])) == ["+pi@8", "+tuned"]
    one = table[(table["method"] == "+pi@8") & (table["seed"] == 1)]
    assert one["step"].tolist() == STEPS and one["target_loss"].tolist() == PI[1]
    assert set(one["base_short_loss"]) == {3.2} and set(one["aim"]) == {3.1}
    assert set(one["tax"].round(9)) == {0.06}
    assert (table["train_len"] == 128).all() and (table["target"] == 1024).all()


def test_the_figure_has_mean_and_range_of_the_seeds_and_the_base_run(both: list[Path]) -> None:
    panel = extension._panel(extension.fine_tunings(both))
    assert [one.label for one in panel.curves] == ["rope +pi@8", "rope +tuned"]
    curve = panel.curves[0]
    assert list(curve.x) == STEPS
    columns = list(zip(*PI, strict=True))
    assert list(curve.y) == pytest.approx([sum(c) / 3 for c in columns])
    assert list(curve.low) == [min(c) for c in columns]
    assert list(curve.high) == [max(c) for c in columns]
    levels = {"base run, last L tokens": 3.1, "base run at the target": 5.0}
    assert panel.levels == pytest.approx(levels)


def test_the_table_says_when_the_base_runs_loss_is_reached(both: list[Path]) -> None:
    text = extension.markdown(extension.fine_tunings(both))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    found = {row[0]: row[1:] for row in rows if row and row[0].startswith("rope")}
    # two seeds get to 3.1, at the end; a fifth of 100 steps are 20
    assert found["rope +pi@8"] == ["3", "4.100", "3.350 (20)", "3.117 (100)", "100 (2/3)", "+0.060"]
    assert found["rope +tuned"][-2:] == ["not", "+0.060"]
    assert (
        "base run: 5.000 at the target, 3.100 for the same tokens from the last L alone, 3.200 at L"
    ) in text


def test_equal_methods_of_other_lengths_of_training_are_told_apart(runs: Runs) -> None:
    few = tuned(runs, "+pi@8", PI[:1])
    (run,) = few
    other = run.parent / "rope+pi@8-L1024-s0-ffffffff"
    run.rename(other)
    more = tuned(runs, "+pi@8", [PI[0][:4]], steps=50)
    table = extension.fine_tunings([other, *more])
    assert set(table["method"]) == {"+pi@8 steps=50", "+pi@8 steps=100"}


def test_no_two_methods_look_alike(runs: Runs) -> None:
    few = [f"+pi@8 steps={steps}" for steps in (50, 100)]
    found = [run for name in (*few, "+tuned") for run in tuned(runs, name, PI[:1])]
    panel = extension._panel(extension.fine_tunings(found))
    assert len({one.style for one in panel.curves}) == len(panel.curves) == 3
    assert len({one.style.color for one in panel.curves}) == 3  # markers would hide dashes


def test_seeds_of_a_fine_tuning_are_pooled_and_named_by_their_method(both: list[Path]) -> None:
    pooled = collect(both).pooled
    assert set(pooled["n_seeds"]) == {3}
    names = {entry.run for section in sections(pooled) for entry in section.entries}
    assert names == {"rope", "rope +pi@8", "rope +tuned"}


def test_a_report_has_their_files_and_one_without_them_has_not(
    both: list[Path], tmp_path: Path
) -> None:
    report = write_report(both, tmp_path / "report")
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"extension.csv", "extension.png", "extension.svg"} <= names
    assert {"extension.csv", "extension.{png,svg}"} <= set(report.files)
    assert "fine-tunings of rope" in (tmp_path / "report" / "lengths.md").read_text()
    assert list(pd.read_csv(tmp_path / "report" / "extension.csv")) == extension.COLUMNS
    first = (tmp_path / "report" / "extension.svg").read_bytes()
    write_report(both, tmp_path / "again")
    assert (tmp_path / "again" / "extension.svg").read_bytes() == first
    write_report(both[:3], tmp_path / "plain")
    assert not (tmp_path / "plain" / "extension.csv").exists()
