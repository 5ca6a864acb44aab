"""Rows of `prefix`: which tokens they name, what they are compared with, how tables show them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from posbench import train
from posbench.report.collect import collect
from posbench.report.tables import terminal_table
from posbench.report.write import write_report

Evaluate = Callable[..., Path]
Rows = Callable[[Path], pd.DataFrame]
Sweep = Callable[..., Any]
FEW = {"docs": 3, "blocks": 2}
PREFIX = {"protocol": "prefix", **FEW}


def test_hashes_name_the_scored_tokens(trained: Any, evaluate: Evaluate, rows: Rows) -> None:
    same = rows(evaluate(trained, lengths=[64, 128, 256], **FEW))
    table = rows(evaluate(trained, lengths=[64, 128, 256], **PREFIX))
    assert len(set(table["targets_hash"])) == 3 and len(set(table["windows_hash"])) == 1
    assert table["targets_hash"][2] == same["targets_hash"][0]
    assert set(same["windows_hash"]) == {""}
    fewer = rows(evaluate(trained, lengths=[64, 256], docs=2, blocks=2, protocol="prefix"))
    assert set(fewer["windows_hash"]).isdisjoint(table["windows_hash"])


def test_references_stand_only_where_the_tokens_are_theirs(
    trained: Any, evaluate: Evaluate, rows: Rows, sweep: Sweep
) -> None:
    """L = 64: the base of T = L is the unscaled row there; at 256 it is that of same_targets."""
    chosen = {"lengths": [64, 128, 256], **PREFIX}
    table = rows(evaluate(trained, sweep("none", **chosen), sweep("pi", {"factor": 4}, **chosen)))
    same = rows(evaluate(trained, lengths=[64, 256], **FEW))
    for part in (table[:3].reset_index(), table[3:].reset_index()):
        for column in ("crop_nll", "gain", "gain_lo", "ngram_nll"):
            assert list(part[column][:2]) == ["", ""] and part[column][2] != "", column
        assert list(part["base_nll"]) == [table["nll"][0], "", same["nll"][0]]


def test_a_short_sweep_does_without_the_training_length(
    trained: Any, sweep: Sweep, evaluate: Evaluate, rows: Rows
) -> None:
    chosen = {"lengths": [128, 256], **PREFIX}
    table = rows(evaluate(trained, sweep("pi", {"factor": 4}, **chosen)))
    assert list(table["status"]) == ["ok", "ok"] and table["base_nll"][0] == ""


def test_one_table_for_all_lengths_and_one_for_each_window(
    trained: Any, sweep: Sweep, evaluate: Evaluate
) -> None:
    for longest in (256, 512):
        chosen = {"lengths": [64, 128, longest], **PREFIX}
        evaluate(trained, sweep("none", **chosen), sweep("pi", {"factor": 4}, **chosen))
    pooled = collect([trained.path]).pooled
    table = terminal_table(pooled)
    for longest in (256, 512):
        assert f"prefix of {longest} (other targets at every length)" in table.replace("\n", " ")
    blocks = table.split("\n\n")
    heads = [b.splitlines()[0] for b in blocks if b.startswith(("perplexity", "ratio"))]
    assert [head.split()[-6:] for head in heads[::2]] == [
        ["64", "1x", "128", "2x", "256", "4x"],
        ["64", "1x", "128", "2x", "512", "8x"],
    ]
    # only at L and at the longest length there is a base of the same tokens
    assert [head.split()[3:] for head in heads[1::2]] == [
        ["64", "1x", "256", "4x"],
        ["64", "1x", "512", "8x"],
    ]
    assert "n-gram" not in table.replace("below n-gram", "")


def test_seeds_are_pooled_and_references_stay_where_they_hold(
    trained: Any,
    tmp_path: Path,
    settings_of: Callable[..., Any],
    text_data: Any,
    evaluate: Evaluate,
    sweep: Sweep,
) -> None:
    config = settings_of(seed=1, train={"steps": 60, "lr": 5e-3})
    other = train.run(config, tmp_path / "other", text_data)
    for run in (trained, other):
        chosen = {"lengths": [64, 128, 256], **FEW}
        evaluate(run, sweep(**chosen), sweep(protocol="prefix", **chosen))
    pooled = collect([trained.path, other.path]).pooled
    assert list(pooled["n_seeds"]) == [2] * 6
    gain = pooled.set_index(["protocol", "test_len"])["gain"]
    assert gain["prefix"].isna().to_list() == [True, True, False]
    assert gain["prefix", 256] == pytest.approx(gain["same_targets", 256], abs=1e-5)
    write_report([trained.path, other.path], tmp_path / "report")
    text = (tmp_path / "report" / "lengths.md").read_text()
    same, prefix = text.split("**tier")[1:]
    assert "n-gram reference" in same and "n-gram reference" not in prefix
    assert "| ratio to L = 64   |   64 1x |   256 4x |" in prefix
    assert (tmp_path / "report" / "perplexity.svg").is_file()
