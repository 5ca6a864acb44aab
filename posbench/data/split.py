"""The held-out split: by group, stratified by length, decided from byte lengths alone.

A document carries targets if it is long, and needs to be no longer than that: shorter documents
and surplus length on the test side are text that training never gets. Test groups are therefore
drawn, evenly over the lengths of their longest documents, among the groups that give targets at the
lowest cost; validation groups evenly over the sizes of the others. No random numbers.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posbench.data.corpora.base import Document

#: long test documents aimed at: 20 are required, a few may prove shorter in tokens than in bytes
TEST_DOCUMENTS = 24
#: validation documents as a share of all
VALIDATION = 0.1
#: below this many groups every document is cut in contiguous parts of 80, 10 and 10 %
FEW = 10
#: the test side is chosen among this many times the long documents that it wants
CHOICE = 2
#: a group above this share of the corpus (or above twice the mean) stays in training
HEAVY = 0.05


@dataclass(frozen=True)
class Split:
    """Documents per side, each sorted by id. If `contiguous`, one id occurs on all three sides."""

    train: list[Document]
    validation: list[Document]
    test: list[Document]
    contiguous: bool

    def sides(self) -> dict[str, list[Document]]:
        """Side name -> documents."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    @property
    def sha256(self) -> str:
        """Hash of (side, id, bytes) of every part."""
        lines = [
            f"{side}\t{document.id}\t{len(document.text)}\n"
            for side, documents in self.sides().items()
            for document in documents
        ]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


class _Group:
    """The documents of one group and what the split needs to know of them."""

    def __init__(self, name: str, documents: list[Document], long_bytes: int) -> None:
        self.name = name
        self.documents = documents
        sizes = [len(d.text) for d in documents]
        self.bytes = sum(sizes)
        self.longest = max(sizes)
        self.n_long = sum(size >= long_bytes for size in sizes)
        #: share of the bytes that targets need
        self.used = self.n_long * long_bytes / self.bytes


def split(documents: Sequence[Document], long_bytes: int | None = None) -> Split:
    """Split non-empty documents.

    `long_bytes`: size from which a document counts as long. None takes the longest documents, twice
    as many as the test side wants (24, or a quarter of a corpus of fewer than 96).
    """
    by_group: dict[str, list[Document]] = defaultdict(list)
    for document in sorted(documents, key=lambda d: d.id):
        by_group[document.group].append(document)
    if len(by_group) < FEW:
        return _contiguous(documents)
    wanted = min(TEST_DOCUMENTS, len(documents) // 4)
    if long_bytes is None:
        sizes = sorted((len(d.text) for d in documents), reverse=True)
        long_bytes = sizes[: CHOICE * wanted][-1]
    groups = [_Group(name, members, long_bytes) for name, members in by_group.items()]
    total = sum(group.bytes for group in groups)

    light = [g for g in groups if g.bytes <= max(HEAVY, 2 / len(groups)) * total]
    rich: list[_Group] = []
    useful = [g for g in light if g.n_long] or light
    for group in sorted(useful, key=lambda g: (-g.used, g.name)):
        if sum(g.n_long for g in rich) >= CHOICE * wanted:
            break
        rich.append(group)
    rich.sort(key=lambda g: (g.longest, g.name))
    test = _every_nth(rich, wanted, lambda g: g.n_long)

    rest = [g for g in light if g not in test]
    rest.sort(key=lambda g: (g.bytes, g.name))
    validation = _every_nth(rest, round(VALIDATION * len(documents)), lambda g: len(g.documents))
    held_out = [*test, *validation]
    train = [g for g in groups if g not in held_out]
    return Split(_flat(train), _flat(validation), _flat(test), contiguous=False)


def _every_nth(groups: list[_Group], wanted: int, count: Callable[[_Group], int]) -> list[_Group]:
    """As few evenly spaced groups as hold `wanted` by `count`; at most half of them."""
    picked = groups[len(groups) // 2 :][:1]
    for n in range(1, max(1, len(groups) // 2) + 1):
        picked = [groups[(2 * i + 1) * len(groups) // (2 * n)] for i in range(n)]
        if sum(map(count, picked)) >= wanted:
            break
    return picked


def _flat(groups: list[_Group]) -> list[Document]:
    return sorted((d for g in groups for d in g.documents), key=lambda d: d.id)


def _contiguous(documents: Sequence[Document]) -> Split:
    """80, 10 and 10 % of every document, cut between characters; empty parts are dropped."""
    sides: list[list[Document]] = [[], [], []]
    for document in sorted(documents, key=lambda d: d.id):
        size = len(document.text)
        cuts = [0, *(_boundary(document.text, size * tenths // 10) for tenths in (8, 9)), size]
        for side, start, end in zip(sides, cuts[:-1], cuts[1:], strict=True):
            if start < end:
                side.append(Document(document.id, document.group, document.text[start:end]))
    train, validation, test = sides
    return Split(train, validation, test, contiguous=True)


def _boundary(text: bytes, at: int) -> int:
    """The last position up to `at` that does not cut a UTF-8 character."""
    while 0 < at < len(text) and text[at] & 0xC0 == 0x80:
        at -= 1
    return at
