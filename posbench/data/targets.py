"""Frozen targets: which tokens are scored, the same for every length, run, scheme and seed.

A target block is (document, end e). For test length T the model reads t[e-T : e] at positions
0..T-1, and its last `SCORED` predictions, those of the tokens t[e-SCORED+1 : e+1], are scored.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from posbench.errors import DataError

#: K: scored tokens of a block
SCORED = 32
#: blocks of a document, unless the text is too short for them
BLOCKS = 16
#: shortest test length
SHORTEST = 64
#: held-out documents that must reach a length before it is offered
DOCUMENTS = 20
#: ends the message about a text that is too small
TENTH = "(of fewer than 10 documents, a tenth of each is held out)"


@dataclass(frozen=True)
class TargetDocument:
    """Ends of one document's blocks; the first n of them are spread over the document."""

    id: str
    ends: list[int]


@dataclass(frozen=True)
class Targets:
    """The targets file; the first n documents of it are spread over the held-out ones.

    `longest`: longest test length in tokens.
    """

    corpus: str
    tokenizer_sha256: str
    content_sha256: str
    longest: int
    scored: int
    documents: list[TargetDocument]

    @property
    def content(self) -> bytes:
        """Canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @property
    def sha256(self) -> str:
        """Hash of the canonical JSON."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def blocks(self) -> int:
        """Blocks of each document."""
        return len(self.documents[0].ends)


def parse(content: bytes) -> Targets:
    """Targets from their JSON; ValueError if it is not such a file."""
    try:
        fields: dict[str, Any] = json.loads(content)
        documents = [TargetDocument(d["id"], list(d["ends"])) for d in fields.pop("documents")]
        if not documents or not documents[0].ends:
            raise ValueError("no blocks")
        return Targets(**fields, documents=documents)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a targets file") from error


def room(length: int, blocks: int) -> int:
    """Tokens that a document needs for `blocks` blocks that do not share a scored token.

    Every scored token also has `length` tokens before it, so that stride-1 contexts fit too.
    """
    return length + SCORED * blocks


def spread(n: int) -> list[int]:
    """0..n-1 ordered first, last, middle, quarters: any beginning of the list lies far apart."""
    order = [0, n - 1][:n]
    gap = [min(abs(i - j) for j in order) for i in range(n)]
    while len(order) < n:
        far = int(np.argmax(gap))
        order.append(far)
        gap = [min(g, abs(i - far)) for i, g in enumerate(gap)]
    return order


def ends(size: int, longest: int, blocks: int) -> list[int]:
    """Block ends of a document of `size` tokens, as far apart as it allows, in `spread` order."""
    first, last = longest + SCORED - 1, size - 1
    places = np.linspace(first, last, blocks) if blocks > 1 else np.array([last])
    return [int(places[i]) for i in spread(blocks)]


def fit(sizes: list[int], longest: int | None) -> tuple[int, int]:
    """Longest test length and blocks per document for held-out documents of these token counts.

    A given `longest` is kept. Otherwise the largest power of two that 20 documents reach with room
    for 16 blocks, else that the longest document reaches; (0, 0) if it cannot hold one block after
    the shortest context.
    """
    if longest is not None:
        return (longest, BLOCKS) if max(sizes, default=0) >= room(longest, BLOCKS) else (0, 0)
    ranked = sorted(sizes, reverse=True)
    if len(ranked) >= DOCUMENTS and ranked[DOCUMENTS - 1] >= room(SHORTEST, BLOCKS):
        return _power_of_two(ranked[DOCUMENTS - 1] - room(0, BLOCKS)), BLOCKS
    size = ranked[0] if ranked else 0
    blocks = min(BLOCKS, (size - SHORTEST) // SCORED)
    return (_power_of_two(size - room(0, blocks)), blocks) if blocks > 0 else (0, 0)


def _power_of_two(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def build(
    corpus: str,
    tokens: Mapping[str, Any],
    *,
    tokenizer_sha256: str,
    content_sha256: str,
    longest: int | None = None,
    origin: str = "",
) -> Targets:
    """Targets over the held-out documents (id -> tokens [n]) that reach the longest length.

    DataError, beginning with `origin`, if no document holds a block after a context of 64.
    """
    sizes = {name: len(tokens[name]) for name in sorted(tokens)}
    length, blocks = fit(list(sizes.values()), longest)
    if not length:
        least = room(longest or SHORTEST, BLOCKS if longest else 1)
        raise DataError(
            f"{origin or corpus}: too small to split: the longest held-out part has "
            f"{max(sizes.values(), default=0):,} tokens, and {least:,} tokens are needed {TENTH}"
        )
    names = [name for name, size in sizes.items() if size >= room(length, blocks)]
    documents = [
        TargetDocument(names[i], ends(sizes[names[i]], length, blocks)) for i in spread(len(names))
    ]
    return Targets(corpus, tokenizer_sha256, content_sha256, length, SCORED, documents)
