"""Seeds as one row: verdict, units of b, headroom and share against scipy and slow loops."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from posbench.report.collect import collect
from posbench.report.markdown import markdown_table
from posbench.report.sections import sections
from posbench.report.tables import terminal_table

from .conftest import Runs
from .crossed import add, drawn

DOCS = 24
TINY = (0.004, 0.002, 0.004)


def slow(x: np.ndarray) -> tuple[float, float, float]:
    """(mean, variance of the mean, degrees of freedom) by least squares on dummies."""
    docs, seeds = x.shape
    doc, seed = (a.ravel() for a in np.indices(x.shape))
    y = x.ravel()

    def left(*factors: np.ndarray) -> float:
        """Sum of squares that the factors leave."""
        design = np.hstack([np.ones((len(y), 1)), *(np.eye(f.max() + 1)[f] for f in factors)])
        return float(((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2).sum())

    rest = left(doc, seed)
    df = docs - 1, seeds - 1, (docs - 1) * (seeds - 1)
    ms = (left(seed) - rest) / df[0], (left(doc) - rest) / df[1], rest / df[2]
    total = ms[0] + ms[1] - ms[2]
    if total <= ms[2]:
        return float(y.mean()), ms[2] / len(y), df[2]
    spread = sum(m**2 / n for m, n in zip(ms, df, strict=True))
    return float(y.mean()), total / len(y), max(total**2 / spread, min(df[:2]))


def slow_interval(x: np.ndarray) -> tuple[float, float, float]:
    mean, variance, df = slow(x)
    half = stats.t.ppf(0.975, df) * math.sqrt(variance)
    return mean, mean - half, mean + half


def slow_p(x: np.ndarray) -> float:
    mean, variance, df = slow(x)
    return float(2 * stats.t.sf(abs(mean) / math.sqrt(variance), df))


def made(
    runs: Runs,
    gain: dict[int, float],
    seeds: int = 3,
    headroom: float = 0.0,
    preset: str = "rope",
    **more: object,
) -> tuple[list[Path], dict[str, np.ndarray]]:
    """Runs with these mean gains, and what they were made of."""
    crop = drawn(1, 3.0, (0.2, 0.02, 0.01), DOCS, seeds)
    short = crop + drawn(2, 0.4, (0.05, 0.01, 0.01), DOCS, seeds)
    own = {T: crop - drawn(T, value, TINY, DOCS, seeds) for T, value in gain.items()}
    parts = {"crop": crop, "short": short} | {str(T): table for T, table in own.items()}
    long = None
    if headroom:
        long = {T: crop - drawn(T + 1, headroom, TINY, DOCS, seeds) for T in gain}
        parts |= {f"long{T}": table for T, table in long.items()}
    return add(runs, preset, own, crop, short, long, **more), parts  # type: ignore[arg-type]


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_gain_headroom_and_share_of_seeds(runs: Runs, seeds: int) -> None:
    dirs, parts = made(runs, {512: 0.05}, seeds, headroom=0.1)
    row = collect(dirs).pooled.iloc[0]
    gain, headroom = parts["crop"] - parts["512"], parts["crop"] - parts["long512"]
    b = float(np.mean(parts["short"] - parts["crop"]))
    assert row["b"] == pytest.approx(b)
    for names, x, unit in (
        (("nll", "nll_lo", "nll_hi"), parts["512"], 1.0),
        (("gain", "gain_lo", "gain_hi"), gain, 1.0),
        (("gain_b", "gain_b_lo", "gain_b_hi"), gain, b),
        (("headroom", "headroom_lo", "headroom_hi"), headroom, 1.0),
        (("long_nll", "long_lo", "long_hi"), parts["long512"], 1.0),
    ):
        assert [row[n] * unit for n in names] == pytest.approx(slow_interval(x), rel=1e-9)
    _, variance, df = slow(headroom)
    both = stats.t.ppf(0.975, df) + stats.t.ppf(0.8, df)
    assert row["detectable"] == pytest.approx(both * math.sqrt(variance))
    assert row["share"] == pytest.approx(gain.mean() / headroom.mean())
    assert row["share_lo"] < row["share"] < row["share_hi"]
    for end in (row["share_lo"], row["share_hi"]):
        assert slow_p(gain - end * headroom) == pytest.approx(0.05, rel=1e-6)
    assert row["nll_median"] == pytest.approx(float(np.median(parts["512"])))
    assert (row["n_seeds"], row["verdict"]) == (seeds, "uses" if seeds >= 3 else "")


@pytest.mark.parametrize(
    ("gain", "ngram", "word"),
    [(0.05, 9, "uses"), (0.0, 9, "holds"), (-0.06, 9, "degrades"), (-0.06, 3.0, "explodes"),
     (0.024, 9, "undecided")],
)  # fmt: skip
def test_the_verdict_of_seeds_is_made_anew(
    runs: Runs, gain: float, ngram: float, word: str
) -> None:
    """Whatever the seeds say on their own; 0.05 b is 0.02 nats."""
    dirs, _ = made(runs, {64: gain, 512: gain}, ngram_nll=ngram, verdict="holds")
    pooled = collect(dirs).pooled
    assert list(pooled["verdict"]) == ["", word]
    alone = collect(dirs[:1]).pooled
    assert list(alone["verdict"]) == ["", ""]  # too few for the tier


def test_one_failed_gate_or_few_documents_leave_no_verdict(runs: Runs) -> None:
    dirs, _ = made(runs, {512: 0.05}, passed=(True, False, True))
    row = collect(dirs).pooled.iloc[0]
    assert row["verdict"] == "" and row["gain_b_lo"] > 0.05
    dirs, _ = made(Runs(runs.root / "few"), {512: 0.05}, n_docs=19)
    assert collect(dirs).pooled.iloc[0]["verdict"] == ""


def test_little_headroom_is_no_hold(runs: Runs) -> None:
    dirs, _ = made(runs, {512: 0.0}, headroom=0.0005)
    row = collect(dirs).pooled.iloc[0]
    assert row["headroom"] < row["detectable"]
    assert row["verdict"] == "no headroom" and math.isnan(row["share"])


def test_files_from_before_have_no_units(runs: Runs) -> None:
    dirs, _ = made(runs, {512: 0.05}, headroom=0.1)
    for run in dirs:
        (file,) = run.glob("evals/*/lengths.csv")
        old = pd.read_csv(file, keep_default_na=False)
        kept = [name for name in old if name not in ("b", "gain_b", "headroom", "share")]
        old[kept].to_csv(file, index=False)
        (file,) = run.glob("evals/*/blocks.csv")
        blocks = pd.read_csv(file, keep_default_na=False)
        blocks[blocks["protocol"].isin(["crop", "same_targets"])].to_csv(file, index=False)
    row = collect(dirs).pooled.iloc[0]
    assert row[["b", "gain_b", "headroom", "share", "detectable", "long_nll"]].isna().all()
    assert row["gain_lo"] < row["gain"] < row["gain_hi"] and row["verdict"] == ""


def test_a_tier_that_asks_for_three_seeds_says_how_many_there_are(runs: Runs) -> None:
    dirs, _ = made(runs, {512: 0.05}, seeds=3, stamp="")
    for n, stamp in ((1, "1 seed of 3"), (2, "2 seeds of 3"), (3, "")):
        pooled = collect(dirs[:n]).pooled
        assert list(pooled["stamp"]) == [stamp]
        assert (f"* {stamp} (rope)" in terminal_table(pooled)) is bool(stamp)
    demo, _ = made(Runs(runs.root / "demo"), {512: 0.05}, seeds=1, tier="demo", stamp="")
    assert list(collect(demo).pooled["stamp"]) == [""]


def test_one_seed_is_labelled_as_documents_alone(runs: Runs) -> None:
    dirs, _ = made(runs, {512: 0.05})
    assert sections(collect(dirs[:1]).pooled)[0].unit() == "documents"
    assert sections(collect(dirs).pooled)[0].unit() == "documents and seeds"


def test_what_explodes_is_shown_by_its_median(runs: Runs) -> None:
    dirs, parts = made(runs, {512: -3.0, 1024: 0.0}, ngram_nll=4.0)
    pooled = collect(dirs).pooled
    assert list(pooled["verdict"]) == ["explodes", "holds"]
    text = markdown_table(pooled)
    line = next(line for line in text.splitlines() if line.startswith("| rope"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == f"{math.exp(np.median(parts['512'])):.0f} (median)"
    assert "[" in cells[2] and "(median): of what explodes" in text
    alone = collect(dirs[:1]).pooled
    assert alone["nll_median"].tolist() == pytest.approx(
        [float(np.median(parts[T][:, 0])) for T in ("512", "1024")]
    )


def test_the_run_that_was_trained_longer_is_a_line_of_the_table(runs: Runs) -> None:
    dirs, parts = made(runs, {64: 0.0, 512: 0.0}, headroom=0.1)
    pooled = collect(dirs).pooled
    value = f"{math.exp(parts['long512'].mean()):.1f}"
    for text in (terminal_table(pooled), markdown_table(pooled)):
        lines = [line for line in text.splitlines() if "trained_long" in line]
        assert len(lines) == 1 and value in lines[0]
    other = add(
        runs, "alibi", {512: parts["512"]}, parts["crop"], parts["short"], {512: parts["64"]}
    )
    text = markdown_table(collect([*dirs, *other]).pooled)
    assert "| trained_long (alibi)" in text and "| trained_long (rope)" in text


def test_units_are_blocks_only_where_the_evaluation_says_so(runs: Runs) -> None:
    """Of two evaluations, one over documents and one over blocks, each keeps its own."""
    dirs, parts = made(runs, {512: 0.05})
    text, _ = made(runs, {512: 0.05}, preset="alibi", data="text")
    for run in text:
        (file,) = run.glob("evals/*/manifest.json")
        file.write_text(json.dumps(json.loads(file.read_text()) | {"interval_over": "blocks"}))
    pooled = collect([*dirs, *text]).pooled.set_index("data")
    half = {name: pooled.loc[name, "nll_hi"] - pooled.loc[name, "nll"] for name in pooled.index}
    blocks = np.concatenate([parts["512"] - 0.3, parts["512"] + 0.3])
    for name, x in (("sotu", parts["512"]), ("text", blocks)):
        mean, _, high = slow_interval(x)
        assert half[name] == pytest.approx(high - mean)
