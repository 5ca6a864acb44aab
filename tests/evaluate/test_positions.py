"""positions.csv against slow loops, and `prefix` against `same_targets` token by token."""

import json
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from posbench import model as models
from posbench.data.targets import TargetDocument
from posbench.evaluate import kept, positions, protocols, score
from posbench.settings import EvalConfig

Evaluate = Callable[..., Path]
Rows = Callable[[Path], pd.DataFrame]
Sweep = Callable[..., Any]
FEW = {"docs": 2, "blocks": 2}
K, L = 32, 64


# --- buckets --------------------------------------------------------------------------------------


def test_buckets_double_every_second_one_and_end_at_the_training_length() -> None:
    expected = [1, 2, 4, 5, 8, 11, 16, 22, 32, 45, 64, 90, 128, 181, 256]
    assert positions.bounds(128, 256) == expected
    assert positions.bounds(128, 182) == expected


@pytest.mark.parametrize("length", [8, 96, 100, 128, 511])
def test_bounds_are_powers_of_the_root_of_two_times_the_training_length(length: int) -> None:
    found = positions.bounds(length, 16 * length)
    assert found[0] == 1 and found[-1] == 16 * length and length in found
    assert sorted(set(found)) == found
    wanted = {math.floor(length * 2 ** (k / 2) + 1e-9) for k in range(-30, 9)} - {0}
    assert found == sorted(wanted | {1})


@torch.no_grad()
def read(model: models.Decoder, tokens: np.ndarray) -> np.ndarray:
    """Losses of tokens 1 .. n of a sequence, after 1 .. n tokens."""
    ids = torch.as_tensor(tokens.astype(np.int64))[None]
    logs = model(ids[:, :-1])[0].double().log_softmax(-1)
    return np.array([-float(row[token]) for row, token in zip(logs, ids[0, 1:], strict=True)])


def grouped(pairs: list[tuple[int, float]]) -> dict[tuple[int, int], tuple[float, int]]:
    """(context, nats) -> (lo, hi) -> (nats, tokens), with the buckets of L = 64."""
    ends = [1, 2, 4, 5, 8, 11, 16, 22, 32, 45, 64, 90, 128, 181, 256, 362, 512]
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for context, nats in pairs:
        i = next(i for i, end in enumerate(ends) if end >= context)
        found[(ends[i - 1] + 1 if i else 1, ends[i])].append(nats)
    return {bucket: (sum(nats), len(nats)) for bucket, nats in found.items()}


def written(folder: Path, **chosen: Any) -> dict[tuple[int, int], tuple[float, int]]:
    table = pd.read_csv(folder / "positions.csv", keep_default_na=False)
    for column, value in chosen.items():
        table = table[table[column] == value]
    return {(r.bucket_lo, r.bucket_hi): (r.nats, r.tokens) for r in table.itertuples()}


def equal(found: dict[Any, Any], wanted: dict[Any, Any]) -> None:
    assert list(found) == sorted(wanted)
    for bucket, (nats, tokens) in wanted.items():
        assert found[bucket] == (pytest.approx(nats, abs=1e-3), tokens), bucket


def test_positions_of_every_protocol_by_slow_loops(
    trained: Any, evaluate: Evaluate, sweep: Sweep, model: models.Decoder, text_data: Any
) -> None:
    names = ("same_targets", "nonoverlapping", "sliding", "prefix")
    chosen = {"lengths": [64, 96], **FEW}
    folder = evaluate(trained, *(sweep(protocol=name, **chosen) for name in names))
    pairs: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for document in text_data.targets.documents[:2]:
        tokens = text_data.test[document.id]
        for start in range(0, 1024, 96):
            losses = read(model, tokens[start : min(start + 96, 1024) + 1])
            pairs["nonoverlapping"] += enumerate(losses, 1)
        for start in [*range(0, 1024 - 96, 48), 1024 - 96]:
            losses = list(enumerate(read(model, tokens[start : start + 97]), 1))
            new = 96 if not start else 48 if start < 1024 - 96 else (1024 - 96) % 48 or 48
            pairs["sliding"] += losses[-new:]
        for end in document.ends[:2]:
            losses = list(enumerate(read(model, tokens[end - 96 : end + 1]), 1))
            pairs["prefix"] += losses
            pairs["same_targets"] += losses[-K:]
    for name in names:
        equal(written(folder, protocol=name, test_len=96), grouped(pairs[name]))
    assert not written(folder, protocol="prefix", test_len=64)
    assert set(written(folder, protocol="same_targets", test_len=64)) == {(33, 45), (46, 64)}


def test_the_columns_and_rescalings(
    trained: Any, evaluate: Evaluate, rows: Rows, sweep: Sweep
) -> None:
    chosen = {"lengths": [64, 128], "protocol": "nonoverlapping", **FEW}
    rules = [sweep("none", **chosen), sweep("yarn", {"factor": 8, "beta": 4}, **chosen)]
    folder = evaluate(trained, *rules)
    header = "run_id,rescale,factor,options,protocol,test_len,bucket_lo,bucket_hi,nats,tokens"
    assert (folder / "positions.csv").read_text().splitlines()[0] == header
    table = pd.read_csv(folder / "positions.csv", keep_default_na=False)
    assert set(zip(table["rescale"], table["factor"], table["options"], strict=True)) == {
        ("none", "", ""), ("yarn", "8", "beta=4"),
    }  # fmt: skip
    for row in rows(folder).itertuples():
        own = table[(table["rescale"] == row.rescale) & (table["test_len"] == int(row.test_len))]
        assert own["nats"].sum() / own["tokens"].sum() == pytest.approx(float(row.nll), rel=1e-12)
        assert set(own["run_id"]) == {row.run_id}
        assert own["bucket_hi"].max() == int(row.test_len)


def test_an_interrupted_sweep_keeps_its_positions(
    trained: Any, trained_here: Any, copy_run: Callable[..., Any], evaluate: Evaluate
) -> None:
    chosen = {"lengths": [64, 128], "protocol": "nonoverlapping", **FEW}
    whole = evaluate(copy_run(trained_here, root="whole"), **chosen) / "positions.csv"
    folder = evaluate(trained, memory_limit=1e-9, **chosen)
    assert (folder / "positions.csv").read_text().count("\n") == 1
    assert (evaluate(trained, **chosen) / "positions.csv").read_bytes() == whole.read_bytes()


def test_cells_that_were_kept_without_positions_are_measured_again(tmp_path: Path) -> None:
    key = {"rule": "none", "protocol": "sliding", "shape": [64]}
    old = {"key": key, "cell": {"status": "ok", "blocks": []}}
    new = {"key": key, "cell": {"status": "ok", "blocks": [], "positions": [[1, 1, 2.0, 3]]}}
    (tmp_path / "cells.jsonl").write_text(json.dumps(old) + "\n")
    assert not kept.read(tmp_path / "cells.jsonl")
    (tmp_path / "cells.jsonl").write_text(json.dumps(new) + "\n")
    (cell,) = kept.read(tmp_path / "cells.jsonl").values()
    assert cell.positions == [[1, 1, 2.0, 3]]


# --- prefix is same_targets where token and context are the same ----------------------------------


@pytest.mark.parametrize("length", [64, 100, 256])
def test_prefix_gives_each_token_what_same_targets_does(
    model: models.Decoder, text_data: Any, length: int
) -> None:
    """The tokens that `prefix` scores at T, made into frozen targets of their own."""
    longest = 256
    targets = text_data.targets
    moved = [
        TargetDocument(d.id, [e - longest + length for e in d.ends]) for d in targets.documents
    ]
    data = replace(text_data, targets=replace(targets, documents=moved))
    config = EvalConfig(lengths=[64, 100, longest], **FEW)
    sizes = text_data.tokenizer.token_bytes()
    how = model, model.posenc
    shared = score.score_together(
        *how, protocols.readings(text_data, [64, 100, longest], config), sizes, 1000, math.inf
    )[1:]
    prefix = shared[[64, 100, longest].index(length)]
    same = score.score(*how, protocols.read("same_targets", data, (length,), config), sizes, 1, 1e9)
    assert len(prefix) == len(same) == 2 * 2
    for a, b in zip(prefix, same, strict=True):
        assert (a.document, a.block, a.end, a.tokens) == (b.document, b.block, b.end, b.tokens)
        assert a.nats == pytest.approx(b.nats, abs=1e-4)
