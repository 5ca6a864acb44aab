"""Who beats whom: paired tests against scipy and slow loops, and how they are shown."""

import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib import image
from scipy import stats

from posbench.report import compare
from posbench.report.collect import Collected, collect
from posbench.report.markdown import markdown_table
from posbench.report.matrix import matrix_figure
from posbench.report.sections import sections
from posbench.report.write import write_report

from .conftest import Runs
from .crossed import add, drawn
from .test_pooling import slow, slow_interval, slow_p

DOCS = 24
HARD = drawn(0, 3.0, (0.2, 0.0, 0.0), DOCS, 1)
#: how much worse than the first, and the noise of it
WORSE = {"alibi": 0.0, "t5": 0.002, "rope": 0.5, "none": 1.0}
NOISE = (0.01, 0.004, 0.01)
DRAW = {"alibi": 11, "t5": 12, "rope": 13, "none": 14}


def losses(preset: str, seeds: int = 3) -> np.ndarray:
    return np.asarray(HARD + drawn(DRAW[preset], WORSE[preset], NOISE, DOCS, seeds))


def made(
    runs: Runs, seeds: dict[str, tuple[int, ...]] | None = None, **more: object
) -> dict[str, list[Path]]:
    """The four schemes at 4 L and 8 L."""
    found = {}
    for preset in WORSE:
        own = seeds[preset] if seeds else (0, 1, 2)
        x = losses(preset, len(own))
        curve = {512: x, 1024: x[::-1] * 1.01}
        found[preset] = add(runs, preset, curve, x, x + 0.4, seeds=own, **more)  # type: ignore[arg-type]
    return found


def every(found: dict[str, list[Path]]) -> Collected:
    return collect([run for dirs in found.values() for run in dirs])


def slow_holm(p: list[float]) -> list[float]:
    """The largest alpha at which the step-down procedure does not reject, by its definition."""
    n = len(p)
    order = sorted(range(n), key=lambda i: p[i])
    out = [0.0] * n
    for rank, i in enumerate(order):
        # rejected at alpha iff every smaller p up to it is below alpha / (tests still standing)
        out[i] = min(1.0, max(p[j] * (n - r) for r, j in enumerate(order[: rank + 1])))
    return out


def test_differences_intervals_and_p_of_every_pair(runs: Runs) -> None:
    collected = every(made(runs))
    pairs = compare.compared(collected.pooled, collected.losses)
    assert list(pairs.columns) == compare.COLUMNS and len(pairs) == 12
    at = pairs[pairs["test_len"] == 512]
    names = ["none", "t5", "alibi", "rope"]
    assert list(zip(at["a"], at["b"], strict=True)) == list(itertools.combinations(names, 2))
    for row in at.to_dict("records"):
        x = losses(row["a"]) - losses(row["b"])
        assert [row[n] for n in ("difference", "lo", "hi")] == pytest.approx(slow_interval(x))
        assert row["p"] == pytest.approx(slow_p(x), rel=1e-6)
        assert (row["n_units"], row["n_seeds"], row["data"]) == (DOCS, 3, "sotu")
    tails = [
        2 * stats.t.sf(abs(mean) / math.sqrt(variance), 2)
        for mean, variance, _ in (
            slow(losses(a) - losses(b)) for a, b in zip(at["a"], at["b"], strict=True)
        )
    ]
    assert at["p_holm"].tolist() == pytest.approx(slow_holm(tails))
    for row in at.to_dict("records"):
        better = row["a"] if WORSE[row["a"]] < WORSE[row["b"]] else row["b"]
        clear = {row["a"], row["b"]} != {"alibi", "t5"}
        assert row["winner"] == (better if clear else "")


def test_one_common_seed_is_the_paired_test_of_documents(runs: Runs) -> None:
    """And no common seed no test."""
    seeds = {"alibi": (0, 1), "t5": (1, 2), "rope": (5,), "none": (1,)}
    collected = every(made(runs, seeds))
    pairs = compare.compared(collected.pooled, collected.losses)
    at = pairs[pairs["test_len"] == 512].set_index(["a", "b"])
    assert set(at.index) == {("none", "t5"), ("none", "alibi"), ("t5", "alibi")}
    row = at.loc[("t5", "alibi")]
    x, y = losses("t5", 2)[:, 0], losses("alibi", 2)[:, 1]
    theirs = stats.ttest_rel(x, y)
    assert row["p"] == pytest.approx(theirs.pvalue)
    ends = theirs.confidence_interval()
    assert (row["lo"], row["hi"]) == pytest.approx((ends.low, ends.high))
    assert row["n_seeds"] == 1


def test_seeds_are_paired_by_number_not_by_order(runs: Runs) -> None:
    seeds = {"alibi": (0, 1, 2), "t5": (2, 0, 1), "rope": (0, 1, 2), "none": (0, 1, 2)}
    collected = every(made(runs, seeds))
    pairs = compare.compared(collected.pooled, collected.losses)
    row = pairs[(pairs["a"] == "t5") & (pairs["b"] == "alibi") & (pairs["test_len"] == 512)].iloc[0]
    x = losses("t5")[:, [1, 2, 0]] - losses("alibi")
    assert (row["lo"], row["hi"]) == pytest.approx(slow_interval(x)[1:])
    assert slow(losses("t5") - losses("alibi"))[1] != pytest.approx(slow(x)[1])


def test_equal_rows_are_undecided_and_refused_ones_left_out(runs: Runs) -> None:
    x = losses("rope")
    rules = {"ntk": {512: x}, "pi": {512: x + 0.1}, "yarn": {512: x - 0.1}}
    dirs = add(runs, "rope", {512: x}, x, x + 0.4, more=rules)
    collected = collect(dirs)
    pairs = compare.compared(collected.pooled, collected.losses).set_index(["a", "b"])
    same = pairs.loc[("rope", "rope ntk@8")]
    assert (same["difference"], same["lo"], same["hi"], same["p"]) == (0, 0, 0, 1)
    assert same["winner"] == ""
    assert pairs.loc[("rope", "rope pi@8"), "winner"] == "rope"
    assert pairs.loc[("rope", "rope yarn@8"), "winner"] == "rope yarn@8"
    bad = collected.pooled.assign(status=["nonfinite", "ok", "ok", "ok"])
    left = compare.compared(bad, collected.losses)
    assert len(left) == 3 and not left.isin(["rope"]).any(axis=None)


def test_other_targets_are_not_compared(runs: Runs) -> None:
    found = made(runs)
    other = made(Runs(runs.root / "other"), targets_hash="bb")
    dirs = [*found["alibi"], *other["rope"]]
    collected = collect(dirs)
    assert compare.compared(collected.pooled, collected.losses).empty


def test_the_matrix_in_words(runs: Runs) -> None:
    collected = every(made(runs, stamp=""))
    pairs = compare.compared(collected.pooled, collected.losses)
    text = markdown_table(collected.pooled, pairs)
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if "row against column at 512 4x" in line)
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines[first : first + 6]]
    assert cells[0][1:] == ["1", "2", "3", "4"]
    assert cells[2:] == [
        ["1 none", "", "loss", "loss", "loss"],
        ["2 t5", "win", "", "-", "win"],
        ["3 alibi", "win", "-", "", "win"],
        ["4 rope", "win", "loss", "loss", ""],
    ]
    assert "documents and seeds" in text and "column at 1024" not in text
    assert "row against" not in markdown_table(collected.pooled)


def test_a_matrix_has_room_for_the_plain_and_the_best(runs: Runs) -> None:
    x = losses("rope")
    rules = {f"r{i:02d}": {512: x + 0.01 * ((7 * i) % 40)} for i in range(40)}
    dirs = add(runs, "rope", {512: x + 1}, x, x + 0.4, more=rules)
    (section,) = sections(collect(dirs).pooled)
    shown = [entry.label for entry in compare.shown(section, 512)]
    best = sorted(rules, key=lambda name: rules[name][512].mean())[: compare.ROOM - 1]
    assert set(shown) == {"rope", *(f"rope {name}@8" for name in best)}
    assert shown == [e.label for e in section.entries if e.label in shown]


def test_the_figure_shows_wins_and_is_legible(runs: Runs, tmp_path: Path) -> None:
    found = every(made(runs))
    pairs = compare.compared(found.pooled, found.losses)
    assert matrix_figure(found.pooled, pairs, tmp_path / "matrix")
    assert image.imread(tmp_path / "matrix.png").shape[2] == 4
    svg = (tmp_path / "matrix.svg").read_text()
    assert svg.count("#0072b2") - 1 == svg.count("#d55e00") - 1 == 5  # one each in the legend
    one = collect(made(Runs(runs.root / "b"))["rope"])
    none = compare.compared(one.pooled, one.losses)
    assert not matrix_figure(one.pooled, none, tmp_path / "none")
    assert not list(tmp_path.glob("none*"))


def test_the_report_has_all_tables(runs: Runs, tmp_path: Path) -> None:
    found = made(runs)
    report = write_report([run for dirs in found.values() for run in dirs], tmp_path)
    tables = {
        name: pd.read_csv(tmp_path / f"{name}.csv", keep_default_na=False)
        for name in ("lengths", "verdicts", "pairs", "within")
    }
    assert [len(table) for table in tables.values()] == [24, 8, 12, 4]
    assert set(tables["lengths"]["n_seeds"]) == set(tables["verdicts"]["n_seeds"]) == {3}
    assert tables["verdicts"]["run_id"].str.count(r"\+").eq(2).all()
    assert "lengths.csv" in report.files and "matrix.{png,svg}" in report.files
    row = tables["lengths"].iloc[0]
    first = losses(row["preset"])[:, row["seed"]]
    assert float(row["nll_median"]) == pytest.approx(float(np.median(first)))
    assert set(tables["within"]["preset"]) == set(WORSE)
    assert math.isclose(
        float(tables["pairs"]["p"][0]), slow_p(losses("none") - losses("t5")), rel_tol=1e-4
    )
