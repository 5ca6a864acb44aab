"""The held-out split: no group on two sides, long test documents, contiguous parts of few texts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posbench import registry
from posbench.data.corpora.base import Document
from posbench.data.split import split


@pytest.mark.parametrize("name", ["sotu", "code", "pystdlib"])
def test_no_group_on_two_sides(name: str) -> None:
    cls = registry.get("data", name)
    documents = cls(cls.Config()).documents()
    parts = split(documents, cls.long_bytes)
    groups = [{d.group for d in side} for side in parts.sides().values()]
    assert all(groups)
    assert not (groups[0] & groups[1] or groups[0] & groups[2] or groups[1] & groups[2])
    assert sorted((d for s in parts.sides().values() for d in s), key=lambda d: d.id) == documents
    assert 0.08 <= len(parts.validation) / len(documents) <= 0.16
    total = sum(len(d.text) for d in documents)
    assert sum(len(d.text) for d in parts.train) > 0.65 * total
    if cls.frozen:
        assert sum(len(d.text) >= cls.long_bytes for d in parts.test) == 24


def test_the_split_of_the_frozen_corpora_is_fixed() -> None:
    hashes = {}
    for name in ("sotu", "code"):
        cls = registry.get("data", name)
        hashes[name] = split(cls(cls.Config()).documents(), cls.long_bytes).sha256
    assert hashes == {
        "sotu": "83336514fcb47dcab215a5ad72b2e3efda36bf818fe104abce95b07183ad98ed",
        "code": "be536bce96af85344d5b3e8c95cc88ba438ee523bd1c2f8cbbbb30090f3fe743",
    }


sizes = st.lists(st.integers(1, 3000), min_size=10, max_size=150)


@settings(max_examples=60, deadline=None)
@given(sizes)
def test_any_corpus_of_ten_groups_is_split(lengths: list[int]) -> None:
    rng = np.random.default_rng(len(lengths))
    documents = [
        Document(f"d{i:03d}", f"g{i if i < 10 else rng.integers(60)}", b"x" * n)
        for i, n in enumerate(lengths)
    ]
    parts = split(documents)
    sides = list(parts.sides().values())
    assert not parts.contiguous
    assert all(sides)
    assert sum(map(len, sides)) == len(documents)
    groups = [{d.group for d in side} for side in sides]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert split(documents[::-1]).sha256 == parts.sha256


def test_few_documents_are_cut_in_contiguous_parts_between_characters() -> None:
    texts = {f"{i}.txt": ("Größe 数🙂 " * 50 + "x" * i).encode() for i in range(9)}
    parts = split([Document(name, name, text) for name, text in texts.items()])
    assert parts.contiguous
    for side in parts.sides().values():
        assert [d.id for d in side] == sorted(texts)
        assert all(d.text.decode() for d in side)
    for i, (name, text) in enumerate(sorted(texts.items())):
        pieces = [parts.train[i].text, parts.validation[i].text, parts.test[i].text]
        assert b"".join(pieces) == text, name
        assert abs(len(pieces[0]) / len(text) - 0.8) < 0.01


def test_a_tiny_document_leaves_no_empty_part() -> None:
    parts = split([Document("a", "a", b"xy")])
    assert [[d.text for d in s] for s in parts.sides().values()] == [[b"x"], [], [b"y"]]
