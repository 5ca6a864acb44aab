"""The protocol `repeat`: what its windows hold, its control, and what a copy is worth."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import refused
from scipy import stats

from posbench import model as models
from posbench.data.windows import Window
from posbench.evaluate import protocols
from posbench.settings import EvalConfig

K = 32
REPEAT = "eval.protocol=repeat"
CONFIG = EvalConfig(docs=6, blocks=2, lengths=[64, 100, 512])


def _windows(data: Any, protocol: str, length: int) -> list[Window]:
    return list(protocols.read(protocol, data, (length,), CONFIG))


def _copied(window: Window) -> float:
    """Share of the scored tokens that follow the first place of the twelve before them."""
    tokens = [*window.inputs.tolist(), int(window.labels[-1])]
    right = 0
    for place, label in zip(window.scored, window.labels, strict=True):
        tail = tokens[place - 11 : place + 1]
        places = [i for i in range(11, place) if tokens[i - 11 : i + 1] == tail]
        right += bool(places) and tokens[places[0] + 1] == label
    return right / len(window.labels)


@pytest.mark.parametrize("length", [64, 100, 512])
def test_what_is_scored_has_stood_at_the_start_and_all_else_is_as_it_was(
    text_data: Any, corpus: Path, length: int
) -> None:
    plain, repeat = (_windows(text_data, p, length) for p in ("same_targets", "repeat"))
    assert len(plain) == len(repeat) == 12
    for window, control in zip(repeat, plain, strict=True):
        text = (corpus / window.document).read_bytes()
        passage = list(text[window.end - K + 1 : window.end + 1])
        assert window.labels.tolist() == passage == window.inputs[:K].tolist()
        assert window.inputs[K:].tolist() == list(text[window.end - length + K : window.end])
        assert control.inputs.tolist() == list(text[window.end - length : window.end])
        assert window.scored.tolist() == list(range(length - K, length))
        # the label after input T - K + i is inputs[i]: the distance between the two
        assert window.distance == length - K + 1 and control.distance is None
        assert replace(window, inputs=control.inputs, distance=None).end == control.end


def test_copying_pays_with_the_earlier_copy_alone(text_data: Any) -> None:
    for length in (100, 256):
        repeat = np.mean([_copied(w) for w in _windows(text_data, "repeat", length)])
        plain = np.mean([_copied(w) for w in _windows(text_data, "same_targets", length)])
        assert plain < 0.5 * repeat and repeat >= 1 - 12 / K  # the first twelve have no such place


@torch.no_grad()
def _nats(model: models.Decoder, window: Window) -> float:
    logs = model(torch.from_numpy(window.inputs)[None])[0].double().log_softmax(-1)
    return -float(sum(logs[p, t] for p, t in zip(window.scored, window.labels, strict=True)))


def test_rows_stand_beside_their_control(
    trained: Any, evaluate: Callable[..., Path], model: models.Decoder, text_data: Any
) -> None:
    folder = evaluate(trained, lengths=[64, 100, 512], docs=6, blocks=2, protocol="repeat")
    table = pd.read_csv(folder / "lengths.csv").set_index("test_len")
    assert (table["protocol"] == "repeat").all() and len(table) == 3
    for length, row in table.iterrows():
        found = {p: _windows(text_data, p, int(str(length))) for p in ("same_targets", "repeat")}
        nats = {p: np.array([_nats(model, w) for w in own]) for p, own in found.items()}
        assert row["nll"] == pytest.approx(nats["repeat"].sum() / (12 * K), rel=1e-4)
        assert row["control_nll"] == pytest.approx(nats["same_targets"].sum() / (12 * K), rel=1e-4)
        gain = (nats["same_targets"] - nats["repeat"]).reshape(6, 2).mean(1) / K
        low, high = stats.t.interval(0.95, 5, gain.mean(), stats.sem(gain))
        assert row["repeat_gain"] == pytest.approx(gain.mean(), abs=1e-4)
        assert row["repeat_lo"] == pytest.approx(low, abs=1e-4)
        assert row["repeat_hi"] == pytest.approx(high, abs=1e-4)
    blocks = pd.read_csv(folder / "blocks.csv")
    own = blocks[blocks["protocol"] == "repeat"]
    assert (own["distance"] == own["test_len"] - K + 1).all()
    by_distance = pd.read_csv(folder / "distances.csv")
    assert by_distance["tokens"].tolist() == [12 * K] * 3


@pytest.mark.parametrize(("length", "distance"), [(64, 32), (64, 33), (512, 32), (512, 100)])
def test_an_earlier_copy_lies_where_it_is_asked_for(
    text_data: Any, corpus: Path, length: int, distance: int
) -> None:
    windows = list(protocols.read("repeat", text_data, (length,), CONFIG, distance))
    assert len(windows) == 12
    for window in windows:
        text = (corpus / window.document).read_bytes()
        wanted = list(text[window.end - length : window.end + 1])
        for i in range(length + 1 - K, length + 1):  # token by token: d places before
            wanted[i - distance] = text[window.end - length + i]
        assert [*window.inputs, window.labels[-1]] == wanted
        assert window.labels.tolist() == wanted[-K:] and window.distance == distance


def test_every_distance_has_a_row_beside_one_control(
    trained: Any, evaluate: Callable[..., Path], model: models.Decoder, text_data: Any
) -> None:
    sizes = {"lengths": [64, 256], "docs": 6, "blocks": 2, "protocol": "repeat"}
    folder = evaluate(trained, distances=[225, 32, 33, 32], **sizes)
    table = pd.read_csv(folder / "lengths.csv").set_index(["test_len", "distance"])
    places = [(64, 32), (64, 33), (256, 32), (256, 33), (256, 225)]
    assert table.index.tolist() == places
    for (length, distance), row in table.iterrows():
        found = protocols.read("repeat", text_data, (length,), CONFIG, distance)
        nats = sum(_nats(model, w) for w in found)
        assert row["nll"] == pytest.approx(nats / (12 * K), rel=1e-4)
    assert table["control_nll"].groupby("test_len").nunique().tolist() == [1, 1]
    default = pd.read_csv(evaluate(trained, **sizes) / "lengths.csv").set_index("test_len")
    assert default["distance"].isna().all()
    for name in ("nll", "control_nll", "repeat_gain", "repeat_lo", "repeat_hi"):
        assert [table[name][64, 33], table[name][256, 225]] == default[name].tolist()
    by_distance = pd.read_csv(folder / "distances.csv")
    assert len(by_distance) == 5 and not (table.index.get_level_values(1) > 225).any()
    gain = (by_distance["control_nats"] - by_distance["nats"]) / by_distance["tokens"]
    assert gain.tolist() == pytest.approx(table["repeat_gain"].tolist(), abs=1e-12)
    for (_, distance), (_, row) in zip(places, by_distance.iterrows(), strict=True):
        assert row["distance_lo"] <= distance <= row["distance_hi"]
    blocks = pd.read_csv(folder / "blocks.csv")
    counts = blocks.groupby(["protocol", "test_len"]).size()
    assert counts["repeat"].to_dict() == {64: 24, 256: 36}
    assert counts["control"].to_dict() == {64: 12, 256: 12}


def test_the_control_is_the_row_of_same_targets(
    trained: Any, evaluate: Callable[..., Path], sweep: Callable[..., Any]
) -> None:
    few = {"lengths": [64, 256], "docs": 4, "blocks": 1}
    both = [
        sweep(rule, options, protocol=protocol, **few)
        for rule, options in (("none", None), ("pi", {"factor": 4}))
        for protocol in ("same_targets", "repeat")
    ]
    table = pd.read_csv(evaluate(trained, *both) / "lengths.csv")
    table = table.set_index(["protocol", "rescale", "test_len"]).sort_index()
    plain, repeat = table.loc["same_targets"], table.loc["repeat"]
    assert np.array_equal(repeat["control_nll"], plain["nll"])
    assert plain[["control_nll", "repeat_gain", "repeat_lo", "repeat_hi"]].isna().all().all()
    # the same tokens are scored, so crop and n-gram hold for both
    assert np.array_equal(repeat["crop_nll"], plain["crop_nll"])
    assert set(table["targets_hash"]) == {table["targets_hash"].iloc[0]}
    alone = pd.read_csv(evaluate(trained, *both[1::2]) / "lengths.csv")
    alone = alone.set_index(["rescale", "test_len"]).sort_index()
    assert np.array_equal(alone["repeat_gain"], repeat["repeat_gain"])


def test_lengths_that_do_not_hold_two_copies_are_refused(
    posbench: Callable[..., Any], trained: Any
) -> None:
    done = posbench("eval-lengths", str(trained.path), "eval.protocol=repeat", "eval.lengths=[32]")
    refused(done, "eval.lengths=32", "at least 64")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["eval.distances=[31]", REPEAT], ["eval.distances=[31]", "from 32 to 97", "128 tokens"]),
        (["eval.distances=[98,40]", REPEAT], ["eval.distances=[40, 98]", "from 32 to 97"]),
        (["eval.distances=[0]", REPEAT], ["eval.distances"]),
        (["eval.distances=[40]", "eval.protocol=prefix"], [REPEAT]),
    ],
)
def test_distances_that_no_window_holds_are_refused(
    posbench: Callable[..., Any], trained: Any, words: list[str], named: list[str]
) -> None:
    done = posbench("eval-lengths", str(trained.path), "eval.lengths=[64,128]", *words)
    refused(done, *named)
