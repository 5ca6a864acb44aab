"""Protocol `prefix`: all lengths off one pass, what it equals, what it refuses, what rows say."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import files
from torch import Tensor

from posbench import model as models
from posbench import registry, train
from posbench.encodings.base import PositionalEncoding
from posbench.evaluate import lengths as sweeps
from posbench.evaluate import protocols, score
from posbench.positions.base import PositionSampler
from posbench.settings import EvalConfig

Evaluate = Callable[..., Path]
Rows = Callable[[Path], pd.DataFrame]
Sweep = Callable[..., Any]
FEW = {"docs": 3, "blocks": 2}
PREFIX = {"protocol": "prefix", **FEW}
K = 32  # scored tokens of a block


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """[B, T] of the input of every forward pass."""
    made: list[tuple[int, int]] = []
    whole = models.Decoder.hidden

    def counted(self: Any, tokens: Tensor, *rest: Any) -> Tensor:
        made.append((tokens.shape[0], tokens.shape[1]))
        return whole(self, tokens, *rest)

    monkeypatch.setattr(models.Decoder, "hidden", counted)
    return made


@torch.no_grad()
def direct(model: models.Decoder, corpus: Path, data: Any, length: int, whole: int) -> list[float]:
    """Losses of the last K tokens of the first `length` of each window, read on their own."""
    found = []
    for document in data.targets.documents[: FEW["docs"]]:
        text = (corpus / document.id).read_bytes()
        for end in document.ends[: FEW["blocks"]]:
            start = end - whole
            read = torch.tensor(list(text[start : start + length]))[None]
            logits = model(read)[0, -K:].double().log_softmax(-1)
            for row, token in zip(logits, text[start + length - K + 1 :], strict=False):
                found.append(-float(row[token]))
    return found


def test_every_length_is_that_of_a_pass_over_its_own_tokens(
    trained: Any,
    evaluate: Evaluate,
    rows: Rows,
    model: models.Decoder,
    corpus: Path,
    text_data: Any,
) -> None:
    chosen = [64, 80, 200, 512]  # 80 - 32 < 64: scored positions overlap
    folder = evaluate(trained, lengths=chosen, **PREFIX)
    table, blocks = rows(folder), pd.read_csv(folder / "blocks.csv")
    for row in table.itertuples():
        length = int(row.test_len)
        losses = direct(model, corpus, text_data, length, 512)
        assert len(losses) == 3 * 2 * K == int(row.n_targets)
        assert float(row.nll) == pytest.approx(np.mean(losses), abs=1e-5)
        assert float(row.ppl) == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
        assert float(row.mean_context) == np.mean(np.arange(length - K + 1, length + 1))
        own = blocks[(blocks["protocol"] == "prefix") & (blocks["test_len"] == length)]
        sums = np.add.reduceat(losses, range(0, len(losses), K))
        assert own["nats"].to_numpy() == pytest.approx(sums, abs=1e-3)
        ends = [e for d in text_data.targets.documents[:3] for e in d.ends[:2]]
        assert own["end"].to_list() == [e - 512 + length for e in ends]


@pytest.mark.parametrize("scheme", ["rope", "alibi", "t5", "fox", "stick_breaking", "path"])
def test_the_longest_length_is_that_of_same_targets(
    tmp_path: Path,
    settings_of: Callable[..., Any],
    text_data: Any,
    evaluate: Evaluate,
    rows: Rows,
    scheme: str,
) -> None:
    run = train.run(settings_of(scheme, train={"steps": 2}), tmp_path / scheme, text_data)
    tables = [
        rows(evaluate(run, lengths=[64, 256], docs=2, blocks=1, protocol=protocol))
        for protocol in ("prefix", "same_targets")
    ]
    prefix, same = (table[table["test_len"] == "256"].iloc[0] for table in tables)
    for column in ("nll", "nll_lo", "nll_hi", "bpb", "crop_nll", "gain", "gain_lo", "base_nll"):
        assert float(prefix[column]) == pytest.approx(float(same[column]), abs=1e-5), column
    for column in ("targets_hash", "ngram_nll", "n_targets", "n_blocks"):
        assert prefix[column] == same[column] != "", column


def test_all_lengths_come_off_one_pass(
    trained: Any, sweep: Sweep, shapes: list[tuple[int, int]], evaluate: Evaluate
) -> None:
    evaluate(trained, sweep(lengths=[64], **FEW))  # the references: gate, crop and T = L
    assert len({length for _, length in shapes}) > 2
    shapes.clear()
    evaluate(trained, sweep(lengths=[64, 100, 256, 512], **PREFIX))
    assert {length for _, length in shapes} == {512}
    assert sum(batch for batch, _ in shapes) == 3 * 2


def test_a_length_moves_the_others_only_if_it_is_the_longest(
    trained: Any, evaluate: Evaluate, rows: Rows
) -> None:
    whole = rows(evaluate(trained, lengths=[64, 128, 512], **PREFIX))
    for chosen in ([64, 512], [512, 64], [512]):
        some = rows(evaluate(trained, lengths=chosen, **PREFIX))
        same = whole[whole["test_len"].isin(some["test_len"])].reset_index(drop=True)
        pd.testing.assert_frame_equal(some, same)
    longer = rows(evaluate(trained, lengths=[64, 128, 512, 640], **PREFIX))
    assert set(longer["targets_hash"]).isdisjoint(whole["targets_hash"][:2])
    assert set(longer["windows_hash"]).isdisjoint(whole["windows_hash"])


# --- going on -------------------------------------------------------------------------------------


def test_an_interrupted_pass_is_made_again_byte_identical(
    trained: Any, trained_here: Any, copy_run: Callable[..., Any], evaluate: Evaluate
) -> None:
    chosen = {"lengths": [64, 128, 256], **PREFIX}
    whole = evaluate(copy_run(trained_here, root="whole"), **chosen)
    folder = evaluate(trained, memory_limit=1e-9, **chosen)
    kept = folder / sweeps.CELLS
    assert "out_of_memory" in kept.read_text()
    kept.write_text("".join(x for x in kept.read_text().splitlines(True) if "stride1" in x))
    assert files(evaluate(trained, **chosen)) == files(whole)
    assert not kept.exists()


def test_memory_takes_the_longest_lengths_only(
    trained: Any, evaluate: Evaluate, rows: Rows, model: models.Decoder
) -> None:
    limit = score.memory_needed(model, model.posenc, 1, 256, 256) / 2**30  # all are scored
    options = {"lengths": [64, 256, 512], "batch_tokens": 1, **PREFIX}
    table = rows(evaluate(trained, memory_limit=limit, **options))
    assert list(table["status"]) == ["ok", "ok", "out_of_memory"]
    again = rows(evaluate(trained, **options))
    assert list(again["status"]) == ["ok"] * 3
    pd.testing.assert_frame_equal(again[:2], table[:2])


# --- refusals -------------------------------------------------------------------------------------


def test_what_depends_on_the_total_length_is_refused(
    trained: Any, sweep: Sweep, evaluate: Evaluate, rows: Rows, posbench: Callable[..., Any]
) -> None:
    chosen = {"lengths": [64, 128], **PREFIX}
    rules: list[tuple[str, dict[str, Any]]] = [
        ("none", {}), ("yarn", {"factor": 8}), ("rerope", {}), ("self_extend", {"group": 4}),
        ("dynamic_ntk", {"mode": "incremental"}), ("yarn", {}), ("dynamic_ntk", {}),
        ("self_extend", {}), ("stack", {"parts": ["ntk", "logn"]}),
    ]  # fmt: skip
    table = rows(evaluate(trained, *(sweep(r, o, **chosen) for r, o in rules)))
    status = table["status"].to_numpy().reshape(-1, 2)
    assert (status[:5] == "ok").all() and (status[5:] == "unsupported_protocol").all()
    assert (table[10:][["nll", "ppl", "gain", "n_targets"]] == "").all(axis=None)
    done = posbench(
        "eval-lengths", str(trained.path), "eval.protocol=[prefix,same_targets]",
        "eval.lengths=[64,128]", "rescale=[none,pi]", "eval.docs=3", "eval.blocks=2",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "prot = unsupported_protocol" in done.out


class Late(PositionalEncoding):
    """Looks at the last token."""

    depends_on_total_length = True


def test_an_encoding_that_says_so_is_refused_in_any_layer(
    trained: Any, sweep: Sweep, evaluate: Evaluate, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_late(self: PositionalEncoding, layer: int) -> tuple[PositionalEncoding, int]:
        return (Late(None, self.geometry), 0) if layer == 1 else (self, layer)

    whole = models.Decoder.__init__

    def start(self: models.Decoder, *arguments: Any) -> None:
        whole(self, *arguments)
        monkeypatch.setattr(type(self.posenc), "for_layer", with_late)

    monkeypatch.setattr(models.Decoder, "__init__", start)
    chosen = {"lengths": [64, 128], **FEW}
    table = rows(evaluate(trained, sweep(**chosen), sweep(protocol="prefix", **chosen)))
    assert list(table["status"]) == ["ok"] * 2 + ["unsupported_protocol"] * 2


class Stretched(PositionSampler):
    """Positions that reach the same end at every length."""

    def draw(self, batch: int, length: int, generator: Any, training: bool) -> Tensor:
        return (torch.arange(length) * 1024 // length)[None, :, None]


@pytest.mark.parametrize(
    ("positions", "refused"),
    [("standard", False), ("random_offset", False), ("randomized", True), (Stretched, True)],
)
def test_test_positions_that_follow_the_length_are_refused(
    trained: Any,
    evaluate: Evaluate,
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
    positions: Any,
    refused: bool,
) -> None:
    cls = registry.get("positions", positions) if isinstance(positions, str) else positions
    monkeypatch.setattr(models, "build_sampler", lambda config: cls(cls.Config(), 64))
    table = rows(evaluate(trained, lengths=[64, 128], **PREFIX))
    assert list(table["status"]) == ["unsupported_protocol" if refused else "ok"] * 2


def test_a_learned_table_gives_what_it_reaches(
    tmp_path: Path, settings_of: Callable[..., Any], text_data: Any, evaluate: Evaluate, rows: Rows
) -> None:
    config = settings_of("learned", train={"steps": 2, "seq_len": 128})
    run = train.run(config, tmp_path / "learned", text_data)
    table = rows(evaluate(run, lengths=[64, 128, 256], **PREFIX))
    assert list(table["status"]) == ["ok", "ok", "unsupported_length"]
    built = models.build(run.config, 256)
    models.load_weights(built, run.weights)
    config = EvalConfig(lengths=[64, 128, 256], **FEW)
    for row in table[:2].itertuples():
        read = protocols.read("prefix", text_data, (int(row.test_len),), config)
        sizes = text_data.tokenizer.token_bytes()
        blocks = score.score(built.eval(), built.posenc, read, sizes, 1000, math.inf)
        nll = sum(b.nats for b in blocks) / sum(b.tokens for b in blocks)
        assert float(row.nll) == pytest.approx(nll, abs=1e-5)
