"""What every corpus file provides: documents with a group, a tokenizer name and a content hash."""

import hashlib
import importlib.util
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from posbench.errors import ConfigError, DataError

#: smallest and largest BPE: 256 bytes and one merge; ids that fit in 16 bits
BPE_SIZES = (257, 65535)


@dataclass(frozen=True)
class Document:
    """One text. Documents of one `group` never lie on two sides of the held-out split."""

    id: str
    group: str
    text: bytes


def bpe_size(name: str) -> int | None:
    """Vocabulary size in a tokenizer name, None for `bytes`; ConfigError for any other name."""
    match = re.fullmatch(r"bpe([1-9][0-9]*)", name)
    if match and BPE_SIZES[0] <= int(match[1]) <= BPE_SIZES[1]:
        return int(match[1])
    if name == "bytes":
        return None
    low, high = BPE_SIZES
    raise ConfigError(f"data.tokenizer={name}: must be bytes or bpe<N> with N from {low} to {high}")


def content_hash(documents: Iterable[Document]) -> str:
    """SHA-256 over (id, NUL, text) of the documents in the order given."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(document.id.encode() + b"\0" + document.text)
    return digest.hexdigest()


def package_folder(package: str, install: str) -> Path:
    """Folder of an installed package, found without importing it; DataError says how to get it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise DataError(f"the package {package} is not installed; install it with: {install}")
    return Path(spec.origin).parent


class Corpus(ABC):
    """Base of all corpora; a subclass names itself by its file and implements `read`."""

    group: ClassVar[str] = "data"
    name: ClassVar[str] = ""
    family: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    #: the tokenizer and the targets are committed beside the code and checked by hash
    frozen: ClassVar[bool] = False
    #: content hash that the text must have, and the command that brings that text
    sha256: ClassVar[str] = ""
    install: ClassVar[str] = ""
    #: longest test length in tokens (None: as many as the held-out documents allow)
    longest: ClassVar[int | None] = None
    #: a document of this many bytes counts as long for the split (None: by rank)
    long_bytes: ClassVar[int | None] = None

    @dataclass
    class Config:
        """Settings that every corpus has."""

        #: `bytes`, or `bpe<N>`: a byte-level BPE of N tokens trained on the training split
        tokenizer: str = "bpe1024"
        #: a token of its own in the place of every window's first input token, in training and test
        bos: bool = False
        #: share of the training windows that begin at a document's first token, each long enough
        #: document alike; the others begin anywhere. Unlike packed documents, none of them crosses
        #: into the next document, and a beginning stands at position 0 alone
        starts: float = 0.0

        def __post_init__(self) -> None:
            bpe_size(self.tokenizer)
            if not 0 <= self.starts <= 1:
                raise ConfigError(f"data.starts={self.starts}: must be from 0 to 1")

    def __init__(self, config: Any) -> None:
        self.config = config
        self._documents: list[Document] | None = None

    @abstractmethod
    def read(self) -> list[Document]:
        """All documents in any order; DataError if they cannot be had."""

    @property
    def origin(self) -> str:
        """The option to name in an error message, with its value."""
        return f"data={self.name}"

    def documents(self) -> list[Document]:
        """All documents that hold text, sorted by id and, for a pinned corpus, checked by hash."""
        if self._documents is None:
            found = sorted((d for d in self.read() if d.text), key=lambda d: d.id)
            if self.sha256 and content_hash(found) != self.sha256:
                raise DataError(
                    f"{self.origin}: the installed text is not the pinned version "
                    f"(SHA-256 {content_hash(found)[:12]}, expected {self.sha256[:12]}); "
                    f"install it with: {self.install}"
                )
            self._documents = found
        return self._documents

    @staticmethod
    def located(config: Any) -> Any:
        """The configuration as a run keeps it: with paths that hold from any folder."""
        return config

    def content_sha256(self) -> str:
        """SHA-256 over (id, NUL, text) in id order."""
        return content_hash(self.documents())
