"""Windows of tokens: training batches, validation windows, and what the evaluation protocols read.

L training length, T test length, K scored tokens of a block. No window crosses a document, and
there is no token before its first. With `data.bos` the first input of every window is the start
token instead (`begun`); what is predicted from it, and all other tokens, stay the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from posbench.data.targets import SHORTEST, TargetDocument
from posbench.errors import ConfigError, DataError

if TYPE_CHECKING:
    from posbench.data.dataset import Dataset

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """One forward pass: `inputs` [T] at positions 0..T-1, of which some predictions are scored.

    For a picture or clip: the T - 1 tokens of a region but its last, in raster order.

    scored    input positions whose predictions are scored, ascending [S]
    labels    the token that follows each of them in the document [S]
    end       index in the document of the last label
    block     number of the block in the targets; for disjoint windows the number of the window
    extents   shape of the region; () = a text, as long as its inputs
    distance  tokens back to what the scored ones are known from; None where that is not one place
    """

    document: str
    block: int
    end: int
    inputs: Tokens
    labels: Tokens
    scored: Tokens
    extents: tuple[int, ...] = ()
    distance: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along each axis: (T,) for a text."""
        return self.extents or (len(self.inputs),)


def training_batch(
    dataset: "Dataset", seq_len: int, batch_size: int, seed: int, step: int
) -> tuple[Tokens, Tokens]:
    """Inputs and next tokens of a batch, int64 [B, L] each; a pure function of (seed, step).

    Uniform over all windows of seq_len + 1 tokens inside the training documents, but for a share
    `data.starts`: uniform over the documents that hold one, from their first token on.
    """
    sizes = np.diff(dataset.train_offsets)
    total, starts_before = _starts(sizes, seq_len)
    generator = np.random.PCG64([seed, step])
    draws = generator.random_raw(batch_size) % np.uint64(total)
    if dataset.config.starts:
        long = starts_before[:-1][sizes > seq_len].astype(np.uint64)
        whole = long[generator.random_raw(batch_size) % np.uint64(len(long))]
        draws = np.where(
            generator.random_raw(batch_size) < dataset.config.starts * 2.0**64, whole, draws
        )
    inputs, labels = _cut(
        dataset.train_tokens, dataset.train_offsets, starts_before, draws, seq_len
    )
    return begun(dataset, inputs), labels


def validation_windows(dataset: "Dataset", seq_len: int, n: int) -> tuple[Tokens, Tokens]:
    """Inputs and next tokens of at most n fixed windows, int64 [n, L] each.

    Evenly spaced over all possible starts in the validation documents.
    """
    sizes = np.array([len(t) for t in dataset.validation], dtype=np.int64)
    total, starts_before = _starts(sizes, seq_len)
    n = min(n, total)
    places = (2 * np.arange(n) + 1) * total // (2 * n)
    offsets = np.cumsum([0, *sizes])
    tokens = np.concatenate(dataset.validation)
    inputs, labels = _cut(tokens, offsets, starts_before, places, seq_len)
    return begun(dataset, inputs), labels


def begun(dataset: "Dataset", inputs: Tokens) -> Tokens:
    """Inputs [..., T] with the start token, where there is one, in the place of the first."""
    start = dataset.tokenizer.start
    if start is None:
        return inputs
    inputs = inputs.copy()
    inputs[..., 0] = start
    return inputs


def target_windows(
    dataset: "Dataset", length: int, docs: int | None = None, blocks: int | None = None
) -> Iterator[Window]:
    """Protocol `same_targets`: per block t[e-T : e], its last K predictions scored.

    `docs` and `blocks` keep the first n documents and the first n blocks of each.
    """
    _check_length(dataset, length)
    scored = np.arange(length - dataset.targets.scored, length)
    return (
        _window(dataset, document.id, block, end, length, scored)
        for document, block, end in _blocks(dataset, docs, blocks)
    )


def stride1_windows(
    dataset: "Dataset", context: int, docs: int | None = None, blocks: int | None = None
) -> Iterator[Window]:
    """Reference `crop`: every scored token after exactly `context` tokens, one prediction each.

    K windows per block, in the order of the tokens; any context from 1 on.
    """
    if not 1 <= context <= dataset.targets.longest:
        raise DataError(
            f"train.seq_len={context}: stride-1 contexts on {dataset.name} are from 1 to "
            f"{dataset.targets.longest} tokens"
        )
    scored = np.array([context - 1])
    return (
        _window(dataset, document.id, block, token, context, scored)
        for document, block, end in _blocks(dataset, docs, blocks)
        for token in range(end - dataset.targets.scored + 1, end + 1)
    )


def disjoint_windows(dataset: "Dataset", length: int, docs: int | None = None) -> Iterator[Window]:
    """Protocol `nonoverlapping`: the targets t[1 .. longest] of each document, each scored once.

    Consecutive windows of T inputs, all predictions scored; a shorter last window is kept.
    """
    _check_length(dataset, length)
    longest = dataset.targets.longest
    chosen = _documents(dataset, docs)
    return (
        _window(dataset, document.id, number, end, end - start, np.arange(end - start))
        for document in chosen
        for number, start in enumerate(range(0, longest, length))
        for end in [min(start + length, longest)]
    )


def sliding_windows(
    dataset: "Dataset", window: int, stride: int, docs: int | None = None
) -> Iterator[Window]:
    """Protocol `sliding`: the same targets as `nonoverlapping`, with context from before a window.

    `block` is the number of the window in its document.
    """
    _check_length(dataset, window)
    longest = dataset.targets.longest
    chosen = _documents(dataset, docs)
    return (
        _window(dataset, document.id, number, end, end - start, np.arange(first - 1, end) - start)
        for document in chosen
        for number, (start, first, end) in enumerate(rolling(longest, window, stride))
    )


def rolling(last: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(first token read, first and last token scored) of windows that score tokens 1 .. last once.

    The first window scores all that it predicts, each later one the `stride` tokens at its end, the
    last one those that are left: all but the first stand after window - stride + 1 tokens or more.
    As `get_rolling_token_windows` of lm-evaluation-harness, with context_len = window - stride + 1
    and token 0 of the document in the place of its prefix token.
    """
    end = min(window, last)
    yield 0, 1, end
    while end < last:
        first, end = end + 1, min(end + stride, last)
        yield end - window, first, end


def _window(
    dataset: "Dataset", document: str, block: int, end: int, length: int, scored: Tokens
) -> Window:
    """The `length` tokens before token `end`; input p predicts token end - length + p + 1."""
    tokens = dataset.test[document]
    labels = tokens[end - length + 1 : end + 1][scored]
    inputs = begun(dataset, tokens[end - length : end])
    return Window(document, block, end, inputs, labels, scored)


def _check_length(dataset: "Dataset", length: int) -> None:
    if length < SHORTEST:
        raise ConfigError(f"eval.lengths: {length} is below {SHORTEST}, the shortest test length")
    if length > dataset.targets.longest:
        raise DataError(
            f"eval.lengths: {length} tokens are more than the held-out documents of {dataset.name} "
            f"allow; the longest is {dataset.targets.longest}"
        )


def _documents(dataset: "Dataset", docs: int | None) -> list[TargetDocument]:
    everything = dataset.targets.documents
    return everything[: _first("eval.docs", docs, len(everything))]


def _blocks(
    dataset: "Dataset", docs: int | None, blocks: int | None
) -> list[tuple[TargetDocument, int, int]]:
    """(document, block number, end) of the first documents and blocks."""
    n = _first("eval.blocks", blocks, dataset.targets.blocks)
    return [(d, i, end) for d in _documents(dataset, docs) for i, end in enumerate(d.ends[:n])]


def _first(option: str, n: int | None, available: int) -> int:
    if n is None:
        return available
    if not 1 <= n <= available:
        raise ConfigError(f"{option}={n}: must be from 1 to {available}, what the targets hold")
    return n


def _starts(sizes: npt.NDArray[np.int64], seq_len: int) -> tuple[int, npt.NDArray[np.int64]]:
    """Windows of seq_len + 1 tokens: how many in all, and before each document [n + 1]."""
    before = np.cumsum([0, *np.maximum(0, sizes - seq_len)])
    if not before[-1]:
        raise DataError(
            f"train.seq_len={seq_len}: no document holds {seq_len + 1} tokens; "
            f"the longest has {max(sizes, default=0)}"
        )
    return int(before[-1]), before


def _cut(
    tokens: npt.NDArray[np.integer],
    offsets: npt.NDArray[np.int64],
    starts_before: npt.NDArray[np.int64],
    places: npt.NDArray[np.integer],
    seq_len: int,
) -> tuple[Tokens, Tokens]:
    """The windows with these numbers among all windows, as inputs and next tokens."""
    places = places.astype(np.int64)
    document = np.searchsorted(starts_before, places, side="right") - 1
    starts = offsets[document] + places - starts_before[document]
    window = tokens[starts[:, None] + np.arange(seq_len + 1)].astype(np.int64)
    return window[:, :-1], window[:, 1:]
