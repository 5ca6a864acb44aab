import math
import random
from collections import Counter, defaultdict

import pytest

from posbench.errors import DataError
from posbench.evaluate import ngram
from posbench.evaluate.ngram import Ngram, best_order, byte_nats, trimmed


class Slow:
    """The formula of ngram.py with dictionaries, one context at a time."""

    def __init__(self, docs: list[bytes], order: int) -> None:
        self.order = order
        self.follow: dict[int, dict[bytes, Counter]] = {}
        self.discount: dict[int, list[float]] = {}
        for m in range(1, order + 1):
            table: dict[bytes, Counter] = defaultdict(Counter)
            neighbours: dict[bytes, set] = defaultdict(set)
            for doc in docs:
                for i in range(len(doc) - m + 1):
                    gram = doc[i : i + m]
                    if m == order:
                        table[gram[:-1]][gram[-1]] += 1
                    else:
                        neighbours[gram].add(doc[i - 1] if i else "start")
            for gram, left in neighbours.items():
                table[gram[:-1]][gram[-1]] = len(left)
            self.follow[m] = table
            times = Counter(c for counter in table.values() for c in counter.values())
            n1, n2, n3, n4 = (times[i] for i in (1, 2, 3, 4))
            if n1 and n2 and n3:
                y = n1 / (n1 + 2 * n2)
                raw = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
                clip = [min(max(d, 0.05), 0.95 * (i + 1)) for i, d in enumerate(raw)]
            else:
                clip = [0.5, 0.75, 0.9]
            self.discount[m] = [0.0, *clip]

    def prob(self, context: bytes, byte: int, m: int | None = None) -> float:
        m = self.order if m is None else m
        if m == 0:
            return 1 / 256
        if len(context) < m - 1:
            return self.prob(context, byte, m - 1)
        counter = self.follow[m].get(context[len(context) - m + 1 :])
        lower = self.prob(context, byte, m - 1)
        if not counter:
            return lower
        total = sum(counter.values())
        d = self.discount[m]
        weight = sum(d[min(c, 3)] for c in counter.values()) / total
        return max(counter[byte] - d[min(counter[byte], 3)], 0) / total + weight * lower

    def nats(self, text: bytes, n: int) -> float:
        return -sum(math.log(self.prob(text[:i], text[i])) for i in range(len(text) - n, len(text)))


def words(rng: random.Random, size: int, alphabet: bytes) -> bytes:
    return bytes(rng.choice(alphabet) for _ in range(size))


def corpora() -> list[list[bytes]]:
    rng = random.Random(0)
    edges = b"\x00\x01\xfe\xff"
    return [
        [words(rng, 400, b"ab"), words(rng, 300, b"abc"), words(rng, 5, b"abc"), b"a", b""],
        [words(rng, size, edges) for size in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 150)],
        [b"the cat sat on the mat. " * 3 + words(rng, 60, b"abcdefgh "), b"the rat sat"],
        [b"\x00" * 40, b"\xff" * 40],
        [b"xy"],
    ]


@pytest.mark.parametrize("order", range(1, 9))
@pytest.mark.parametrize("which", range(5))
def test_matches_dictionaries(which: int, order: int) -> None:
    train = corpora()[which]
    rng = random.Random(order)
    queries = [(words(rng, size, b"ab\x00\xff"), n) for size, n in ((60, 60), (30, 5), (8, 1))]
    queries += [(train[0], min(len(train[0]), 50)), (b"the hat sat on the cat", 22), (b"", 0)]
    slow = Slow(train, order)
    expected = [slow.nats(*query) for query in queries]
    assert byte_nats(train, queries, order) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("order", [1, 2, 5, 8])
@pytest.mark.parametrize("context", [b"", b"a", b"abcabca", b"never seen", b"\xff" * 9])
def test_sums_to_one_and_positive(order: int, context: bytes) -> None:
    for train in corpora():
        nats = byte_nats(train, [(context + bytes([byte]), 1) for byte in range(256)], order)
        assert math.fsum(math.exp(-x) for x in nats) == pytest.approx(1, abs=1e-12)
        assert all(math.isfinite(x) and x > 0 for x in nats)


def test_nothing_to_count_is_uniform() -> None:
    for train in ([], [b""]):
        assert byte_nats(train, [(b"abc", 2)], 3) == pytest.approx([2 * math.log(256)])


def test_order_of_documents_does_not_matter() -> None:
    train = corpora()[0]
    query = [(train[0], 100), (train[1][:50], 50)]
    for order in (1, 4, 8):
        assert byte_nats(train, query, order) == byte_nats(train[::-1], query, order)


def test_no_ngram_crosses_a_document() -> None:
    split, joined = [b"aaaab", b"cdddd"] * 5, [b"aaaabcdddd"] * 5
    query = [(b"aaaabc", 1)]
    apart, together = byte_nats(split, query, 4)[0], byte_nats(joined, query, 4)[0]
    assert together < 0.5
    assert apart == pytest.approx(Slow(split, 1).nats(b"c", 1), abs=1)  # no better than unigrams
    assert apart > 1.5


def test_repeated_pattern_is_nearly_free() -> None:
    pattern = b"0123456789abcdef"
    train = [pattern * 500] * 3
    order, nats = best_order(train, [pattern * 40])
    assert nats < 0.05
    assert byte_nats(train, [(pattern * 4, 32)], order)[0] / 32 < 0.002


def test_only_seven_bytes_back_and_scores_add_up() -> None:
    train = corpora()[2]
    text = b"the cat sat on the hat"
    one = byte_nats(train, [(b"zzzz" + text, 5), (text, 5), (text[-12:], 5)], 8)
    assert one[0] == one[1] == one[2]
    parts = byte_nats(train, [(text[: len(text) - i], 1) for i in range(5)], 8)
    assert one[0] == pytest.approx(sum(parts))


def test_best_order_agrees_with_byte_nats(monkeypatch: pytest.MonkeyPatch) -> None:
    train, validation = corpora()[0], [corpora()[0][0][:80], b"ab", b""]
    scored = [(doc, len(doc)) for doc in validation]
    per_byte = [sum(byte_nats(train, scored, n)) / 82 for n in range(1, 9)]
    order, nats = best_order(train, validation)
    assert (order, nats) == (per_byte.index(min(per_byte)) + 1, pytest.approx(min(per_byte)))
    chosen = Ngram.choose(train, validation)
    assert (chosen.order, chosen.validation_nats) == (order, nats)
    assert chosen.nats(scored) == byte_nats(train, scored, order)
    monkeypatch.setattr(ngram, "VALIDATION_LIMIT", 41)  # half of each document, at its end
    halves = [(validation[0], 40), (validation[1], 1)]
    assert best_order(train, validation)[1] == pytest.approx(
        min(sum(byte_nats(train, halves, n)) / 41 for n in range(1, 9))
    )


def test_training_text_is_cut_to_equal_shares() -> None:
    docs = [b"a" * 100, b"b" * 300, b""]
    assert trimmed(docs) == docs
    assert [len(doc) for doc in trimmed(docs, 200)] == [50, 150, 0]
    assert Ngram(tuple(trimmed(docs, 200)), 2, 1.0).train_bytes == 200


def test_refusals() -> None:
    for order in (0, 9):
        with pytest.raises(ValueError, match="order"):
            byte_nats([b"abc"], [(b"abc", 1)], order)
    for n in (-1, 4):
        with pytest.raises(ValueError, match="last"):
            byte_nats([b"abc"], [(b"abc", n)], 2)
    with pytest.raises(DataError, match="validation"):
        best_order([b"abc"], [b""])
