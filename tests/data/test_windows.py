"""Windows: the off-by-one of the protocol against slow loops, documents never crossed, refusals."""

from itertools import pairwise

import numpy as np
import pytest

from posbench.data.dataset import Dataset
from posbench.data.windows import (
    disjoint_windows,
    stride1_windows,
    target_windows,
    training_batch,
    validation_windows,
)
from posbench.errors import ConfigError, DataError


def in_one_document(row: np.ndarray, documents: list[np.ndarray]) -> bool:
    return any(row.tobytes() in np.asarray(d, dtype=np.int64).tobytes() for d in documents)


def train_documents(dataset: Dataset) -> list[np.ndarray]:
    return [dataset.train_tokens[a:b].astype(np.int64) for a, b in pairwise(dataset.train_offsets)]


def test_batch_is_a_pure_function_of_seed_and_step(dataset: Dataset) -> None:
    one = training_batch(dataset, 64, 8, seed=3, step=5)
    training_batch(dataset, 32, 4, seed=9, step=9)
    two = training_batch(dataset, 64, 8, seed=3, step=5)
    assert np.array_equal(one, two)
    assert not np.array_equal(one[0], training_batch(dataset, 64, 8, seed=3, step=6)[0])
    assert not np.array_equal(one[0], training_batch(dataset, 64, 8, seed=4, step=5)[0])
    assert one[0].shape == one[1].shape == (8, 64)
    assert one[0].dtype == one[1].dtype == np.int64


@pytest.mark.parametrize("seq_len", [1, 64, 1500])
def test_batches_stay_inside_documents_and_predict_the_next_token(
    dataset: Dataset, seq_len: int
) -> None:
    documents = train_documents(dataset)
    for step in range(3):
        inputs, labels = training_batch(dataset, seq_len, 6, seed=0, step=step)
        assert np.array_equal(inputs[:, 1:], labels[:, :-1])
        for row, last in zip(inputs, labels[:, -1:], strict=True):
            assert in_one_document(np.concatenate([row, last]), documents)


def test_every_valid_start_is_drawn_alike(dataset: Dataset) -> None:
    """Starts are counted by their document: proportional to its number of windows."""
    small = Dataset(**vars(dataset))
    small.train_tokens = np.arange(30, dtype=np.uint16)
    small.train_offsets = np.array([0, 5, 12, 15, 30])
    seen = np.zeros(30, dtype=int)
    for step in range(300):
        inputs, labels = training_batch(small, 4, 16, seed=1, step=step)
        np.add.at(seen, inputs[:, 0], 1)
        assert np.array_equal(labels, inputs + 1)
    valid = [0, 5, 6, 7, *range(15, 26)]
    assert np.flatnonzero(seen).tolist() == valid
    assert seen[valid].min() > 0.7 * 4800 / len(valid)
    assert seen[valid].max() < 1.3 * 4800 / len(valid)


def test_too_long_training_windows_are_refused(dataset: Dataset) -> None:
    with pytest.raises(DataError, match=r"train\.seq_len=100000: no document holds 100001 tokens"):
        training_batch(dataset, 100000, 1, 0, 0)
    with pytest.raises(DataError, match=r"train\.seq_len=100000"):
        validation_windows(dataset, 100000, 4)


def test_validation_windows_are_fixed_and_spread(dataset: Dataset) -> None:
    inputs, labels = validation_windows(dataset, 64, 20)
    assert inputs.shape == labels.shape == (20, 64)
    assert np.array_equal(inputs[:, 1:], labels[:, :-1])
    assert all(
        in_one_document(np.append(row, last), dataset.validation)
        for row, last in zip(inputs, labels[:, -1], strict=True)
    )
    assert len({row.tobytes() for row in inputs}) == 20
    assert np.array_equal(validation_windows(dataset, 64, 20)[0], inputs)
    assert len(validation_windows(dataset, 64, 10**6)[0]) < 10**6


@pytest.mark.parametrize("length", [64, 100, 256])
def test_target_windows_against_a_slow_loop(dataset: Dataset, length: int) -> None:
    windows = list(target_windows(dataset, length))
    i = 0
    for document in dataset.targets.documents:
        t = dataset.test[document.id]
        for block, e in enumerate(document.ends):
            w = windows[i]
            assert (w.document, w.block, w.end) == (document.id, block, e)
            assert w.inputs.tolist() == [t[p] for p in range(e - length, e)]
            assert w.labels.tolist() == [t[j] for j in range(e - 32 + 1, e + 1)]
            for p, label in zip(w.scored, w.labels, strict=True):
                assert label == t[e - length + p + 1]
                if p + 1 < length:
                    assert w.inputs[p + 1] == label
            i += 1
    assert i == len(windows)


def test_the_scored_tokens_are_those_of_every_length(dataset: Dataset) -> None:
    by_length = [
        [(w.document, w.end, w.labels.tolist()) for w in target_windows(dataset, length)]
        for length in (64, 128, 256)
    ]
    assert by_length[0] == by_length[1] == by_length[2]
    single = list(stride1_windows(dataset, 128))
    assert [w.labels[0] for w in single] == [j for _, _, js in by_length[0] for j in js]


@pytest.mark.parametrize("context", [1, 8, 128])
def test_stride_one_gives_every_token_exactly_its_context(dataset: Dataset, context: int) -> None:
    windows = list(stride1_windows(dataset, context, docs=3, blocks=2))
    assert len(windows) == 3 * 2 * 32
    for w in windows:
        t = dataset.test[w.document]
        assert w.inputs.tolist() == t[w.end - context : w.end].tolist()
        assert (w.labels.tolist(), w.scored.tolist()) == ([t[w.end]], [context - 1])
    ends = [w.end for w in windows[:32]]
    last = dataset.targets.documents[0].ends[0]
    assert ends == list(range(last - 31, last + 1))


def test_longest_stride_one_context_stays_inside(dataset: Dataset) -> None:
    longest = dataset.targets.longest
    assert all(len(w.inputs) == longest for w in stride1_windows(dataset, longest))


@pytest.mark.parametrize("length", [64, 100, 256, 250])
def test_disjoint_windows_score_every_target_once(dataset: Dataset, length: int) -> None:
    seen: dict[str, list[int]] = {}
    longest = dataset.targets.longest
    for w in disjoint_windows(dataset, length):
        t = dataset.test[w.document]
        start = w.end - len(w.inputs)
        assert w.inputs.tolist() == t[start : w.end].tolist()
        assert w.labels.tolist() == t[start + 1 : w.end + 1].tolist()
        assert w.scored.tolist() == list(range(len(w.inputs)))
        assert len(w.inputs) == length or w.end == longest
        seen.setdefault(w.document, []).extend(range(start + 1, w.end + 1))
    assert list(seen) == [d.id for d in dataset.targets.documents]
    assert all(scored == list(range(1, longest + 1)) for scored in seen.values())


def test_docs_and_blocks_keep_the_first(dataset: Dataset) -> None:
    everything = [(w.document, w.block) for w in target_windows(dataset, 64)]
    some = [(w.document, w.block) for w in target_windows(dataset, 64, docs=5, blocks=4)]
    names = [d.id for d in dataset.targets.documents[:5]]
    assert some == [(d, b) for d, b in everything if d in names and b < 4]
    for option, value in (("docs", 0), ("docs", 10**6), ("blocks", 0), ("blocks", 17)):
        with pytest.raises(ConfigError, match=rf"eval\.{option}={value}: must be from 1 to "):
            target_windows(dataset, 64, **{option: value})


@pytest.mark.parametrize("protocol", [target_windows, disjoint_windows])
def test_lengths_out_of_range_are_refused_at_once(dataset: Dataset, protocol: object) -> None:
    assert callable(protocol)
    longest = dataset.targets.longest
    with pytest.raises(DataError, match=rf"eval\.lengths: {2 * longest} .* longest is {longest}"):
        protocol(dataset, 2 * longest)
    with pytest.raises(ConfigError, match=r"eval\.lengths: 63 is below 64"):
        protocol(dataset, 63)
    with pytest.raises(DataError, match=r"train\.seq_len=0"):
        stride1_windows(dataset, 0)


def test_the_default_corpus_reaches_its_longest_length(sotu: Dataset) -> None:
    windows = list(target_windows(sotu, 16384, docs=2))
    assert len(windows) == 32
    assert {len(w.inputs) for w in windows} == {16384}
    assert sum(len(w.labels) for w in target_windows(sotu, 1024)) == 24 * 16 * 32
