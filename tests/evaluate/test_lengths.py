"""The sweep of a run: rows that depend on nothing else, refusals, and going on where it stopped."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from helpers import files
from safetensors.torch import load_file, save_file

from posbench import runs, train
from posbench.evaluate import protocols, rows, score
from posbench.files import file_sha256

Evaluate = Callable[..., Path]
Rows = Callable[[Path], pd.DataFrame]
Sweep = Callable[..., Any]
FEW = {"docs": 3, "blocks": 2}


@pytest.fixture
def new_run(tmp_path: Path, settings_of: Callable[..., Any], text_data: Any) -> Callable[..., Any]:
    """Trains a run for two steps."""

    def make(posenc: str, **changes: Any) -> Any:
        config = settings_of(posenc, **{"train": {"steps": 2}, **changes})
        return train.run(config, tmp_path / "new" / posenc, text_data)

    return make


# --- what a row may depend on ---------------------------------------------------------------------


def test_the_order_of_lengths_does_not_matter(
    trained: Any, copy_run: Callable[..., Any], trained_here: Any, evaluate: Evaluate
) -> None:
    other = copy_run(trained_here, root="other")
    up = evaluate(trained, lengths=[64, 128, 256], **FEW)
    down = evaluate(other, lengths=[256, 128, 64, 128], **FEW)
    assert up.name == down.name
    assert files(up) == files(down)
    table = pd.read_csv(up / rows.LENGTHS)
    assert table["test_len"].to_list() == [64, 128, 256]


def test_adding_a_length_leaves_the_other_rows_as_they_were(
    trained: Any, evaluate: Evaluate, rows: Rows, sweep: Sweep
) -> None:
    def measure(chosen: list[int]) -> pd.DataFrame:
        rules = [sweep(r, lengths=chosen, **FEW) for r in ("none", "ntk", "yarn")]
        return rows(evaluate(trained, *rules))

    few, more = measure([64, 256]), measure([64, 128, 256, 512])
    kept = more[more["test_len"].isin(["64", "256"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(few, kept)
    assert len(more) == 12


def test_adding_a_rescaling_or_protocol_leaves_the_other_rows_as_they_were(
    trained: Any, evaluate: Evaluate, rows: Rows, sweep: Sweep
) -> None:
    alone = rows(evaluate(trained, lengths=[64, 128], **FEW))
    rules = [
        sweep("none", lengths=[64, 128], **FEW),
        sweep("pi", {"factor": 4}, lengths=[64, 128], **FEW),
        sweep("none", lengths=[64, 128], protocol="nonoverlapping", **FEW),
    ]
    many = rows(evaluate(trained, *rules))
    plain = many[(many["rescale"] == "none") & (many["protocol"] == "same_targets")]
    pd.testing.assert_frame_equal(alone, plain.reset_index(drop=True))


def test_another_batch_size_moves_a_row_by_less_than_1e_5(
    trained_here: Any, copy_run: Callable[..., Any], evaluate: Evaluate
) -> None:
    tables = []
    for i, tokens in enumerate((1, 1000, 100_000)):
        run = copy_run(trained_here, root=str(i))
        folder = evaluate(run, lengths=[64, 256], batch_tokens=tokens, **FEW)
        tables.append(pd.read_csv(folder / rows.LENGTHS))
    for table in tables[1:]:
        for column in ("nll", "nll_lo", "nll_hi", "crop_nll", "gain"):
            assert (table[column] - tables[0][column]).abs().max() < 1e-5


def test_dynamic_ntk_equals_ntk_auto_exactly(
    trained: Any, evaluate: Evaluate, rows: Rows, sweep: Sweep
) -> None:
    chosen = [64, 96, 128, 512]
    rules = [sweep(r, lengths=chosen, **FEW) for r in ("ntk", "dynamic_ntk", "none")]
    table = rows(evaluate(trained, *rules)).drop(columns=["rescale", "factor"])
    parts = [table.iloc[i : i + 4].reset_index(drop=True) for i in (0, 4, 8)]
    pd.testing.assert_frame_equal(parts[0], parts[1])
    assert parts[0]["scale"].to_list() == ["1.0", "1.5", "2.0", "8.0"]
    assert parts[0]["nll"][0] == parts[2]["nll"][0]
    assert (parts[0]["nll"][1:] != parts[2]["nll"][1:]).all()


def test_an_automatic_factor_changes_nothing_inside_the_training_length(
    trained: Any, evaluate: Evaluate, rows: Rows, sweep: Sweep
) -> None:
    names = ("none", "pi", "ntk", "ntk_by_parts", "yarn", "yarn_paper", "dynamic_ntk")
    table = rows(evaluate(trained, *(sweep(r, lengths=[64], **FEW) for r in names)))
    assert len(set(table["nll"])) == 1
    assert list(table["rescale"]) == list(names)


def test_a_fixed_factor_has_its_tax_inside_and_its_gain_is_against_the_unscaled_crop(
    trained: Any, evaluate: Evaluate, rows: Rows, sweep: Sweep
) -> None:
    rules = [sweep("none", lengths=[64], **FEW), sweep("pi", {"factor": 8}, lengths=[64], **FEW)]
    table = rows(evaluate(trained, *rules)).set_index("rescale")
    assert float(table["nll"]["pi"]) > float(table["nll"]["none"])
    assert table["crop_nll"]["pi"] == table["crop_nll"]["none"]
    assert table["base_nll"]["pi"] == table["nll"]["none"]
    gain = float(table["crop_nll"]["pi"]) - float(table["nll"]["pi"])
    assert float(table["gain"]["pi"]) == pytest.approx(gain, abs=1e-12)
    assert (table["factor"]["pi"], table["scale"]["pi"]) == ("8", "8.0")


def test_default_lengths_follow_the_training_length() -> None:
    assert protocols.default_lengths(128, 16384) == [64, 128, 256, 512, 1024, 2048]
    assert protocols.default_lengths(64, 512) == [64, 128, 256, 512]
    assert protocols.default_lengths(4096, 1024) == []


# --- what a row says ------------------------------------------------------------------------------


def test_a_row_states_what_it_is(trained: Any, evaluate: Evaluate, rows: Rows) -> None:
    (row,) = rows(evaluate(trained, lengths=[128], **FEW)).to_dict("records")
    expected = {
        "run_id": trained.path.name,
        "name": "default",
        "posenc": "rope",
        "preset": "rope",
        "positions": "standard",
        "rescale": "none",
        "factor": "",
        "scale": "1.0",
        "data": "text",
        "tokenizer": "bytes",
        "tier": "demo",
        "track": "strict",
        "seed": "0",
        "protocol": "same_targets",
        "train_len": "64",
        "test_len": "128",
        "ratio": "2.0",
        "n_docs": "3",
        "n_blocks": "6",
        "n_targets": "192",
        "status": "ok",
        "dtype": "float32",
    }
    assert {k: row[k] for k in expected} == expected
    assert len(row["targets_hash"]) == 12
    assert float(row["nll_lo"]) < float(row["nll"]) < float(row["nll_hi"])


def test_the_columns_are_those_that_were_promised(trained: Any, evaluate: Evaluate) -> None:
    promised = (
        "run_id name posenc preset positions rescale factor scale data tokenizer tier track seed "
        "protocol train_len test_len ratio n_docs n_eff n_blocks n_targets targets_hash "
        "mean_context nll nll_lo nll_hi ppl bpb crop_nll gain gain_lo gain_hi verdict status dtype"
    )
    folder = evaluate(trained, lengths=[64], **FEW)
    found = (folder / rows.LENGTHS).read_text().splitlines()[0]
    assert found.startswith(promised.replace(" ", ","))
    manifest = json.loads((folder / runs.MANIFEST).read_text())
    assert manifest["status"] == "finished" and manifest["run_id"] == trained.path.name
    assert manifest["lengths"] == [64] and manifest["rescalings"] == {"none": {"name": "none"}}
    assert manifest["interval_over"] == "documents" and "passed" in manifest["gate"]


def test_one_document_has_no_intervals(trained: Any, evaluate: Evaluate, rows: Rows) -> None:
    (row,) = rows(evaluate(trained, lengths=[128], docs=1)).to_dict("records")
    assert row["n_docs"] == "1" and float(row["nll"]) > 0 and row["gain"] != ""
    assert [row[c] for c in ("nll_lo", "nll_hi", "gain_lo", "gain_hi")] == ["", "", "", ""]


def test_perplexity_of_a_huge_loss_is_infinite() -> None:
    from posbench.evaluate.rows import perplexity

    assert perplexity(1000.0) == math.inf
    assert perplexity(2.0) == math.exp(2.0)


# --- refusals are rows ----------------------------------------------------------------------------


def status(table: pd.DataFrame) -> list[str]:
    return table["status"].to_list()


def empty_numbers(table: pd.DataFrame) -> bool:
    numbers = ["nll", "nll_lo", "nll_hi", "ppl", "bpb", "gain", "gain_lo", "gain_hi", "n_targets"]
    return bool((table[numbers] == "").all(axis=None))


def test_a_learned_table_is_unsupported_past_its_end(
    new_run: Callable[..., Any], evaluate: Evaluate, rows: Rows
) -> None:
    table = rows(evaluate(new_run("learned"), lengths=[64, 128, 1024], **FEW))
    assert status(table) == ["ok", "unsupported_length", "unsupported_length"]
    assert empty_numbers(table[1:])


def test_a_rescaling_of_what_is_not_rotary_is_unsupported(
    new_run: Callable[..., Any], evaluate: Evaluate, rows: Rows, sweep: Sweep
) -> None:
    rules = [sweep(r, lengths=[64, 128], **FEW) for r in ("pi", "none", "dynamic_ntk")]
    table = rows(evaluate(new_run("alibi"), *rules))
    assert status(table) == ["unsupported_rescale"] * 2 + ["ok"] * 2 + ["unsupported_rescale"] * 2
    assert empty_numbers(table.iloc[[0, 1, 4, 5]])


def test_a_tiny_memory_limit_gives_rows_too(trained: Any, evaluate: Evaluate, rows: Rows) -> None:
    folder = evaluate(trained, lengths=[64, 128], memory_limit=1e-9, **FEW)
    table = rows(folder)
    assert status(table) == ["out_of_memory"] * 2
    assert empty_numbers(table)
    assert json.loads((folder / runs.MANIFEST).read_text())["gate"]["passed"] is False


def test_the_sweep_goes_on_after_a_row_that_needs_too_much(
    trained: Any, evaluate: Evaluate, rows: Rows, sweep: Sweep
) -> None:
    from posbench import model as models

    built = models.build(trained.config, 256)
    limit = score.memory_needed(built, built.posenc, 1, 512, 32) / 2**30
    options = {"lengths": [64, 512, 1024], "memory_limit": limit, "batch_tokens": 1} | FEW
    table = rows(evaluate(trained, sweep("none", **options), sweep("pi", **options)))
    assert status(table) == ["ok", "ok", "out_of_memory"] * 2


def test_weights_that_are_not_numbers_give_nonfinite_rows(
    trained: Any, evaluate: Evaluate, rows: Rows
) -> None:
    weights = load_file(trained.weights)
    weights["blocks.0.mlp.up_proj.weight"][0, 0] = torch.nan
    save_file(weights, trained.path / runs.CHECKPOINT / runs.WEIGHTS)
    file = trained.path / runs.CHECKPOINT / runs.WEIGHTS
    trained.update(weights_sha256=file_sha256(file))
    table = rows(evaluate(trained, lengths=[64, 128], **FEW))
    assert status(table) == ["nonfinite"] * 2
    assert empty_numbers(table)


def test_every_refusal_can_be_printed(
    trained: Any, posbench: Callable[..., Any], new_run: Callable[..., Any]
) -> None:
    few = ["eval.docs=2", "eval.blocks=1", "eval.lengths=[64,128]"]
    done = posbench("eval-lengths", str(trained.path), "eval.memory_limit=1e-9", *few)
    assert done.code == 0 and "rope" in done.out, done.err
    done = posbench("eval-lengths", str(new_run("learned").path), "rescale=[none,pi]", *few)
    assert done.code == 0 and "learned" in done.out, done.err
