"""Accuracy, and the gain of a repeated passage, pooled over seeds."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from posbench.evaluate.statistics import two_way_interval
from posbench.report import tables
from posbench.report.collect import collect

from .conftest import COLUMNS, PLAIN, K, Runs

CURVE = [27.0, 24.5, 26.3, 29.8, 38.3, 46.9]
LENGTHS = [64, 128, 256, 512, 1024, 2048]


def _change(run: Path, name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Edit a table of a run's evaluation."""
    (file,) = run.glob(f"evals/*/{name}")
    change(pd.read_csv(file, keep_default_na=False)).to_csv(file, index=False)


def test_accuracy_of_seeds_is_their_mean_and_old_tables_have_none(runs: Runs) -> None:
    made = [runs.add("rope", {PLAIN: CURVE}, seed=seed) for seed in range(3)]
    for seed, run in enumerate(made[:2]):
        right = [1.0, 0.9 - seed / 10, 0.5, 0.25, 0.125 * seed, 0]
        _change(run, "lengths.csv", lambda t, a=right: t.assign(accuracy=a, exact=np.square(a)))
    pooled = collect(made[:2]).pooled
    assert pooled["n_seeds"].tolist() == [2] * 6
    assert pooled["accuracy"].tolist() == pytest.approx([1, 0.85, 0.5, 0.25, 0.0625, 0])
    assert pooled["exact"].tolist()[1] == pytest.approx((0.81 + 0.64) / 2)
    _change(made[2], "lengths.csv", lambda t: t.drop(columns=COLUMNS[-6:]))
    old = collect(made[2:]).pooled
    assert old["accuracy"].isna().all() and old["repeat_gain"].isna().all()


def test_the_table_of_a_task_shows_accuracy_and_refusals(runs: Runs) -> None:
    curve: list[float | str] = [*CURVE[:5], "nonfinite"]
    run = runs.add("rope", {PLAIN: curve}, protocol="generated", windows_hash="t")
    right = [1.0, 0.9995, 0.5, 0.25, 0, ""]
    _change(run, "lengths.csv", lambda t: t.assign(accuracy=right, exact=[1, 0.25, 0, 0, 0, ""]))
    lines = tables.terminal_table(collect([run]).pooled, 100).splitlines()
    shown = {line[:10].strip(): lines[i + 1].split()[1:] for i, line in enumerate(lines[:-1])}
    assert shown["accuracy %"] == ["100.0", "100.0", "50.0", "25.0", "0.0", "nan"]
    assert shown["exact %"] == ["100.0", "25.0", "0.0", "0.0", "0.0", "nan"]
    other = runs.add("alibi", {PLAIN: CURVE})
    assert "accuracy" not in tables.terminal_table(collect([other]).pooled)


def test_a_seed_that_was_refused_leaves_no_accuracy(runs: Runs) -> None:
    curves = [CURVE, [*CURVE[:5], "nonfinite"]]
    made = [runs.add("rope", {PLAIN: curve}, seed=seed) for seed, curve in enumerate(curves)]
    for run in made:
        _change(run, "lengths.csv", lambda t: t.assign(accuracy=0.5, exact=0.5))
    pooled = collect(made).pooled
    assert pooled["accuracy"][:5].tolist() == [0.5] * 5 and np.isnan(pooled["accuracy"][5])


def test_the_gain_of_a_repeat_is_paired_over_documents_and_seeds(runs: Runs) -> None:
    draw = np.random.default_rng(7)
    gains = draw.normal(0.8, 0.1, (22, 1)) + draw.normal(0, 0.05, (1, 3))
    made = []
    for seed in range(3):
        run = runs.add("rope", {PLAIN: CURVE}, seed=seed, protocol="repeat")
        by_document = {f"doc{d:02d}": gains[d, seed] for d in range(22)}

        def with_control(t: pd.DataFrame, worth: dict[str, float] = by_document) -> pd.DataFrame:
            control = t[t["protocol"] == "repeat"].assign(protocol="control")
            more = [worth[d] * K for d in control["document"]]
            return pd.concat([t, control.assign(nats=control["nats"] + more)])

        _change(run, "blocks.csv", with_control)
        _change(run, "lengths.csv", lambda t, s=seed: t.assign(control_nll=s, repeat_gain=99.0))
        made.append(run)
    pooled = collect(made).pooled
    mean, low, high = two_way_interval(gains)
    assert pooled["test_len"].tolist() == LENGTHS
    for name, value in (("repeat_gain", mean), ("repeat_lo", low), ("repeat_hi", high)):
        assert pooled[name].tolist() == pytest.approx([value] * 6)
    assert pooled["control_nll"].tolist() == [1.0] * 6
    shown = tables.terminal_table(pooled).splitlines()
    (first,) = (i for i, line in enumerate(shown) if line.startswith("gain, nats"))
    cell = f"{mean:+.2f}±{(high - low) / 2:.2f}"
    assert shown[first + 1].count(cell) == 6 and "repeat" in shown[0]
    assert "earlier copy" in " ".join(shown)
