"""The `ngram` reference: an interpolated modified Kneser-Ney model over bytes, of at most order 8.

It shows what the seven bytes before a target are worth, so that a network which does no better
has not learned to use its context. With c the count of an n-gram, h its context (all bytes but the
last) and N_i(h) how many bytes follow h exactly i times (i = 1, 2, and 3 for "three or more"):

    p(w | h) = max(c(hw) - D_c, 0) / C(h) + sum_i D_i N_i(h) / C(h) * p(w | h')

where h' is h without its first byte, C(h) the sum of c(hw) over w, and D_c the discount of a count
c; p(w | h) = p(w | h') where nothing ever followed h. The highest order counts occurrences, lower
orders count distinct left neighbours (the start of a document is one neighbour); below order 1
stands the uniform 1/256. The three discounts of an order come from its counts of counts (Chen and
Goodman 1999). No n-gram crosses a document.

An n-gram is an unsigned 64-bit number, big-endian, so that n-grams with one context are neighbours
once sorted. Orders are visited from the highest down and only one is held in memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from posbench.errors import DataError

MAX_ORDER = 8
TRAIN_LIMIT = 64_000_000  # bytes of training text that are counted
VALIDATION_LIMIT = 500_000  # bytes on which the order is chosen
#: what a stored result is a function of besides the text
ALGORITHM = f"modified Kneser-Ney 1, {MAX_ORDER}, {TRAIN_LIMIT}, {VALIDATION_LIMIT}"

Query = tuple[bytes, int]
Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BYTE = np.uint64(8)
_LAST = np.uint64(0xFF)


@dataclass(frozen=True)
class Ngram:
    """The reference with its order chosen; `train` holds the documents it counts, already cut."""

    train: tuple[bytes, ...] = field(repr=False)
    order: int
    validation_nats: float  # nats per byte at that order, on the validation sample

    @classmethod
    def choose(cls, train: Sequence[bytes], validation: Sequence[bytes]) -> Ngram:
        """Choose the order on `validation`; the test split is never seen here."""
        used = trimmed(train)
        order, nats = best_order(used, validation)
        return cls(tuple(used), order, nats)

    @property
    def train_bytes(self) -> int:
        """How many bytes of training text are counted."""
        return sum(map(len, self.train))

    def nats(self, queries: Sequence[Query]) -> list[float]:
        """Summed nats of each query; see `byte_nats`."""
        return byte_nats(self.train, queries, self.order)


def trimmed(docs: Sequence[bytes], limit: int = TRAIN_LIMIT) -> list[bytes]:
    """The documents, each cut to the same share of its length if together they exceed `limit`."""
    total = sum(map(len, docs))
    if total <= limit:
        return list(docs)
    return [doc[: len(doc) * limit // total] for doc in docs]


def byte_nats(train: Sequence[bytes], queries: Sequence[Query], order: int) -> list[float]:
    """Nats that the last n bytes of each (string, n) cost, given all bytes before them in it.

    `train` is cut to TRAIN_LIMIT bytes. Raises ValueError for an order outside 1..8, or an n that
    is negative or longer than its string.
    """
    if not 1 <= order <= MAX_ORDER:
        raise ValueError(f"order must be 1 to {MAX_ORDER}, got {order}")
    nats = -np.log(_probabilities(trimmed(train), queries, [order])[order])
    ends = np.cumsum([n for _, n in queries], dtype=np.int64)
    return [math.fsum(nats[end - n : end]) for (_, n), end in zip(queries, ends, strict=True)]


def best_order(train: Sequence[bytes], validation: Sequence[bytes]) -> tuple[int, float]:
    """The order in 1..8 with the lowest nats per byte on `validation`, and that value.

    Of more than VALIDATION_LIMIT bytes the same share of every document is scored, at its end.
    Raises DataError if there is nothing to score.
    """
    total = sum(map(len, validation))
    if total == 0:
        raise DataError("the validation split is empty: the n-gram order cannot be chosen")
    share = min(1.0, VALIDATION_LIMIT / total)
    queries = [(doc, math.ceil(len(doc) * share)) for doc in validation]
    by_order = _probabilities(trimmed(train), queries, range(1, MAX_ORDER + 1))
    nats = {order: float(-np.log(p).mean()) for order, p in by_order.items()}
    best = min(sorted(nats), key=nats.__getitem__)
    return best, nats[best]


def _probabilities(
    docs: Sequence[bytes], queries: Sequence[Query], orders: Collection[int]
) -> dict[int, Floats]:
    """Probability of every scored byte, queries in a row, under the model of each order."""
    keys, seen = _scored(queries)
    value = {order: np.zeros(len(keys)) for order in orders}
    weight = {order: np.ones(len(keys)) for order in orders}
    for m, grams, occurrences, neighbours in _levels(docs, max(orders)):
        wanted = keys & _mask(m)
        sort = np.argsort(wanted)
        find = _Lookup(grams, wanted[sort])
        usable = seen[sort] >= m - 1
        for counts, here in (
            (occurrences, [n for n in orders if n == m]),
            (neighbours, [n for n in orders if n > m]),
        ):
            if not here or not len(grams):
                continue
            share, rest = find.terms(counts, usable)
            for n in here:
                value[n][sort] += weight[n][sort] * share
                weight[n][sort] *= rest
    return {n: value[n] + weight[n] / 256 for n in orders}


class _Lookup:
    """Where sorted n-grams and their contexts lie in the sorted n-grams of the training text."""

    def __init__(self, grams: Keys, wanted: Keys) -> None:
        self.low = np.searchsorted(grams, wanted & ~_LAST)
        self.high = np.searchsorted(grams, wanted | _LAST, side="right")
        self.at = np.minimum(np.searchsorted(grams, wanted), max(len(grams) - 1, 0))
        self.known = grams[self.at] == wanted if len(grams) else np.zeros(len(wanted), bool)

    def terms(self, counts: Counts, usable: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Per n-gram: its discounted share, and the weight of the next lower order."""
        discount = _discounts(counts)
        total = self._between(counts)
        usable = usable & (total > 0)
        divisor = np.maximum(total, 1)
        count = np.where(self.known, counts[self.at], 0)
        share = np.maximum(count - discount[np.minimum(count, 3)], 0) / divisor
        left_over = np.zeros(len(total))
        for i in (1, 2, 3):
            left_over += discount[i] * self._between(counts == i if i < 3 else counts >= 3)
        return np.where(usable, share, 0.0), np.where(usable, left_over / divisor, 1.0)

    def _between(self, values: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Counts:
        """Sum of `values` over the n-grams that share each wanted context."""
        sums = np.zeros(len(values) + 1, np.int64)
        np.cumsum(values, out=sums[1:])
        return sums[self.high] - sums[self.low]


def _discounts(counts: Counts) -> Floats:
    """Discounts of counts 0, 1, 2 and 3 or more; above 0, so that every byte stays possible."""
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == i)) for i in (1, 2, 3, 4))
    if not (n1 and n2 and n3):  # too little text to estimate them
        return np.array([0.0, 0.5, 0.75, 0.9])
    y = n1 / (n1 + 2 * n2)
    raw = [0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
    return np.array([0.0] + [min(max(raw[i], 0.05), 0.95 * i) for i in (1, 2, 3)])


def _levels(docs: Sequence[bytes], top: int) -> Iterator[tuple[int, Keys, Counts, Counts]]:
    """(m, sorted distinct m-grams, occurrences, distinct left neighbours) for m = top down to 1.

    Each order follows from the one above: an m-gram occurs as the head of an (m+1)-gram or ends a
    document, and it is the tail of an (m+1)-gram or begins a document. The neighbours of the top
    order are not counted (no model needs them) and are returned as its occurrences.
    """
    keys = _all_grams(docs, top)
    keys.sort()
    grams, occurrences = _tally(keys)
    del keys
    yield top, grams, occurrences, occurrences
    for m in range(top - 1, 0, -1):
        whole = [doc for doc in docs if len(doc) >= m]
        tails = np.concatenate([grams & _mask(m), _distinct([doc[:m] for doc in whole])])
        tails.sort()
        ends = _packed([doc[-m:] for doc in whole])
        heads = np.concatenate([grams >> _BYTE, ends])
        counts = np.concatenate([occurrences, np.ones(len(ends), np.int64)])
        sort = np.argsort(heads, kind="stable")  # nearly sorted already
        _, occurrences = _tally(heads[sort], counts[sort])
        grams, neighbours = _tally(tails)
        yield m, grams, occurrences, neighbours


def _tally(keys: Keys, counts: Counts | None = None) -> tuple[Keys, Counts]:
    """Distinct values of sorted `keys`, and how often each occurs (or the sum of its `counts`)."""
    if not len(keys):
        return keys, np.zeros(0, np.int64)
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    if counts is None:
        return keys[first], np.diff(first, append=len(keys))
    return keys[first], np.add.reduceat(counts, first)


def _all_grams(docs: Sequence[bytes], n: int) -> Keys:
    """Every n-gram of every document, unsorted."""
    sizes = [max(len(doc) - n + 1, 0) for doc in docs]
    out = np.empty(sum(sizes), np.uint64)
    at = 0
    for doc, size in zip(docs, sizes, strict=True):
        out[at : at + size] = _windows(doc + bytes(MAX_ORDER), size)
        at += size
    out >>= np.uint64(8 * (MAX_ORDER - n))
    return out


def _scored(queries: Sequence[Query]) -> tuple[Keys, Counts]:
    """For every scored byte the 8 bytes that end with it, and how many (up to 7) precede it."""
    keys, seen = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for text, n in queries:
        if not 0 <= n <= len(text):
            raise ValueError(f"cannot score the last {n} bytes of a string of {len(text)}")
        tail = text[max(len(text) - n - MAX_ORDER + 1, 0) :]
        padded = tail.rjust(n + MAX_ORDER - 1, b"\0")
        keys.append(_windows(padded, n))
        seen.append(np.minimum(np.arange(len(text) - n, len(text)), MAX_ORDER - 1))
    return np.concatenate(keys), np.concatenate(seen)


def _windows(text: bytes, size: int) -> Keys:
    """The first `size` windows of 8 bytes of `text` as numbers."""
    return np.ndarray((size,), ">u8", buffer=text, strides=(1,)).astype(np.uint64)


def _packed(grams: Sequence[bytes]) -> Keys:
    return np.array([int.from_bytes(gram, "big") for gram in grams], np.uint64)


def _distinct(grams: Sequence[bytes]) -> Keys:
    return _packed(sorted(set(grams)))


def _mask(n: int) -> np.uint64:
    return np.uint64((1 << 8 * n) - 1)
