"""Verdicts, shares and longest lengths: on constructed numbers, and in rows of evaluations.

One file: what rows hold is read beside the rules that it must follow.
"""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import refused
from scipy import stats

from posbench import train
from posbench.data.dataset import load
from posbench.evaluate import plan as planning
from posbench.evaluate import references, rows, statistics, verdicts
from posbench.evaluate.plan import Cell, Key
from posbench.evaluate.score import Block

Evaluate = Callable[..., Path]
Sweep = Callable[..., Any]
Table = Callable[[Path], pd.DataFrame]
L, K = 64, 32
WORDS = ["the", "of", "a", "state", "house", "people", "law", "peace", "year", "work", "nation"]


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "nll", "word"),
    [
        (0.051, 0.30, 2.0, "uses"),
        (0.049, 0.30, 2.0, "undecided"),
        (-0.049, 0.049, 2.0, "holds"),
        (-0.051, 0.049, 2.0, "undecided"),
        (-0.2, 0.2, 2.0, "undecided"),
        (-0.3, -0.051, 2.0, "degrades"),
        (-0.3, -0.049, 2.0, "undecided"),
        (-9.0, -1.0, 2.9, "degrades"),
        (-9.0, -1.0, 3.1, "explodes"),
        (-9.0, 5.0, 3.1, "explodes"),
        (math.nan, math.nan, 2.0, ""),
    ],
)
def test_words_follow_from_the_interval(low: float, high: float, nll: float, word: str) -> None:
    row = {"gain_b_lo": low, "gain_b_hi": high, "nll": nll, "ngram_nll": 3.0}
    assert verdicts.verdict(row) == word
    assert verdicts.verdict({"nll": nll, "ngram_nll": 3.0}) == ""
    for headroom, detectable in ((0.02, 0.03), (0.03, 0.02)):
        little = headroom < detectable
        told = verdicts.verdict(row | {"headroom": headroom, "detectable": detectable})
        assert told == ("no headroom" if word == "holds" and little else word)


@pytest.mark.parametrize(
    ("passed", "docs", "length", "may"),
    [(True, 20, 65, True), (False, 24, 256, False), (True, 19, 256, False), (True, 24, 64, False)],
)
def test_who_may_have_a_verdict(passed: bool, docs: int, length: int, may: bool) -> None:
    row = {"n_docs": docs, "test_len": length, "train_len": 64}
    assert verdicts.may_have_one(row, passed) is may


# --- headroom -------------------------------------------------------------------------------------


def test_an_effect_of_the_detectable_size_is_found_four_times_in_five() -> None:
    rng, n = np.random.default_rng(0), 24
    one = rng.normal(size=n)
    one = (one - one.mean()) / one.std(ddof=1)  # standard deviation 1
    effect = verdicts.detectable(one)
    drawn = rng.normal(effect, 1, (20000, n))
    found = stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.015)
    assert verdicts.detectable(3 * one + 7) == pytest.approx(3 * effect, rel=1e-12)
    assert math.isnan(verdicts.detectable(one[:1]))


def test_the_ends_of_a_share_are_where_a_t_test_turns() -> None:
    rng = np.random.default_rng(1)
    headroom = rng.normal(0.3, 0.2, 24)
    gain = 0.4 * headroom + rng.normal(0, 0.1, 24)
    share, low, high = verdicts.share(gain, headroom)
    assert share == pytest.approx(gain.mean() / headroom.mean()) and low < share < high
    for end in (low, high):
        assert stats.ttest_1samp(gain - end * headroom, 0).pvalue == pytest.approx(0.05, rel=1e-6)
    for inside in np.linspace(low, high, 7)[1:-1]:
        assert stats.ttest_1samp(gain - inside * headroom, 0).pvalue > 0.05
    for outside in (low - 0.1, high + 0.1):
        assert stats.ttest_1samp(gain - outside * headroom, 0).pvalue < 0.05


def test_a_share_of_nothing_has_no_bounds() -> None:
    rng = np.random.default_rng(2)
    nothing = rng.normal(0, 0.2, 24)
    assert stats.ttest_1samp(nothing, 0).pvalue > 0.05
    assert all(map(math.isnan, verdicts.share(rng.normal(0, 0.1, 24), nothing)))


def test_columns_are_left_out_where_they_say_nothing() -> None:
    rng = np.random.default_rng(3)
    crop = rng.normal(2, 0.3, 24)
    own, long = crop - rng.normal(0.1, 0.02, 24), crop - rng.normal(0.2, 0.02, 24)
    row = verdicts.measured(own, crop, 0.5, long)
    assert list(row) == ["b", *verdicts.COLUMNS[1:]]
    assert row["gain_b"] == pytest.approx((crop - own).mean() / 0.5)
    low, high = stats.t.interval(0.95, 23, (crop - own).mean(), stats.sem(crop - own))
    assert (row["gain_b_lo"], row["gain_b_hi"]) == (pytest.approx(2 * low), pytest.approx(2 * high))
    assert row["headroom"] == pytest.approx((crop - long).mean())
    assert list(verdicts.measured(own, crop, 0.5, None)) == verdicts.COLUMNS[:4]
    assert list(verdicts.measured(own, crop, -0.1, None)) == ["b"]
    same = crop + rng.normal(0, 0.02, 24)
    assert list(verdicts.measured(own, crop, 0.5, same)) == verdicts.COLUMNS[:8]


def test_shares_and_headroom_of_seeds_use_both_variances() -> None:
    """A seed effect on gain and headroom alike widens the headroom and leaves the share."""
    rng = np.random.default_rng(4)
    documents, seeds = rng.normal(0, 0.02, (24, 1)), 0.1 * np.array([[-1.0, 0.0, 1.0]])
    noise = rng.normal(0, 0.01, (2, 24, 3))
    headroom = 1 + documents + seeds + noise[0]
    gain = 0.4 * (1 + documents + seeds) + noise[1]
    alone = verdicts.share(gain - 0.4 * seeds, headroom - seeds)
    share, low, high = verdicts.share(gain, headroom)
    assert low < share < high and high - low == pytest.approx(alone[2] - alone[1], rel=0.2)
    for end in (low, high):
        _, *ends = statistics.two_way_interval(gain - end * headroom)
        assert min(map(abs, ends)) == pytest.approx(0, abs=1e-9)
    assert verdicts.detectable(headroom) > 3 * verdicts.detectable(headroom - seeds)
    exact = verdicts.share(0.5 * headroom, headroom)
    assert exact == pytest.approx((0.5, 0.5, 0.5))
    flat = verdicts.measured(gain[:, 0], gain[:, 0] + 1, 0.5, None)
    assert verdicts.measured(gain[:, :1], gain[:, :1] + 1, 0.5, None) == flat


# --- longest lengths ------------------------------------------------------------------------------


def test_longest_lengths_within_a_share_of_the_crop_loss() -> None:
    curves: dict[str, list[float | None]] = {
        "flat": [2.0, 2.0, 2.01, 2.02],
        "breaks": [2.0, 2.05, 2.3, 2.0],
        "at_once": [2.2, 2.0, 2.0, 2.0],
        "refused": [2.0, 2.0, None, 2.0],
    }
    table = pd.DataFrame(
        [
            {"rescale": name, "protocol": "same_targets", "train_len": 64, "test_len": length}
            | {"nll": nll, "crop_nll": None if nll is None else 2.0}
            for name, losses in curves.items()
            for length, nll in zip((512, 64, 128, 256), (losses[i] for i in (3, 0, 1, 2)))  # noqa: B905
        ]
    )
    short = pd.DataFrame([table.iloc[1].to_dict() | {"test_len": 32, "nll": 9.0}])
    no_crop = pd.DataFrame([table.iloc[1].to_dict() | {"protocol": "sliding", "crop_nll": None}])
    found = verdicts.longest_within(pd.concat([table, short, no_crop]))
    assert list(found["rescale"]) == list(curves) and set(found["longest"]) == {512}
    assert list(found["within_1%"]) == [512, 64, None, 128]
    assert list(found["within_5%"]) == [512, 128, None, 128]
    assert list(verdicts.longest_within(table, [0.2])["within_20%"]) == [512, 512, 512, 128]
    # L is where the crop ends: there a row is held against the unscaled one
    plain = table.replace({"rescale": {"at_once": "none"}})
    plain.loc[plain["rescale"].eq("breaks") & plain["test_len"].eq(64), "nll"] = 2.3
    assert list(verdicts.longest_within(plain)["within_1%"]) == [512, None, 512, 128]
    assert list(verdicts.longest_within(plain)["within_5%"]) == [512, 128, 512, 128]
    seeds = table.assign(n_seeds=[3] * 15 + [2])
    assert list(verdicts.longest_within(seeds)["n_seeds"]) == [3, 3, 3, 2]


# --- rows of constructed blocks -------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """260 files of 1,200 to 1,700 bytes, so that 20 documents are held out."""
    root = tmp_path_factory.mktemp("many")
    for i in range(260):
        draw, text = random.Random(i), ""
        own = draw.sample(WORDS, 3)  # which takes some context to find out
        while len(text) < 1200 + 2 * i:
            text += draw.choice(own) + " "
        (root / f"doc{i:03d}.txt").write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def run(many: Path, settings_of: Callable[..., Any], tmp_path_factory: Any) -> Any:
    """A short run with L = 64 on them."""
    config = settings_of(path=many, train={"steps": 200, "lr": 5e-3})
    folder = tmp_path_factory.mktemp("verdicts") / "run"
    return train.run(config, folder, load(config.data))


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "gate", lambda *a: {"passed": True})


def loss(context: float) -> float:
    """What context is worth inside L: half as much loss to gain for twice the tokens."""
    return 0.1 + 4 / context


def constructed(todo: Any, own: Callable[[str, int], float]) -> dict[Key, Cell]:
    """Cells whose blocks have these losses per token, and what is common to all of a document."""
    common = np.random.default_rng(0).normal(0, 0.3, 99)
    wobble = np.random.default_rng(1).normal(0, 0.003, 9999)
    cells: dict[Key, Cell] = {}
    keys = todo.keys()
    for key in keys:
        if key.protocol == "stride1":
            mean = loss(key.length)
        elif key.length <= L:
            mean = np.mean([loss(c) for c in range(key.length - K + 1, key.length + 1)])
        else:
            mean = own(key.rule, key.length)
        cells[key] = Cell(
            "ok",
            [
                Block(d.id, b, e, K * (mean + common[i] + wobble[len(cells) * 99 + i]), K, K)
                for i, d in enumerate(todo.data.targets.documents[: todo.eval.docs])
                for b, e in enumerate(d.ends[: todo.eval.blocks])
            ],
        )
    return cells


def judged(todo: Any, own: Callable[[str, int], float]) -> pd.DataFrame:
    return rows.build(todo, constructed(todo, own)).lengths.set_index(["rescale", "test_len"])


def test_a_window_that_sees_the_last_l_tokens_is_not_use(
    run: Any, sweep: Sweep, passed: None
) -> None:
    """Against the row at T = L, whose tokens have fewer than L before them, it would look so."""
    chosen = {"lengths": [64, 256, 512], "blocks": 1}
    todo = planning.plan(run, [sweep("window", **chosen), sweep("none", **chosen)])
    b = loss(16) - loss(64)
    far = {"window": 0.0, "none": 0.05 * b}
    found = judged(todo, lambda name, length: loss(L) - far[name])
    for length in (256, 512):
        control, used = found.loc[("window", length)], found.loc[("none", length)]
        assert control["b"] == pytest.approx(b, abs=0.01)
        assert control["verdict"] == "holds"
        assert control["base_nll"] - control["nll"] > 0.05 * b
        assert (used["verdict"], used["n_docs"]) == ("undecided", todo_docs(todo))
    assert found.loc[("window", 64), "verdict"] == ""


def todo_docs(todo: Any) -> int:
    n = len(todo.data.targets.documents)
    assert n >= 20
    return n


@pytest.mark.parametrize(
    ("gain", "word"), [(0.1, "uses"), (0.0, "holds"), (-0.1, "degrades"), (-9.0, "explodes")]
)
def test_words_of_constructed_rows(
    run: Any, sweep: Sweep, passed: None, monkeypatch: pytest.MonkeyPatch, gain: float, word: str
) -> None:
    chosen = {"lengths": [64, 256], "blocks": 2}
    todo = planning.plan(run, [sweep(**chosen), sweep(protocol="sliding", **chosen)])
    found = judged(todo, lambda name, length: loss(L) - gain).reset_index()
    assert list(found["verdict"]) == ["", word, "", ""]
    few = planning.plan(run, [sweep(docs=19, **chosen)])
    assert set(judged(few, lambda name, length: loss(L) - gain)["verdict"]) == {""}
    monkeypatch.setattr(references, "gate", lambda *a: {"passed": False})
    assert set(judged(todo, lambda name, length: loss(L) - gain)["verdict"]) == {""}


def test_the_window_of_a_real_run_is_not_use(
    run: Any, sweep: Sweep, passed: None, evaluate: Evaluate, rows: Table
) -> None:
    """And what it says is what the blocks say."""
    chosen = {"lengths": [64, 256], "blocks": 1}
    rules = [sweep("window", {"sinks": n}, **chosen) for n in (0, 4)]
    folder = evaluate(run, *rules, sweep("none", **chosen))
    table = rows(folder)
    assert set(table["verdict"][[1, 3]]) <= {"holds", "degrades", "explodes", "undecided"}
    blocks = pd.read_csv(folder / "blocks.csv", keep_default_na=False)
    loss_of = {
        what: (part.groupby("document")["nats"].sum() / part.groupby("document")["tokens"].sum())
        for what, part in blocks.groupby(["protocol", "rescale", "options", "test_len"])
    }
    row = table.iloc[3]
    gain = loss_of["crop", "none", "", L] - loss_of["same_targets", "window", "sinks=4", 256]
    low, high = stats.t.interval(0.95, len(gain) - 1, gain.mean(), stats.sem(gain))
    b = float(row["b"])
    got = [float(row[name]) for name in ("gain_b", "gain_b_lo", "gain_b_hi")]
    assert got == pytest.approx([gain.mean() / b, low / b, high / b])


# --- the run that was trained longer --------------------------------------------------------------


@pytest.fixture(scope="module")
def longer(many: Path, settings_of: Callable[..., Any], tmp_path_factory: Any) -> Any:
    """As many tokens in windows of 256, with another scheme."""
    config = settings_of("alibi", path=many, train={"steps": 200, "seq_len": 256, "batch_size": 1})
    return train.run(config, tmp_path_factory.mktemp("long") / "run", load(config.data))


def test_headroom_is_what_the_longer_run_has_below_the_crop(
    run: Any, longer: Any, evaluate: Evaluate, rows: Table, copy_run: Callable[..., Any]
) -> None:
    chosen = {"lengths": [64, 128, 256, 512], "blocks": 1}
    plain, own = evaluate(run, **chosen), evaluate(longer, **chosen)
    folder = evaluate(run, long=str(longer.path), **chosen)
    assert folder != plain
    table, before, reference = rows(folder), rows(plain), rows(own)
    new = verdicts.COLUMNS[4:]
    pd.testing.assert_frame_equal(
        table.drop(columns=[*new, "verdict"]), before.drop(columns=[*new, "verdict"])
    )
    assert (before[new] == "").all(axis=None)
    assert (table.loc[[0, 3], new] == "").all(axis=None)  # L, and past what it was trained at
    for i in (1, 2):
        wanted = float(table["crop_nll"][i]) - float(reference["nll"][i])
        assert float(table["headroom"][i]) == pytest.approx(wanted, abs=1e-9)
        assert float(table["headroom_lo"][i]) < wanted < float(table["headroom_hi"][i])
    blocks = pd.read_csv(folder / "blocks.csv")
    theirs = pd.read_csv(own / "blocks.csv")
    mine = blocks[(blocks["protocol"] == "trained_long") & (blocks["test_len"] == 256)]
    theirs = theirs[(theirs["protocol"] == "same_targets") & (theirs["test_len"] == 256)]
    assert mine["nats"].to_list() == theirs["nats"].to_list()


def test_a_longer_run_that_does_not_fit_is_refused(
    run: Any,
    longer: Any,
    trained: Any,
    many: Path,
    settings_of: Callable[..., Any],
    tmp_path: Path,
    posbench: Callable[..., Any],
) -> None:
    def measured(one: Any) -> Any:
        return posbench("eval-lengths", str(run.path), f"eval.long={one}", "eval.lengths=[64]")

    def other(**settings: Any) -> Path:
        config = settings_of(path=many, **settings)
        return train.run(config, tmp_path / str(len(list(tmp_path.iterdir()))), data).path

    data = load(settings_of(path=many).data)
    few = {"steps": 1, "seq_len": 256, "batch_size": 1}
    refused(measured(tmp_path / "none"), "none: no such folder")
    refused(measured(trained.path), "is no reference for", "its data, tokenizer or targets are")
    refused(measured(other(train=few)), "it saw 256 tokens, not 51,200")
    refused(measured(run.path), "its train.seq_len=64 is not above 64")
    refused(measured(other(train=few, model={"n_layers": 1})), "its model options are others")
