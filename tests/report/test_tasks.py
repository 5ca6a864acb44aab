"""Tasks over seeds: the spread beside the mean, chance, and the files that show them."""

import math
import statistics
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from posbench.report import tables
from posbench.report.collect import collect
from posbench.report.markdown import markdown_table
from posbench.report.write import write_report

from .conftest import PLAIN, Rule, Runs

LENGTHS = [64, 128, 256, 512, 1024, 2048]
CURVE: list[float | str] = [1.1, 1.2, 2.0, 5.0, 9.0, 20.0]
#: accuracy by seed and length, and the share of windows that are all right
RIGHT = [
    [1.0, 0.99, 0.97, 0.60, 0.30, 0.04],
    [1.0, 0.98, 0.31, 0.20, 0.10, 0.05],
    [1.0, 0.97, 0.95, 0.93, 0.91, 0.50],
    [1.0, 1.00, 0.42, 0.30, 0.20, 0.03],
    [1.0, 0.96, 0.90, 0.70, 0.60, 0.02],
]
EXACT = [
    [1.0, 0.95, 0.90, 0.0, 0.0, 0.0],
    [1.0, 0.89, 0.0, 0.0, 0.0, 0.0],
    [1.0, 0.91, 0.9001, 0.93, 0.8, 0.0],
    [1.0, 0.99, 0.2, 0.0, 0.0, 0.0],
    [1.0, 0.92, 0.8999, 0.3, 0.1, 0.0],
]


def made(runs: Runs, preset: str = "rope", seeds: int = 5, **changes: object) -> list[Path]:
    """Runs of a task whose accuracies are those above."""
    found = []
    curves: dict[Rule, list[float | str]] = {PLAIN: CURVE}
    for seed in range(seeds):
        fixed = {"protocol": "generated", "windows_hash": "t", "data": "copy", **changes}
        run = runs.add(preset, curves, seed=seed, **fixed)  # type: ignore[arg-type]
        (file,) = run.glob("evals/*/lengths.csv")
        table = pd.read_csv(file, keep_default_na=False)
        table = table.assign(accuracy=RIGHT[seed], exact=EXACT[seed], chance=1 / 26)
        table.to_csv(file, index=False)
        found.append(run)
    return found


def test_the_spread_of_the_seeds_is_in_the_pooled_rows(runs: Runs) -> None:
    pooled = collect(made(runs)).pooled
    assert pooled["n_seeds"].tolist() == [5] * 6
    for i, row in pooled.iterrows():
        right = [own[int(str(i))] for own in RIGHT]
        assert row["accuracy"] == pytest.approx(sum(right) / 5)
        assert row["accuracy_min"] == min(right) and row["accuracy_max"] == max(right)
        assert row["accuracy_median"] == statistics.median(right)
    # at least nine windows in ten: 0.9 counts and 0.8999 does not
    assert pooled["success_rate"].tolist() == pytest.approx([1, 0.8, 0.4, 0.2, 0, 0])
    assert pooled["chance"].tolist() == [1 / 26] * 6


def test_a_refused_seed_has_no_spread_and_texts_have_none(runs: Runs) -> None:
    few = made(runs, seeds=2)
    (file,) = few[1].glob("evals/*/lengths.csv")
    table = pd.read_csv(file, keep_default_na=False)
    table.loc[table["test_len"] == 2048, "status"] = "out_of_memory"
    table.to_csv(file, index=False)
    pooled = collect(few).pooled
    assert np.isnan(pooled["accuracy_median"]).tolist() == [False] * 5 + [True]
    text = collect([runs.add("alibi", {PLAIN: CURVE})]).pooled
    assert text[["accuracy_min", "success_rate"]].isna().all().all()


def shown(text: str, title: str) -> list[str]:
    """The line below a block's heading, cut into cells."""
    lines = text.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith(title))
    return lines[at + 1].split()[1:]


def test_the_table_shows_spread_successes_and_chance(runs: Runs) -> None:
    found = made(runs)
    text = tables.terminal_table(collect(found).pooled, 100)
    cells = shown(text, "accuracy %")
    assert cells[:5] == ["100.0", "98.0", "96-100", "71.0", "31-97"]
    assert shown(text, "exact %")[2:6] == ["93.2", "4/5", "58.0", "2/5"]
    assert "chance: 3.85 % of the tokens" in text and "5 seeds" in text
    assert "it takes 5 at least" not in text
    narrow = tables.terminal_table(collect(found).pooled, 60)
    assert all(len(line) <= 60 for line in narrow.splitlines())
    one = tables.terminal_table(collect(found[:1]).pooled, 100)
    assert shown(one, "accuracy %")[:3] == ["100.0", "99.0", "97.0"]
    assert "1 seed: length generalisation swings with the seed" in " ".join(one.split())


def test_markdown_has_the_whole_distribution_in_the_place_of_perplexities(runs: Runs) -> None:
    text = markdown_table(collect([*made(runs), runs.add("alibi", {PLAIN: CURVE})]).pooled)
    assert "71.0 (31.0, 90.0, 97.0) 2/5" in text and "93.2" not in text
    heads = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert heads.count("perplexity") == heads.count("accuracy %") == 1
    assert heads.index("rope") == heads.index("accuracy %") + 1
    assert "chance: 3.85 %" in text


def test_a_report_of_tasks_has_their_files(runs: Runs, tmp_path: Path) -> None:
    found = made(runs)
    report = write_report(found, tmp_path / "report")
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"tasks.csv", "accuracy.png", "accuracy.svg"} <= names
    assert not {"perplexity.png", "ratio.png"} & names
    assert "accuracy.{png,svg}" in report.files and "perplexity.{png,svg}" not in report.files
    table = pd.read_csv(tmp_path / "report" / "tasks.csv")
    assert table["accuracy_median"].tolist() == [
        statistics.median(own[i] for own in RIGHT) for i in range(6)
    ]
    assert table["n_seeds"].tolist() == [5] * 6 and table["seed"][0] == "0+1+2+3+4"
    before = (tmp_path / "report" / "accuracy.svg").read_bytes()
    write_report(found, tmp_path / "again")
    assert (tmp_path / "again" / "accuracy.svg").read_bytes() == before


def test_the_figure_has_medians_bands_and_chance(runs: Runs) -> None:
    from posbench.report.accuracy import _panels
    from posbench.report.sections import sections

    (section,) = sections(collect([*made(runs), *made(runs, "alibi", 2)]).pooled)
    (panel,) = _panels(section)
    assert panel.levels == {"chance": 1 / 26} and panel.title == "copy: trained schemes"
    curve = next(one for one in panel.curves if one.label == "rope")
    assert list(curve.x) == LENGTHS
    columns = list(zip(*RIGHT, strict=True))
    assert list(curve.low) == [min(c) for c in columns]
    assert list(curve.high) == [max(c) for c in columns]
    assert list(curve.y) == [statistics.median(c) for c in columns]
    assert not any(math.isnan(y) for y in curve.y)


def test_texts_beside_tasks_keep_their_figures(runs: Runs, tmp_path: Path) -> None:
    write_report([*made(runs), runs.add("alibi", {PLAIN: CURVE})], tmp_path / "both")
    names = {path.name for path in (tmp_path / "both").iterdir()}
    assert {"perplexity.png", "accuracy.png", "tasks.csv"} <= names
    write_report([runs.add("t5", {PLAIN: CURVE})], tmp_path / "text")
    assert not (tmp_path / "text" / "accuracy.png").exists()
