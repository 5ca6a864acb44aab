"""Protocol `sliding`: the windows of lm-evaluation-harness, what rows say, what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import refused
from oracles import golden

from posbench import model as models
from posbench.data import windows

Evaluate = Callable[..., Path]
Rows = Callable[[Path], pd.DataFrame]
Sweep = Callable[..., Any]
LONGEST = 1024  # targets of a document
CASES = golden("rolling_windows")["cases"]
SLIDING = {"protocol": "sliding", "docs": 2, "blocks": 1}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['targets']}-{c['window']}-{c['stride']}")
def test_windows_are_those_of_the_harness(case: dict[str, Any]) -> None:
    """First token read, first and last one scored; dividing strides, others, short ends."""
    found = windows.rolling(case["targets"], case["window"], case["stride"])
    assert [list(place) for place in found] == case["windows"]


@pytest.mark.parametrize(("window", "stride"), [(64, 32), (100, 37), (64, 64), (1000, 500)])
def test_documents_are_read_in_these_windows(text_data: Any, window: int, stride: int) -> None:
    contexts: dict[str, list[int]] = {}
    for w in windows.sliding_windows(text_data, window, stride, docs=3):
        tokens = text_data.test[w.document]
        start = w.end - len(w.inputs)
        assert w.inputs.tolist() == tokens[start : w.end].tolist() and len(w.inputs) == window
        assert w.labels.tolist() == [tokens[start + p + 1] for p in w.scored]
        own = contexts.setdefault(w.document, [])
        assert start + w.scored[0] == len(own)  # goes on where the window before it ended
        own += (w.scored + 1).tolist()
    assert list(contexts) == [d.id for d in text_data.targets.documents[:3]]
    for own in contexts.values():
        assert len(own) == LONGEST and own[:window] == list(range(1, window + 1))
        assert min(own[window:]) >= window - stride + 1 and max(own) == window


@torch.no_grad()
def direct(model: models.Decoder, data: Any, window: int, stride: int) -> np.ndarray:
    """Losses of every target of two documents, each read on its own with its context."""
    found = []
    for document in data.targets.documents[:2]:
        tokens = torch.as_tensor(data.test[document.id].astype(np.int64))
        first = window
        for token in range(1, LONGEST + 1):
            if token > window and token > first:
                first = min(first + stride, LONGEST)
            start = 0 if token <= window else first - window
            logits = model(tokens[None, start:token])[0, -1].double().log_softmax(-1)
            found.append(-float(logits[tokens[token]]))
    return np.array(found)


def test_rows_are_sums_over_every_target(
    trained: Any, evaluate: Evaluate, rows: Rows, model: models.Decoder, text_data: Any
) -> None:
    folder = evaluate(trained, window=100, stride=37, lengths=[64, 128], **SLIDING)
    (row,) = rows(folder).to_dict("records")
    losses = direct(model, text_data, 100, 37)
    assert float(row["nll"]) == pytest.approx(losses.mean(), abs=1e-5)
    assert (row["protocol"], row["test_len"], row["stride"]) == ("sliding", "100", "37")
    assert (row["n_docs"], row["n_targets"]) == ("2", str(2 * LONGEST))
    blocks = pd.read_csv(folder / "blocks.csv")
    own = blocks[blocks["protocol"] == "sliding"]
    sizes = [last - first + 1 for _, first, last in _case(LONGEST, 100, 37)]
    assert own["tokens"].to_list() == 2 * sizes
    assert own["end"].to_list() == 2 * [last for *_, last in _case(LONGEST, 100, 37)]
    assert own["nats"].to_numpy() == pytest.approx(
        np.add.reduceat(losses, np.cumsum([0, *sizes, *sizes])[:-1]), abs=1e-3
    )


def _case(*wanted: int) -> list[list[int]]:
    keys = ("targets", "window", "stride")
    return next(c["windows"] for c in CASES if tuple(c[k] for k in keys) == wanted)


def test_every_length_is_a_window_with_half_of_it_as_stride(
    trained: Any, evaluate: Evaluate, rows: Rows, sweep: Sweep
) -> None:
    both = [sweep(lengths=[64, 100], **SLIDING | {"protocol": p}) for p in ("sliding", "prefix")]
    table = rows(evaluate(trained, *both))
    assert list(table["test_len"]) == ["64", "100"] * 2
    assert list(table["stride"]) == ["32", "50", "", ""]
    more = rows(evaluate(trained, lengths=[64, 80, 100], **SLIDING))
    pd.testing.assert_frame_equal(more.iloc[[0, 2]].reset_index(drop=True), table[:2])
    base = rows(evaluate(trained, lengths=[100], **SLIDING))["base_nll"]
    assert list(base) == [table["nll"][0]]  # L = 64


def test_a_stride_of_the_window_is_nonoverlapping(
    trained: Any, evaluate: Evaluate, rows: Rows, sweep: Sweep
) -> None:
    few = {"lengths": [64, 256], "docs": 2, "blocks": 1}
    sliding = rows(evaluate(trained, protocol="sliding", stride=64, **few))
    disjoint = rows(evaluate(trained, protocol="nonoverlapping", **few))
    for column in ("nll", "n_targets", "targets_hash", "mean_context", "bpb"):
        assert sliding[column][0] == disjoint[column][0] != "", column
    assert set(sliding["targets_hash"]) == set(disjoint["targets_hash"])
    assert float(sliding["mean_context"][1]) > float(disjoint["mean_context"][1])
    assert (sliding[["crop_nll", "gain", "ngram_nll", "verdict"]] == "").all(axis=None)


def test_a_stride_above_the_training_length_has_no_base(
    trained: Any, evaluate: Evaluate, rows: Rows
) -> None:
    (row,) = rows(evaluate(trained, lengths=[128], stride=100, **SLIDING)).to_dict("records")
    assert row["base_nll"] == "" and row["stride"] == "100"


def test_what_does_not_fit_is_refused(trained: Any, posbench: Callable[..., Any]) -> None:
    def run(*options: str) -> Any:
        return posbench("eval-lengths", str(trained.path), "eval.lengths=[64,128]", *options)

    sliding = "eval.protocol=[same_targets,sliding]"
    refused(run("eval.window=64"), "eval.window=64: an option of eval.protocol=sliding")
    refused(run("eval.stride=8"), "eval.stride=8: an option of eval.protocol=sliding")
    refused(run(sliding, "eval.stride=65"), "eval.stride=65: must be from 1 to 64")
    refused(run(sliding, "eval.window=80", "eval.stride=81"), "eval.stride=81: must be", "to 80")
    refused(run(sliding, "eval.window=2048"), "eval.window=2048: ", "allow at most 1024 tokens")
    refused(run(sliding, "eval.window=63"), "eval.window=63: must be at least 64")
    refused(run(sliding, "eval.stride=0"), "eval.stride=0: must be at least 1")
