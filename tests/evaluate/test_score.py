"""Scores against a slow loop over single tokens, batching, memory, and what is not finite."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import window
from scipy import stats

from posbench import model as models
from posbench.data import windows
from posbench.evaluate import protocols, score
from posbench.evaluate.score import Block
from posbench.settings import EvalConfig

Evaluate = Callable[..., Path]
Rows = Callable[[Path], pd.DataFrame]
DOCS, BLOCKS, L, K = 3, 2, 64, 32


class Slow:
    """The protocol, one target at a time: text read from the files, plain forward passes."""

    def __init__(self, model: models.Decoder, corpus: Path, data: Any) -> None:
        self.model = model
        self.longest = data.targets.longest
        chosen = data.targets.documents[:DOCS]
        self.ends = {d.id: d.ends[:BLOCKS] for d in chosen}
        self.text = {d.id: (corpus / d.id).read_bytes() for d in chosen}

    @torch.no_grad()
    def nats(self, document: str, start: int, target: int) -> float:
        """Loss of the token at `target` given the tokens from `start` on."""
        context = torch.tensor(list(self.text[document][start:target]))[None]
        logits = self.model(context)[0, -1].double()
        return float(-torch.log_softmax(logits, 0)[self.text[document][target]])

    def targets(self, document: str, block: int) -> range:
        """The tokens t[e-K+1 : e+1]."""
        end = self.ends[document][block]
        return range(end - K + 1, end + 1)

    def same_targets(self, length: int) -> dict[str, list[float]]:
        """Per document: the model reads t[e-T : e]; each target sees what comes before it there."""
        return {
            d: [
                self.nats(d, end - length, target)
                for b, end in enumerate(self.ends[d])
                for target in self.targets(d, b)
            ]
            for d in self.ends
        }

    def crop(self) -> dict[str, list[float]]:
        """Each scored token gets exactly the L tokens before it."""
        return {
            d: [self.nats(d, j - L, j) for b in range(BLOCKS) for j in self.targets(d, b)]
            for d in self.ends
        }

    def nonoverlapping(self, length: int, docs: int) -> dict[str, list[float]]:
        """The targets t[1 .. longest], each after the start of its window of T tokens."""
        return {
            d: [self.nats(d, (j - 1) // length * length, j) for j in range(1, self.longest + 1)]
            for d in [*self.ends][:docs]
        }


@pytest.fixture(scope="module")
def slow(model: models.Decoder, corpus: Path, text_data: Any) -> Slow:
    return Slow(model, corpus, text_data)


def check(row: Any, losses: dict[str, list[float]]) -> None:
    """A row's loss and interval against the losses of every target per document."""
    everything = np.concatenate([*losses.values()])
    means = np.array([np.mean(v) for v in losses.values()])
    assert int(row.n_targets) == len(everything) and int(row.n_docs) == len(means)
    assert float(row.nll) == pytest.approx(everything.mean(), abs=1e-5)
    assert float(row.ppl) == pytest.approx(math.exp(everything.mean()), rel=1e-5)
    assert float(row.bpb) == pytest.approx(everything.mean() / math.log(2), abs=1e-5)
    low, high = stats.t.interval(0.95, len(means) - 1, means.mean(), stats.sem(means))
    assert float(row.nll_lo) == pytest.approx(low, abs=1e-5)
    assert float(row.nll_hi) == pytest.approx(high, abs=1e-5)


def test_same_targets_and_crop_equal_the_slow_loop(
    trained: Any, evaluate: Evaluate, rows: Rows, slow: Slow
) -> None:
    table = rows(evaluate(trained, lengths=[64, 96, 256], docs=DOCS, blocks=BLOCKS))
    crop = slow.crop()
    crop_means = np.array([np.mean(v) for v in crop.values()])
    for row in table.itertuples():
        losses = slow.same_targets(int(row.test_len))
        check(row, losses)
        assert row.status == "ok" and row.protocol == "same_targets"
        assert int(row.n_targets) == DOCS * BLOCKS * K and int(row.n_blocks) == DOCS * BLOCKS
        assert float(row.n_eff) == pytest.approx(DOCS)
        assert float(row.mean_context) == np.mean(
            [target - (end - int(row.test_len)) for d in slow.ends
             for b, end in enumerate(slow.ends[d]) for target in slow.targets(d, b)]
        )  # fmt: skip
        assert float(row.crop_nll) == pytest.approx(crop_means.mean(), abs=1e-5)
        gains = crop_means - np.array([np.mean(v) for v in losses.values()])
        low, high = stats.t.interval(0.95, DOCS - 1, gains.mean(), stats.sem(gains))
        assert float(row.gain) == pytest.approx(gains.mean(), abs=1e-5)
        assert float(row.gain_lo) == pytest.approx(low, abs=1e-5)
        assert float(row.gain_hi) == pytest.approx(high, abs=1e-5)
        assert float(row.ratio) == int(row.test_len) / L
    at_L = table[table["test_len"] == "64"].iloc[0]
    assert set(table["base_nll"]) == {at_L["nll"]}
    assert float(at_L["nll"]) != float(at_L["crop_nll"])


def test_nonoverlapping_equals_the_slow_loop_with_a_shorter_last_window(
    trained: Any, evaluate: Evaluate, rows: Rows, slow: Slow
) -> None:
    length, docs = 192, 2
    assert slow.longest % length == 64
    table = rows(
        evaluate(trained, lengths=[length], docs=docs, protocol="nonoverlapping", threads=1)
    )
    (row,) = table.itertuples()
    losses = slow.nonoverlapping(length, docs)
    check(row, losses)
    assert int(row.n_targets) == docs * slow.longest
    assert int(row.n_blocks) == docs * math.ceil(slow.longest / length)
    contexts = [j - (j - 1) // length * length for j in range(1, slow.longest + 1)]
    assert float(row.mean_context) == pytest.approx(np.mean(contexts))
    by_window = [
        np.mean(v[i : i + length]) for v in losses.values() for i in range(0, len(v), length)
    ]
    assert abs(float(row.nll) - np.mean(by_window)) > 1e-4  # weighted by tokens, not by windows
    assert row.gain == "" and row.crop_nll == ""


def test_blocks_csv_holds_the_same_nats(trained: Any, evaluate: Evaluate, slow: Slow) -> None:
    folder = evaluate(trained, lengths=[96], docs=DOCS, blocks=BLOCKS)
    blocks = pd.read_csv(folder / "blocks.csv")
    losses, crop = slow.same_targets(96), slow.crop()
    for protocol, expected in (("same_targets", losses), ("crop", crop)):
        for (document, block), part in blocks[blocks["protocol"] == protocol].groupby(
            ["document", "block"]
        ):
            (found,) = part.itertuples()
            own = expected[document][block * K : (block + 1) * K]
            assert found.nats == pytest.approx(sum(own), abs=1e-3)
            assert (found.tokens, found.bytes) == (K, K)
            assert found.end == slow.ends[document][block]
    counts = blocks["protocol"].value_counts().to_dict()
    assert counts == dict.fromkeys(["same_targets", "crop", "context16"], DOCS * BLOCKS)


@pytest.mark.parametrize(
    "protocol", ["same_targets", "nonoverlapping", "sliding", "prefix", "stride1"]
)
@pytest.mark.parametrize("length", [64, 100, 512])
def test_mean_context_and_number_of_targets_by_brute_force(
    text_data: Any, protocol: str, length: int
) -> None:
    config = EvalConfig(blocks=3, docs=4, lengths=[64, 100, 512])
    read = list(protocols.read(protocol, text_data, (length,), config))
    contexts = np.concatenate([w.scored + 1 for w in read])
    found = protocols.mean_context(protocol, text_data, (length,), config)
    assert found == pytest.approx(contexts.mean())
    whole = protocol in ("nonoverlapping", "sliding")
    assert len(contexts) == (4 * text_data.targets.longest if whole else 4 * 3 * K)
    assert all(len(w.inputs) == length for w in read) or whole
    for w in read:
        tokens = text_data.test[w.document]
        first = w.end - int(w.scored[-1])
        assert (w.labels == tokens[first + w.scored]).all()
        assert (w.inputs == tokens[first - 1 : first - 1 + len(w.inputs)]).all()


def test_the_scored_tokens_are_the_same_at_every_length(text_data: Any) -> None:
    def scored(protocol: str, length: int) -> list[tuple[str, int]]:
        config = EvalConfig(blocks=2)
        return [
            (w.document, w.end - int(w.scored[-1]) + int(s))
            for w in protocols.read(protocol, text_data, (length,), config)
            for s in w.scored
        ]

    first = scored("same_targets", 64)
    assert len(set(first)) == len(first)
    for protocol, length in (("same_targets", 1024), ("same_targets", 100), ("stride1", 64)):
        assert scored(protocol, length) == first


# --- batching -------------------------------------------------------------------------------------


def test_batches_hold_windows_of_one_shape_up_to_a_number_of_tokens() -> None:
    sizes = [8, 8, 8, 4, 4, 8, 100]
    passes = score.batches(zip(map(window, sizes)), 16)
    found = [[len(w.inputs) for (w,) in batch] for batch in passes]
    assert found == [[8, 8], [8], [4, 4], [8], [100]]
    assert list(score.batches([], 16)) == []


def test_windows_of_one_block_are_summed_and_bytes_counted(model: models.Decoder) -> None:
    sizes = np.arange(256) + 1
    read = [window(9, "a", 0, 2), window(9, "b", 0, 2), window(9, "b", 1, 2), window(9, "a", 0, 2)]
    found = score.score(model, model.posenc, read, sizes, 18, math.inf)
    assert [(b.document, b.block, b.tokens, b.bytes) for b in found] == [
        ("a", 0, 4, 2 * (1 + 2)), ("b", 0, 2, 3), ("b", 1, 2, 3),
    ]  # fmt: skip
    assert found[0].nats == pytest.approx(2 * found[1].nats, rel=1e-6)


@pytest.mark.parametrize("tokens", [1, 300, 10**6])
def test_the_size_of_a_batch_moves_no_row(
    model: models.Decoder, text_data: Any, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = text_data.tokenizer.token_bytes()

    def measure(batch_tokens: int) -> list[Block]:
        read = windows.target_windows(text_data, 128, 3, 2)
        return score.score(model, model.posenc, read, sizes, batch_tokens, math.inf)

    reference = measure(512)
    monkeypatch.setattr(score, "LOGIT_ROWS", 7)
    for a, b in zip(reference, measure(tokens), strict=True):
        assert a.nats == pytest.approx(b.nats, abs=1e-5 * K)
        assert (a.document, a.block, a.end, a.tokens) == (b.document, b.block, b.end, b.tokens)


def test_infinite_losses_are_told_apart() -> None:
    good = Block("d", 0, 1, 2.0, 1, 1)
    assert score.finite([good])
    for value in (math.nan, math.inf):
        assert not score.finite([good, Block("d", 1, 1, value, 1, 1)])
