"""Tokenizers: raw bytes, and a byte-level BPE trained on the training split.

Both round-trip every UTF-8 text exactly, have no special tokens, and are kept as a `tokenizer.json`
that transformers' PreTrainedTokenizerFast reads. The `tokenizers` library is imported only to train
and to encode. One file: what wraps a tokenizer must follow what it wraps in every method.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from posbench.data.corpora.base import bpe_size
from posbench.errors import DataError
from posbench.files import write_atomic

Ids = npt.NDArray[np.uint16]

#: bytes of training text that a BPE learns from at most (every document's beginning, in proportion)
TRAINED_ON = 64 * 2**20
#: how the file of a task's symbols begins
_SYMBOLS = b'{"symbols": ['
#: characters encoded at once, about
_CHUNK = 4 * 2**20


class Tokenizer(ABC):
    """Text <-> ids below 65,536."""

    #: the id that windows begin with, if they have one
    start: int | None = None

    @property
    @abstractmethod
    def content(self) -> bytes:
        """The tokenizer.json."""

    @cached_property
    @abstractmethod
    def pieces(self) -> list[bytes]:
        """The bytes that each id stands for."""

    @abstractmethod
    def encode(self, texts: Sequence[str | bytes]) -> list[Ids]:
        """Ids of each text, uint16 [n]; DataError for bytes that are not UTF-8."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self.pieces)

    @property
    def sha256(self) -> str:
        """Hash of the tokenizer.json."""
        return hashlib.sha256(self.content).hexdigest()

    def decode(self, ids: Any) -> bytes:
        """The exact bytes of a sequence of ids (any cut through a text gives the bytes there)."""
        return b"".join(self.pieces[i] for i in np.asarray(ids).tolist())

    def token_bytes(self) -> npt.NDArray[np.int64]:
        """Length in bytes of each id, [vocab_size]."""
        return np.array([len(piece) for piece in self.pieces], dtype=np.int64)

    def save(self, path: Path) -> None:
        """Write the tokenizer.json."""
        write_atomic(path, self.content)

    @staticmethod
    def load(path: Path) -> "Tokenizer":
        """Read a tokenizer.json that `save` wrote; DataError if it is missing or damaged."""
        try:
            return parse(path.read_bytes())
        except OSError as error:
            raise DataError(f"the tokenizer {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise DataError(f"the tokenizer {path} is damaged: {error}") from error


class ByteTokenizer(Tokenizer):
    """The id of a byte is its value."""

    @cached_property
    def content(self) -> bytes:
        """A BPE without merges, so that transformers can read it too."""
        vocabulary = {char: byte for byte, char in enumerate(_byte_characters())}
        return json.dumps(_bpe_json(vocabulary), ensure_ascii=False, indent=2).encode()

    @cached_property
    def pieces(self) -> list[bytes]:
        """All single bytes."""
        return [bytes([i]) for i in range(256)]

    def encode(self, texts: Sequence[str | bytes]) -> list[Ids]:
        """One id per byte of UTF-8."""
        raw = (text.encode() if isinstance(text, str) else text for text in texts)
        return [np.frombuffer(text, dtype=np.uint8).astype(np.uint16) for text in raw]

    def decode(self, ids: Any) -> bytes:
        """The bytes themselves."""
        return np.asarray(ids).astype(np.uint8).tobytes()


class BpeTokenizer(Tokenizer):
    """Byte-level BPE (GPT-2's alphabet and word pattern)."""

    def __init__(self, content: bytes) -> None:
        """`content`: a tokenizer.json of a byte-level BPE; ValueError if it is not one."""
        self._content = content
        _ = self.pieces

    @property
    def content(self) -> bytes:
        """The tokenizer.json, byte for byte as it was trained or loaded."""
        return self._content

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of each id, from the printable alphabet of the file."""
        value = {char: byte for byte, char in enumerate(_byte_characters())}
        try:
            vocabulary = json.loads(self._content)["model"]["vocab"]
            tokens = {i: bytes(value[char] for char in token) for token, i in vocabulary.items()}
            return [tokens[i] for i in range(len(tokens))]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("not a byte-level BPE") from error

    @cached_property
    def _encoder(self) -> Any:
        from tokenizers import Tokenizer as Encoder

        return Encoder.from_str(self._content.decode())

    def encode(self, texts: Sequence[str | bytes]) -> list[Ids]:
        """Ids of each text, uint16 [n]."""
        parts: list[list[Ids]] = [[np.zeros(0, dtype=np.uint16)] for _ in texts]
        for batch in _batches(texts):
            chunks = [chunk for _, chunk in batch]
            results = self._encoder.encode_batch_fast(chunks, add_special_tokens=False)
            for (i, _), result in zip(batch, results, strict=True):
                parts[i].append(np.array(result.ids, dtype=np.uint16))
        return [np.concatenate(own) for own in parts]


class Begun(Tokenizer):
    """A tokenizer with one more id, the last, that windows begin with (`data.bos`).

    It stands for no bytes and no text has it, so the file and its hash are the other's, and frozen
    targets stay what they are.
    """

    def __init__(self, inner: Tokenizer) -> None:
        self.inner, self.start = inner, inner.vocab_size

    @property
    def content(self) -> bytes:
        """The other's."""
        return self.inner.content

    @cached_property
    def pieces(self) -> list[bytes]:
        """The other's, and no bytes."""
        return [*self.inner.pieces, b""]

    def encode(self, texts: Sequence[str | bytes]) -> list[Ids]:
        """As the other."""
        return self.inner.encode(texts)


class LevelTokenizer(Tokenizer):
    """Grey levels: the id of a level is its number, and counts as one byte."""

    def __init__(self, levels: int) -> None:
        self.levels = levels

    @property
    def content(self) -> bytes:
        """The number of levels, in place of a tokenizer.json."""
        return json.dumps({"levels": self.levels}).encode()

    @cached_property
    def pieces(self) -> list[bytes]:
        """A byte for each level."""
        return [bytes([i]) for i in range(self.levels)]

    def encode(self, texts: Sequence[str | bytes]) -> list[Ids]:
        """Levels are not made of text."""
        raise DataError("pictures and clips have levels, which no text can be turned into")


class SymbolTokenizer(Tokenizer):
    """The symbols of a task, written with spaces between them; each counts as one byte."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = list(symbols)

    @property
    def content(self) -> bytes:
        """The symbols, in place of a tokenizer.json."""
        return json.dumps({"symbols": self.symbols}).encode()

    @cached_property
    def pieces(self) -> list[bytes]:
        """Each symbol's name."""
        return [symbol.encode() for symbol in self.symbols]

    def encode(self, texts: Sequence[str | bytes]) -> list[Ids]:
        """Ids of the symbols of each text; DataError for one that there is not."""
        known = {symbol: i for i, symbol in enumerate(self.symbols)}
        try:
            named = [[known[symbol] for symbol in _string(text).split()] for text in texts]
        except KeyError as error:
            raise DataError(f"{error.args[0]} is no symbol of this task") from None
        return [np.array(ids, dtype=np.uint16) for ids in named]

    def decode(self, ids: Any) -> bytes:
        """The symbols with spaces between them."""
        return b" ".join(self.pieces[i] for i in np.asarray(ids).tolist())

    def token_bytes(self) -> npt.NDArray[np.int64]:
        return np.ones(self.vocab_size, dtype=np.int64)


def parse(content: bytes) -> Tokenizer:
    """The tokenizer of a tokenizer.json; ValueError if it is not one of ours."""
    if content.startswith(_SYMBOLS):
        return SymbolTokenizer(list(map(str, json.loads(content)["symbols"])))
    if re.fullmatch(rb'\{"levels": [0-9]{1,3}\}', content):
        return LevelTokenizer(json.loads(content)["levels"])
    byte = ByteTokenizer()
    return byte if content == byte.content else BpeTokenizer(content)


def train(name: str, texts: Sequence[bytes]) -> Tokenizer:
    """The tokenizer called `bytes` or `bpe<N>`, learnt from texts in the order given."""
    size = bpe_size(name)
    if size is None:
        return ByteTokenizer()
    from tokenizers import Tokenizer as Encoder
    from tokenizers import models, trainers

    vocabulary = {char: byte for byte, char in enumerate(_byte_characters())}
    encoder = Encoder.from_str(json.dumps(_bpe_json(vocabulary)))
    encoder.model = models.BPE()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=_byte_characters(), special_tokens=[], show_progress=False
    )
    encoder.train_from_iterator(_sample(texts), trainer)
    return BpeTokenizer(encoder.to_str(pretty=True).encode())


def _sample(texts: Sequence[bytes]) -> Iterator[str]:
    """All texts, or the same share of each from its beginning where they exceed the limit."""
    share = min(1.0, TRAINED_ON / max(1, sum(map(len, texts))))
    for text in texts:
        yield text[: int(share * len(text)) if share < 1 else len(text)].decode(errors="ignore")


def _string(text: str | bytes) -> str:
    try:
        return text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"a text to encode is not UTF-8 (byte {error.start})") from error


def _batches(texts: Sequence[str | bytes]) -> Iterator[list[tuple[int, str]]]:
    """(number of the text, part of it) in order, in batches of bounded size."""
    batch: list[tuple[int, str]] = []
    size = 0
    for i, text in enumerate(texts):
        for chunk in _chunks(_string(text)):
            batch.append((i, chunk))
            size += len(chunk)
            if size >= _CHUNK:
                yield batch
                batch, size = [], 0
    yield batch


def _chunks(text: str) -> Iterator[str]:
    """Parts of a long text, cut where the ids cannot change: after a newline between two words."""
    border = re.compile(r"(?<=[!-~]\n)(?=[!-~])")
    start = 0
    while cut := border.search(text, start + _CHUNK):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def _byte_characters() -> list[str]:
    """GPT-2's printable character for each byte value, [256]."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _bpe_json(vocabulary: dict[str, int]) -> dict[str, Any]:
    """A tokenizer.json without merges."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": True},
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
