"""From a corpus configuration to tokens: read, check, split, tokenize, fix the targets."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from posbench import grid, registry
from posbench.data import cache, grids, pinned, targets, tokenizer, windows
from posbench.data.corpora.base import Corpus, Document, content_hash
from posbench.data.corpora.grid import GridCorpus
from posbench.data.corpora.task import Task
from posbench.data.split import Split, split
from posbench.data.targets import SHORTEST, Targets
from posbench.data.tokenizer import Ids, Tokenizer
from posbench.data.windows import Tokens, Window
from posbench.errors import ConfigError, DataError
from posbench.grid import Shape
from posbench.settings import positive

if TYPE_CHECKING:
    from posbench.data.tasks import TaskDataset

#: blocks of a document that an evaluation reads unless it says otherwise
BLOCKS = 4


@dataclass
class Dataset:
    """A text corpus ready for training and evaluation.

    name              registry name of the corpus
    config            its configuration
    train_tokens      all training documents one after the other, uint16 [N]
    train_offsets     document i is train_tokens[train_offsets[i] : train_offsets[i + 1]]
    validation        tokens of each validation document, int64
    test              document id -> tokens of the documents in `targets`, in that order, int64
    train_text, validation_text    the documents' bytes
    content_sha256    hash of the whole corpus
    split             documents, bytes and tokens per side, `contiguous`, `sha256` of the split
    """

    name: str
    config: Any
    tokenizer: Tokenizer
    train_tokens: Ids
    train_offsets: Tokens
    validation: list[Tokens]
    test: dict[str, Tokens]
    train_text: list[bytes]
    validation_text: list[bytes]
    targets: Targets
    content_sha256: str
    split: dict[str, Any]

    #: shortest test length
    shortest: ClassVar[int] = SHORTEST

    @property
    def alphabet(self) -> str:
        """Name of the vocabulary: that of the tokenizer."""
        return str(self.config.tokenizer)

    @property
    def interval_over(self) -> str:
        """What intervals run over: documents, or blocks of a corpus of few."""
        return "blocks" if self.split["contiguous"] else "documents"

    @property
    def blocks(self) -> int:
        """Blocks of a document that an evaluation reads unless it says otherwise."""
        return min(BLOCKS, self.targets.blocks)

    def training_batch(
        self, shape: Shape, batch_size: int, seed: int, step: int
    ) -> tuple[Tokens, Tokens]:
        """Inputs and next tokens [B, L] of a batch; a pure function of (seed, step)."""
        return windows.training_batch(self, grid.count(shape), batch_size, seed, step)

    def validation_windows(self, shape: Shape, n: int) -> tuple[Tokens, Tokens]:
        """Inputs and next tokens of at most n fixed windows, [n, L] each."""
        return windows.validation_windows(self, grid.count(shape), n)

    def test_shapes(self, given: list[str] | None, lengths: list[int] | None) -> list[Shape]:
        """The test lengths that are asked for, as shapes (T,), ascending; none where left open."""
        if given is not None:
            raise ConfigError(f"eval.shapes: data={self.name} is text; use eval.lengths=[128,1024]")
        positive({"eval.lengths": min(lengths or [self.shortest])}, least=self.shortest)
        return [(length,) for length in lengths or []]

    def reaches(self, shape: Shape) -> bool:
        """Whether the frozen targets have that much before them."""
        return grid.count(shape) <= self.targets.longest

    def target_windows(
        self, shape: Shape, docs: int | None, blocks: int | None
    ) -> Iterator[Window]:
        """Windows of the protocol `same_targets`."""
        return windows.target_windows(self, grid.count(shape), docs, blocks)

    def mean_context(self, shape: Shape) -> float:
        """Mean number of tokens that a scored token of the targets is predicted from."""
        return grid.count(shape) - (self.targets.scored - 1) / 2


def load(
    config: Any, tokenizer: Tokenizer | None = None
) -> "Dataset | grids.GridDataset | TaskDataset":
    """The dataset of a corpus configuration (an instance of a registered corpus's Config).

    A `tokenizer` that is given (a run keeps its own) is used instead of the frozen or trained one.
    DataError for a corpus that is missing, not the pinned one, or too small to split.
    """
    cls = registry.get("data", config.name)
    if issubclass(cls, Task):
        from posbench.data import tasks

        return tasks.load(cls(config))
    if issubclass(cls, GridCorpus):
        return grids.load(cls(config))
    return build(config, tokenizer, frozen=True, cached=True)


def build(config: Any, given: Tokenizer | None, *, frozen: bool, cached: bool) -> Dataset:
    """`load`, with the committed files and the disk cache as choices."""
    corpus: Corpus = registry.get("data", config.name)(config)
    documents = corpus.documents()
    content = corpus.content_sha256()
    parts = split(documents, corpus.long_bytes)
    empty = [side for side, members in parts.sides().items() if not members]
    if empty:
        raise DataError(
            f"{corpus.origin}: too small to split: {sum(len(d.text) for d in documents):,} bytes "
            f"leave none for {empty[0]}, and {targets.room(targets.SHORTEST, 1)} tokens are needed "
            f"{targets.TENTH}"
        )
    frozen = frozen and corpus.frozen
    own = given or _tokenizer(corpus, parts, frozen=frozen, cached=cached)
    encoded = {s: _encode(own, members, cached) for s, members in parts.sides().items()}
    held_out = {d.id: t for d, t in zip(parts.test, encoded["test"], strict=True)}
    chosen = _targets(corpus, own, held_out, content, frozen=frozen)
    return Dataset(
        name=corpus.name,
        config=config,
        tokenizer=tokenizer.Begun(own) if config.bos else own,
        train_tokens=np.concatenate(encoded["train"]),
        train_offsets=np.cumsum([0, *map(len, encoded["train"])], dtype=np.int64),
        validation=[t.astype(np.int64) for t in encoded["validation"]],
        test={d.id: held_out[d.id].astype(np.int64) for d in chosen.documents},
        train_text=[d.text for d in parts.train],
        validation_text=[d.text for d in parts.validation],
        targets=chosen,
        content_sha256=content,
        split=_summary(parts, encoded),
    )


def _tokenizer(corpus: Corpus, parts: Split, *, frozen: bool, cached: bool) -> Tokenizer:
    """The committed tokenizer, else the cached one, else one trained now on the training side."""
    name = corpus.config.tokenizer
    if name == "bytes":
        return tokenizer.ByteTokenizer()
    kept = pinned.read(corpus.name, name, pinned.TOKENIZER) if frozen else None
    if kept is not None:
        return tokenizer.parse(kept)
    entry = f"tokenizer-{cache.key(name, corpus.content_sha256(), parts.sha256)}.json"
    kept = cache.read(entry) if cached else None
    if kept is not None:
        return tokenizer.parse(kept)
    trained = tokenizer.train(name, [d.text for d in parts.train])
    if cached:
        cache.write(entry, trained.content)
    return trained


def _encode(own: Tokenizer, documents: list[Document], cached: bool) -> list[Ids]:
    """Tokens of each document, from the cache where it has them."""
    texts = [d.text for d in documents]
    if not cached or isinstance(own, tokenizer.ByteTokenizer):
        return own.encode(texts)
    entry = f"tokens-{cache.key(own.sha256, content_hash(documents))}.npz"
    kept = cache.read(entry)
    if kept is not None:
        with np.load(io.BytesIO(kept), allow_pickle=False) as arrays:
            return np.split(arrays["tokens"], arrays["cuts"])
    encoded = own.encode(texts)
    cuts = np.cumsum([len(t) for t in encoded[:-1]], dtype=np.int64)
    buffer = io.BytesIO()
    np.savez(buffer, tokens=np.concatenate(encoded), cuts=cuts)
    cache.write(entry, buffer.getvalue())
    return encoded


def _targets(
    corpus: Corpus, own: Tokenizer, held_out: dict[str, Ids], content: str, *, frozen: bool
) -> Targets:
    """The committed targets if they belong to this tokenizer, else targets built now."""
    kept = pinned.read(corpus.name, corpus.config.tokenizer, pinned.TARGETS) if frozen else None
    if kept is not None:
        stored = targets.parse(kept)
        if stored.tokenizer_sha256 == own.sha256:
            sizes = {d.id: len(held_out.get(d.id, ())) for d in stored.documents}
            if stored.content_sha256 != content or any(
                max(d.ends) >= sizes[d.id] for d in stored.documents
            ):
                raise DataError(
                    f"{corpus.origin}: the frozen targets do not belong to this text and split"
                )
            return stored
    return targets.build(
        corpus.name,
        held_out,
        tokenizer_sha256=own.sha256,
        content_sha256=content,
        longest=corpus.longest,
        origin=corpus.origin,
    )


def _summary(parts: Split, encoded: dict[str, list[Ids]]) -> dict[str, Any]:
    """What a manifest says about the split."""
    sides: dict[str, Any] = {
        side: {
            "documents": len(members),
            "bytes": sum(len(d.text) for d in members),
            "tokens": sum(map(len, encoded[side])),
        }
        for side, members in parts.sides().items()
    }
    return {**sides, "contiguous": parts.contiguous, "sha256": parts.sha256}
