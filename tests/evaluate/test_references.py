"""The n-gram line, the gate on hand-made losses, the stamp, and texts with one document."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from posbench import registry, train
from posbench.data.dataset import load
from posbench.evaluate import plan as planning
from posbench.evaluate import references, rows
from posbench.evaluate.ngram import Ngram
from posbench.evaluate.references import NgramReference, gate
from posbench.settings import EvalConfig

Evaluate = Callable[..., Path]
K = 32


# --- gate -----------------------------------------------------------------------------------------


def losses(*means: float, spread: float = 0.01, n: int = 12) -> dict[int, np.ndarray]:
    """Losses at 8, 16, 32 and 64 tokens of n documents around these means."""
    offsets = np.linspace(-1, 1, n)
    wobble = spread * np.where(np.arange(n) % 2, 1, -1)
    return {8 * 2**i: mean + offsets + (wobble if i == 3 else 0) for i, mean in enumerate(means)}


REFERENCE = NgramReference(order=5, train_bytes=1000, nats_per_token=3.0, nats_per_byte=1.0)


def test_the_gate_passes_where_loss_falls_and_the_ngram_model_is_beaten() -> None:
    found = gate(losses(3.0, 2.8, 2.6, 2.5), 0.9, REFERENCE)
    assert found["passed"] and found["falls"]
    assert found["margin"] == pytest.approx(0.1)
    assert found["contexts"] == pytest.approx({"8": 3.0, "16": 2.8, "32": 2.6, "64": 2.5})
    assert (found["ngram_order"], found["ngram_train_bytes"]) == (5, 1000)


def test_the_last_step_needs_an_interval_above_zero() -> None:
    contexts = losses(3.0, 2.8, 2.6, 2.5, spread=0.05)
    low = gate(contexts, 0.5, REFERENCE)["last_step_lo"]
    difference = contexts[32] - contexts[64]
    expected, _ = stats.t.interval(
        0.95, len(difference) - 1, difference.mean(), stats.sem(difference)
    )
    assert low == pytest.approx(expected)
    assert gate(contexts, 0.5, REFERENCE)["passed"]
    assert not gate(losses(3.0, 2.8, 2.6, 2.5, spread=0.5), 0.5, REFERENCE)["passed"]


@pytest.mark.parametrize(
    "means",
    [(3.0, 2.8, 2.6, 2.6), (3.0, 2.8, 2.6, 2.7), (3.0, 3.1, 2.6, 2.5), (2.8, 2.8, 2.6, 2.5)],
)
def test_the_gate_fails_where_any_step_does_not_fall(means: tuple[float, ...]) -> None:
    found = gate(losses(*means), 0.5, REFERENCE)
    assert not found["falls"] and not found["passed"]


@pytest.mark.parametrize(
    ("per_byte", "passed"), [(0.949, True), (0.951, False), (1.2, False), (0.5, True)]
)
def test_the_margin_is_five_hundredths_of_a_nat_per_byte(per_byte: float, passed: bool) -> None:
    found = gate(losses(3.0, 2.8, 2.6, 2.5), per_byte, REFERENCE)
    assert found["falls"] and found["passed"] is passed


def test_one_document_never_passes() -> None:
    found = gate(losses(3.0, 2.8, 2.6, 2.5, n=1), 0.1, REFERENCE)
    assert not found["passed"] and found["last_step_lo"] is None


def test_the_order_of_contexts_does_not_matter() -> None:
    contexts = losses(3.0, 2.8, 2.6, 2.5)
    turned = dict(reversed(contexts.items()))
    assert gate(contexts, 0.9, REFERENCE) == gate(turned, 0.9, REFERENCE)


@pytest.mark.parametrize(("length", "contexts"), [(128, [16, 32, 64, 128]), (8, [1, 2, 4, 8])])
def test_the_gate_looks_at_eighths_of_the_training_length(length: int, contexts: list[int]) -> None:
    assert planning.gate_contexts(length) == contexts


def test_the_gate_of_an_evaluation_is_on_the_unscaled_model_and_the_same_targets(
    trained: Any, evaluate: Evaluate, sweep: Callable[..., Any]
) -> None:
    few = {"docs": 4, "blocks": 2, "lengths": [64]}
    folders = [
        evaluate(trained, sweep("none", **few)),
        evaluate(trained, sweep("pi", {"factor": 8}, **few)),
        evaluate(trained, sweep("none", **(few | {"lengths": [128, 256]}))),
    ]
    gates = [json.loads((f / "manifest.json").read_text())["gate"] for f in folders]
    assert gates[0] == gates[1] == gates[2]
    row = pd.read_csv(folders[0] / "lengths.csv").iloc[0]
    assert gates[0]["contexts"]["64"] == pytest.approx(row["nll"], abs=1e-12)
    assert gates[0]["nats_per_byte"] == pytest.approx(row["nll"], abs=1e-12)  # bytes are tokens
    assert set(gates[0]["contexts"]) == {"8", "16", "32", "64"}


# --- stamp ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tier", "passed", "expected"),
    [
        ("demo", True, ""),
        ("demo", False, "demo: below n-gram"),
        ("evidence", False, "demo: below n-gram"),
        ("smoke", True, "smoke run"),
        ("smoke", False, "smoke run; demo: below n-gram"),
    ],
)
def test_the_stamp_follows_from_the_tier_and_the_gate(
    tmp_path: Path,
    settings_of: Callable[..., Any],
    text_data: Any,
    evaluate: Evaluate,
    monkeypatch: pytest.MonkeyPatch,
    tier: str,
    passed: bool,
    expected: str,
) -> None:
    run = train.run(settings_of(train={"steps": 1}, tier=tier), tmp_path / "run", text_data)
    monkeypatch.setattr(references, "gate", lambda *a: {"passed": passed})
    table = pd.read_csv(
        evaluate(run, lengths=[64, 128], docs=2, blocks=1) / "lengths.csv", keep_default_na=False
    )
    assert set(table["stamp"]) == {expected}
    assert set(table["tier"]) == {tier}


def test_a_run_of_a_few_steps_is_stamped(trained: Any, evaluate: Evaluate) -> None:
    folder = evaluate(trained, lengths=[64], docs=4, blocks=2)
    found = json.loads((folder / "manifest.json").read_text())["gate"]
    table = pd.read_csv(folder / "lengths.csv")
    assert not found["passed"] and set(table["stamp"]) == {references.STAMP}


# --- n-gram reference -----------------------------------------------------------------------------


@pytest.mark.parametrize(("docs", "blocks"), [(None, 4), (3, 2), (1, 16)])
def test_the_reference_is_the_ngram_model_on_the_frozen_targets(
    text_data: Any, corpus: Path, docs: int | None, blocks: int
) -> None:
    found = references.ngram(text_data, EvalConfig(docs=docs, blocks=blocks))
    model = Ngram.choose(text_data.train_text, text_data.validation_text)
    queries = [
        ((corpus / d.id).read_bytes()[: end + 1], K)
        for d in text_data.targets.documents[:docs]
        for end in d.ends[:blocks]
    ]
    nats = model.nats(queries)
    assert (found.order, found.train_bytes) == (model.order, model.train_bytes)
    assert found.nats_per_token == pytest.approx(sum(nats) / (K * len(queries)), rel=1e-12)
    assert found.nats_per_byte == pytest.approx(found.nats_per_token, rel=1e-12)


def test_the_reference_counts_bytes_where_tokens_are_longer(corpus: Path) -> None:
    config = registry.get("data", "text").Config(path=str(corpus), tokenizer="bpe300")
    data = load(config)
    found = references.ngram(data, EvalConfig(docs=3, blocks=2))
    model = Ngram.choose(data.train_text, data.validation_text)
    sizes, queries = data.tokenizer.token_bytes(), []
    for d in data.targets.documents[:3]:
        tokens = data.test[d.id]
        for end in d.ends[:2]:
            scored = int(sizes[tokens[end - K + 1 : end + 1]].sum())
            queries.append((data.tokenizer.decode(tokens[: end + 1]), scored))
    total = sum(model.nats(queries))
    assert sum(n for _, n in queries) > K * len(queries)
    assert found.nats_per_token == pytest.approx(total / (K * len(queries)), rel=1e-12)
    assert found.nats_per_byte == pytest.approx(total / sum(n for _, n in queries), rel=1e-12)


def test_the_reference_is_counted_once(text_data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EvalConfig(docs=2, blocks=2)
    first = references.ngram(text_data, config)

    def never(*arguments: Any) -> Any:
        raise AssertionError("counted again")

    monkeypatch.setattr(references, "_count", never)
    assert references.ngram(text_data, config) == first
    assert references.ngram(text_data, EvalConfig(docs=2, blocks=1)).order == first.order


def test_every_row_on_the_targets_carries_the_reference(
    trained: Any, text_data: Any, evaluate: Evaluate, sweep: Callable[..., Any]
) -> None:
    few = {"docs": 3, "blocks": 2, "lengths": [64, 128]}
    rules = [sweep("none", **few), sweep("none", protocol="nonoverlapping", **few)]
    table = pd.read_csv(evaluate(trained, *rules) / "lengths.csv")
    expected = references.ngram(text_data, EvalConfig(docs=3, blocks=2)).nats_per_token
    same = table[table["protocol"] == "same_targets"]
    assert same["ngram_nll"].to_numpy() == pytest.approx(expected, rel=1e-12)
    assert table.loc[table["protocol"] != "same_targets", "ngram_nll"].isna().all()


# --- one file of one's own ------------------------------------------------------------------------


def test_a_single_file_has_intervals_over_blocks_and_says_so(
    tmp_path: Path, corpus: Path, settings_of: Callable[..., Any], evaluate: Evaluate
) -> None:
    file = tmp_path / "one.txt"
    file.write_bytes(b"".join((corpus / f"doc{i:02d}.txt").read_bytes() for i in range(12)))
    config = settings_of(train={"steps": 2}, path=file)
    data = load(config.data)
    run = train.run(config, tmp_path / "run", data)
    folder = evaluate(run, lengths=[64, 128], blocks=6)
    assert json.loads((folder / "manifest.json").read_text())["interval_over"] == "blocks"
    blocks = pd.read_csv(folder / "blocks.csv")
    crop = blocks[blocks["protocol"] == "crop"]
    crop_means = (crop["nats"] / crop["tokens"]).to_numpy()
    for row in pd.read_csv(folder / "lengths.csv").itertuples():
        own = blocks[(blocks["protocol"] == "same_targets") & (blocks["test_len"] == row.test_len)]
        means = (own["nats"] / own["tokens"]).to_numpy()
        assert (row.n_docs, row.n_blocks, len(means)) == (1, 6, 6)
        assert row.n_eff == pytest.approx(6)
        low, high = stats.t.interval(0.95, 5, means.mean(), stats.sem(means))
        assert (row.nll_lo, row.nll_hi) == (pytest.approx(low), pytest.approx(high))
        gains = crop_means - means
        low, high = stats.t.interval(0.95, 5, gains.mean(), stats.sem(gains))
        assert (row.gain_lo, row.gain_hi) == (pytest.approx(low), pytest.approx(high))


def test_units_are_documents_or_blocks() -> None:
    from posbench.evaluate.score import Block

    blocks = [
        Block("a", 0, 9, 4.0, 2, 2), Block("a", 1, 9, 2.0, 2, 2), Block("b", 0, 9, 9.0, 3, 3),
    ]  # fmt: skip
    means, weights = rows.units(blocks, "documents")
    assert means.tolist() == [1.5, 3.0] and weights.tolist() == [4, 3]
    means, weights = rows.units(blocks, "blocks")
    assert means.tolist() == [2.0, 1.0, 3.0] and weights.tolist() == [2, 2, 3]
