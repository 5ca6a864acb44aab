"""`data.bos` and `data.starts`: what windows begin with, and that nothing else changes."""

import dataclasses
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posbench import model as models
from posbench import registry, runs, settings, train
from posbench.data import windows
from posbench.data.dataset import Dataset, load
from posbench.data.tokenizer import Tokenizer
from posbench.data.windows import training_batch
from posbench.errors import ConfigError
from posbench.evaluate import protocols, references
from posbench.settings import EvalConfig

CONFIG = EvalConfig(docs=3, blocks=2, lengths=[64, 256])
SHAPE = (64,)


def opened(dataset: Dataset, **options: Any) -> Dataset:
    """The same corpus with other openings."""
    return load(dataclasses.replace(dataset.config, **options))


@pytest.fixture(scope="module")
def bos(dataset: Dataset) -> Dataset:
    return opened(dataset, bos=True)


def test_the_start_token_is_one_more_and_stands_for_no_bytes(
    dataset: Dataset, bos: Dataset, tmp_path: Path
) -> None:
    own, plain = bos.tokenizer, dataset.tokenizer
    assert (own.start, plain.start) == (plain.vocab_size, None)
    assert own.vocab_size == plain.vocab_size + 1 == len(own.token_bytes())
    assert own.token_bytes().tolist() == [*plain.token_bytes().tolist(), 0]
    (ids,) = own.encode(["the state of peace"])
    assert own.decode([own.start, *ids]) == b"the state of peace"
    own.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").vocab_size == plain.vocab_size
    assert (own.sha256, bos.targets) == (plain.sha256, dataset.targets)


def everything(data: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(inputs, labels) of training, validation and every protocol."""
    yield from zip(*training_batch(data, 64, 5, seed=1, step=2), strict=True)
    yield from zip(*data.validation_windows(SHAPE, 6), strict=True)
    for protocol in ("same_targets", "nonoverlapping", "sliding", "stride1"):
        for window in protocols.read(protocol, data, SHAPE, CONFIG):
            yield window.inputs, window.labels
    for window in protocols.read("stride1", data, (8,), CONFIG):
        yield window.inputs, window.labels
    for reading in protocols.readings(data, [64, 256], CONFIG):
        for window in reading:
            yield window.inputs, window.labels


def test_every_window_begins_with_it_and_is_else_what_it_was(
    dataset: Dataset, bos: Dataset
) -> None:
    count = 0
    for (inputs, labels), (plain, same) in zip(everything(bos), everything(dataset), strict=True):
        assert inputs[0] == bos.tokenizer.start and inputs[0] not in inputs[1:]
        assert inputs[1:].tolist() == plain[1:].tolist() and len(inputs) == len(plain)
        assert labels.tolist() == same.tolist() and bos.tokenizer.start not in labels
        assert plain[0] < dataset.tokenizer.vocab_size
        count += 1
    assert count > 400


def test_an_earlier_copy_stands_behind_it(dataset: Dataset, bos: Dataset) -> None:
    pairs = zip(*(protocols.read("repeat", d, SHAPE, CONFIG) for d in (bos, dataset)), strict=True)
    for window, plain in pairs:
        labels = window.labels.tolist()
        assert labels == plain.labels.tolist() and len(window.inputs) == len(plain.inputs)
        assert window.inputs[:33].tolist() == [bos.tokenizer.start, *labels]
        assert window.inputs[33:].tolist() == plain.inputs[33:].tolist()
        assert window.distance == plain.distance - 1


def test_the_ngram_reference_is_that_without_it(dataset: Dataset, bos: Dataset) -> None:
    assert references.ngram(bos, CONFIG) == references.ngram(dataset, CONFIG)


def test_a_run_with_it(
    tmp_path: Path, settings_of: Callable[..., Any], corpus: Path, text_data: Any, trained: Any
) -> None:
    """Trained, opened again and evaluated; a loss by hand from the file's bytes."""
    from posbench.evaluate import lengths
    from posbench.evaluate import plan as planning

    config = settings_of(train={"steps": 3})
    config.data.bos = True
    data = load(config.data)
    names = [settings.run_id(c, data.content_sha256) for c in (config, settings_of())]
    assert names[0] != names[1]
    run = train.run(config, tmp_path / "run", data)
    again = runs.load_dataset(runs.Run.open(run.path))
    assert again.tokenizer.vocab_size == 257
    model = models.build(config, 257)
    start = models.build(settings_of(), 256)
    assert torch.equal(model.embedding.weight[:256], start.embedding.weight)
    models.load_weights(model, run.weights)
    with pytest.raises(ConfigError, match="its data, tokenizer or targets are others"):
        references.trained_long(trained, str(run.path))
    evaluation = EvalConfig(docs=2, blocks=1, lengths=[64], threads=1, device="cpu")
    rule = registry.get("rescale", "none").Config()
    sweep = settings.SweepConfig(rescale=rule, eval=evaluation)
    folders = [lengths.evaluate(planning.plan(r, [sweep])) for r in (run, trained)]
    nats, tables = [], [_rows(folder) for folder in folders]
    for document in text_data.targets.documents[:2]:
        text, end = (corpus / document.id).read_bytes(), document.ends[0]
        inputs = torch.tensor([[256, *text[end - 63 : end]]])
        with torch.no_grad():
            logs = model(inputs)[0].log_softmax(-1)
        nats += [-float(logs[32 + i, text[end - 31 + i]]) for i in range(32)]
    assert tables[0]["nll"][0] == pytest.approx(sum(nats) / 64, abs=1e-5)
    for column in ("targets_hash", "ngram_nll", "n_targets", "test_len"):
        assert tables[0][column].tolist() == tables[1][column].tolist()


def _rows(folder: Path) -> Any:
    import pandas as pd

    return pd.read_csv(folder / "lengths.csv")


# --- windows at a document's start ----------------------------------------------------------------


def test_all_windows_begin_at_a_document_each_alike(dataset: Dataset) -> None:
    small = opened(dataset, starts=1.0)
    small.train_tokens = np.arange(30, dtype=np.uint16)
    small.train_offsets = np.array([0, 5, 12, 15, 30])  # the third is too short for 4 + 1 tokens
    seen: dict[int, int] = {}
    for step in range(200):
        inputs, labels = training_batch(small, 4, 15, seed=1, step=step)
        assert np.array_equal(labels, inputs + 1)
        for first in inputs[:, 0].tolist():
            seen[first] = seen.get(first, 0) + 1
    assert sorted(seen) == [0, 5, 15]
    assert min(seen.values()) > 900 and max(seen.values()) < 1100


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_share_of_them_and_the_others_are_those_without(dataset: Dataset, share: float) -> None:
    some = opened(dataset, starts=share)
    tokens = dataset.train_tokens
    starts = {tokens[a : a + 17].tobytes() for a, _ in pairwise(dataset.train_offsets)}
    moved = total = 0
    for step in range(60):
        plain = np.concatenate(training_batch(dataset, 16, 20, seed=2, step=step), axis=1)
        found = np.concatenate(training_batch(some, 16, 20, seed=2, step=step), axis=1)
        for row, before in zip(found, plain, strict=True):
            total += 1
            if row.tolist() != before.tolist():
                moved += 1
                assert np.append(row[:16], row[-1]).astype(np.uint16).tobytes() in starts
    assert moved / total == pytest.approx(share, abs=0.05)


def test_it_changes_training_alone(dataset: Dataset) -> None:
    some = opened(dataset, starts=0.7)
    for one, other in zip(
        some.validation_windows(SHAPE, 8), dataset.validation_windows(SHAPE, 8), strict=True
    ):
        assert np.array_equal(one, other)
    pairs = zip(windows.target_windows(some, 64), windows.target_windows(dataset, 64), strict=True)
    assert all(np.array_equal(a.inputs, b.inputs) for a, b in pairs)


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_is_from_0_to_1(dataset: Dataset, share: float) -> None:
    with pytest.raises(ConfigError, match=rf"data\.starts={share}: must be from 0 to 1"):
        dataclasses.replace(dataset.config, starts=share)
