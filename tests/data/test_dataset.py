"""Loading: own text of any size, the disk cache, a tokenizer that a run keeps."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from posbench import registry
from posbench.data import cache, tokenizer
from posbench.data import dataset as module
from posbench.data.dataset import Dataset, load
from posbench.errors import DataError

from .conftest import prose

Loader = Callable[..., Dataset]


def test_tokens_are_the_documents(dataset: Dataset) -> None:
    for i, text in enumerate(dataset.train_text):
        start, end = dataset.train_offsets[i : i + 2]
        assert dataset.tokenizer.decode(dataset.train_tokens[start:end]) == text
    assert dataset.train_offsets[-1] == len(dataset.train_tokens)
    for tokens, text in zip(dataset.validation, dataset.validation_text, strict=True):
        assert dataset.tokenizer.decode(tokens) == text
    assert list(dataset.test) == [d.id for d in dataset.targets.documents]
    assert {t.dtype for t in dataset.test.values()} == {np.dtype(np.int64)}
    assert len(dataset.test) >= 20


def test_split_summary(dataset: Dataset) -> None:
    assert dataset.split["contiguous"] is False
    assert sum(dataset.split[s]["documents"] for s in ("train", "validation", "test")) == 90
    assert dataset.split["train"]["tokens"] == len(dataset.train_tokens)
    assert dataset.split["train"]["bytes"] == sum(map(len, dataset.train_text))


def test_the_place_of_a_folder_changes_nothing(
    dataset: Dataset, folder: Path, tmp_path: Path, load_text: Loader
) -> None:
    shutil.copytree(folder, tmp_path / "moved")
    moved = load_text(tmp_path / "moved")
    assert moved.content_sha256 == dataset.content_sha256
    assert moved.targets.sha256 == dataset.targets.sha256
    assert np.array_equal(moved.train_tokens, dataset.train_tokens)


def test_one_file_is_cut_in_three(tmp_path: Path, load_text: Loader) -> None:
    file = tmp_path / "novel.txt"
    file.write_text(prose(1, 12000), encoding="utf-8")
    own = load_text(file)
    assert own.split["contiguous"] is True
    assert list(own.test) == ["novel.txt"]
    size, longest = len(own.test["novel.txt"]), own.targets.longest
    assert longest + 512 <= size < 2 * longest + 512
    text = own.train_text[0] + own.validation_text[0]
    assert file.read_bytes().startswith(text)


@pytest.mark.parametrize("words", [1, 3, 60])
def test_a_small_text_is_refused(tmp_path: Path, load_text: Loader, words: int) -> None:
    file = tmp_path / "note.txt"
    file.write_text(prose(1, words), encoding="utf-8")
    with pytest.raises(
        DataError, match=r"data\.path=.*note\.txt: too small .*96 tokens are needed"
    ):
        load_text(file)


def test_a_text_of_one_byte_is_refused(tmp_path: Path, load_text: Loader) -> None:
    (tmp_path / "x.txt").write_text("x", encoding="utf-8")
    with pytest.raises(
        DataError,
        match=r"data\.path=.*x\.txt: too small .*leave none for train, and 96 tokens",
    ):
        load_text(tmp_path / "x.txt")


def test_a_second_load_neither_trains_nor_encodes(
    dataset: Dataset, folder: Path, load_text: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("not from the cache")

    monkeypatch.setattr(tokenizer, "train", fail)
    monkeypatch.setattr(tokenizer.BpeTokenizer, "encode", fail)
    again = load_text(folder)
    assert np.array_equal(again.train_tokens, dataset.train_tokens)
    assert [t.tolist() for t in again.validation] == [t.tolist() for t in dataset.validation]
    assert again.targets == dataset.targets


def test_damaged_and_unwritable_caches_are_no_error(
    dataset: Dataset,
    folder: Path,
    load_text: Loader,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POSBENCH_CACHE", str(tmp_path / "own"))
    load_text(folder)
    entries = sorted((tmp_path / "own").iterdir())
    assert len(entries) == 4
    whole = [entry.read_bytes() for entry in entries]
    entries[0].write_bytes(whole[0][: len(whole[0]) // 2])
    entries[1].write_bytes(whole[1][:-1] + bytes([whole[1][-1] ^ 1]))
    entries[2].write_bytes(b"")
    entries[3].unlink()
    assert np.array_equal(load_text(folder).train_tokens, dataset.train_tokens)
    assert [entry.read_bytes() for entry in entries] == whole
    (tmp_path / "file").touch()
    monkeypatch.setenv("POSBENCH_CACHE", str(tmp_path / "file"))
    assert np.array_equal(load_text(folder).train_tokens, dataset.train_tokens)


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache.folder().name.startswith("cache")
    monkeypatch.delenv("POSBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "posbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path.home() / ".cache" / "posbench"


def test_write_atomic_leaves_nothing_behind(tmp_path: Path) -> None:
    cache.write_atomic(tmp_path / "a" / "b", b"one")
    cache.write_atomic(tmp_path / "a" / "b", b"two")
    assert [(f.name, f.read_bytes()) for f in (tmp_path / "a").iterdir()] == [("b", b"two")]
    (tmp_path / "a" / "c").mkdir()
    with pytest.raises(OSError, match="c"):
        cache.write_atomic(tmp_path / "a" / "c", b"three")
    assert sorted(f.name for f in (tmp_path / "a").iterdir()) == ["b", "c"]


def test_a_given_tokenizer_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tokenizer.train("bpe280", [b"the state of the house " * 50])
    config = registry.get("data", "text").Config(path=str(folder), tokenizer="bpe1024")
    monkeypatch.setattr(tokenizer, "train", lambda *a: pytest.fail("trained"))
    loaded = load(config, own)
    assert loaded.tokenizer is own
    assert loaded.targets.tokenizer_sha256 == own.sha256


def test_frozen_files_are_used_only_for_their_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    config = registry.get("data", "sotu").Config(tokenizer="bpe1024")
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer, "train", lambda *a: pytest.fail("trained"))
        patch.setattr(
            tokenizer.BpeTokenizer,
            "encode",
            lambda self, texts: tokenizer.ByteTokenizer().encode(texts),
        )
        frozen = module.build(config, None, frozen=True, cached=False)
    assert frozen.tokenizer.vocab_size == 1024
    assert frozen.targets.tokenizer_sha256 == frozen.tokenizer.sha256
    other = load(config, tokenizer.ByteTokenizer())
    assert other.targets.tokenizer_sha256 == tokenizer.ByteTokenizer().sha256


def test_targets_of_another_text_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = registry.get("data", "sotu")
    documents = cls(cls.Config()).documents()
    monkeypatch.setattr(cls, "sha256", "")
    monkeypatch.setattr(cls, "read", lambda self: documents[:-1])
    with pytest.raises(DataError, match="frozen targets do not belong"):
        load(cls.Config(tokenizer="bytes"))
