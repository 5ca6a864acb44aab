"""Tokenizers: exact round trip, determinism, files that transformers reads."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posbench.data import tokenizer as module
from posbench.data.tokenizer import BpeTokenizer, ByteTokenizer, Tokenizer, train
from posbench.errors import DataError

from .conftest import prose

ODD = [
    "",
    " ",
    "  leading and trailing  \n\n",
    "\ufeffbyte order mark",
    "e\u0301 \u00e9 \ufb01 \u212b",
    "\x00\x01\x7f\u200b\u2028\u00a0",
    "👩‍👩‍👧‍👦🏳️‍🌈 \U0010ffff",
    "\r\n\t\r mixed\r\n",
    "<s> </s> <|endoftext|> [CLS]",
]


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train("bpe400", [prose(i, 2000).encode() for i in range(3)])


def both(bpe: Tokenizer) -> list[Tokenizer]:
    return [bpe, ByteTokenizer()]


def test_round_trip_of_odd_text(bpe: Tokenizer) -> None:
    for own in both(bpe):
        for text, ids in zip(ODD, own.encode(ODD), strict=True):
            assert own.decode(ids) == text.encode()
            assert ids.dtype == np.uint16
            assert own.token_bytes()[ids].sum() == len(text.encode())


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=80))
def test_round_trip_of_any_text(bpe: Tokenizer, text: str) -> None:
    for own in both(bpe):
        assert own.decode(own.encode([text])[0]) == text.encode()


def test_str_and_bytes_are_one(bpe: Tokenizer) -> None:
    for own in both(bpe):
        assert np.array_equal(own.encode([ODD[4]])[0], own.encode([ODD[4].encode()])[0])


def test_a_cut_inside_a_character_still_decodes(bpe: Tokenizer) -> None:
    ids = bpe.encode(["数🙂"])[0]
    assert b"".join(bpe.decode([i]) for i in ids) == "数🙂".encode()


def test_training_is_deterministic_and_reaches_its_size() -> None:
    texts = [prose(i, 2000).encode() for i in range(3)]
    one, two = train("bpe300", texts), train("bpe300", texts)
    assert one.sha256 == two.sha256
    assert one.vocab_size == 300
    assert train("bpe301", texts).sha256 != one.sha256


def test_training_reads_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRAINED_ON", 60)
    texts = ["Größe".encode() * 10, "数".encode() * 20]
    assert sum(len(t.encode()) for t in module._sample(texts)) <= 60


def test_long_texts_are_encoded_in_parts_with_the_same_ids(
    bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = prose(7, 5000)
    whole = bpe.encode([text, "end"])
    monkeypatch.setattr(module, "_CHUNK", 50)
    assert len(list(module._chunks(text))) > 10
    parts = bpe.encode([text, "end"])
    assert [a.tolist() for a in whole] == [a.tolist() for a in parts]


def test_save_and_load(bpe: Tokenizer, tmp_path: Path) -> None:
    for own in both(bpe):
        own.save(tmp_path / "tokenizer.json")
        again = Tokenizer.load(tmp_path / "tokenizer.json")
        assert type(again) is type(own)
        assert again.sha256 == own.sha256
        assert again.encode(ODD)[3].tolist() == own.encode(ODD)[3].tolist()


def test_transformers_reads_both(bpe: Tokenizer, tmp_path: Path) -> None:
    transformers = importlib.import_module("transformers")
    for own in both(bpe):
        own.save(tmp_path / "tokenizer.json")
        fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
        for text in ODD:
            assert fast.encode(text, add_special_tokens=False) == own.encode([text])[0].tolist()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"{}", b'{"model": {"vocab": {"\xc4\x80\xc5\xbf": 0}}}']
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer\.json is damaged"):
        Tokenizer.load(file)
    with pytest.raises(DataError, match=r"absent\.json cannot be read"):
        Tokenizer.load(tmp_path / "absent.json")


def test_bytes_that_are_not_utf8_are_refused(bpe: Tokenizer) -> None:
    with pytest.raises(DataError, match="not UTF-8"):
        bpe.encode([b"\xff"])


def test_pieces_of_bytes() -> None:
    assert ByteTokenizer().pieces[65] == b"A"
    assert ByteTokenizer().vocab_size == 256
    assert BpeTokenizer(ByteTokenizer().content).encode(["né"])[0].tolist() == list("né".encode())
