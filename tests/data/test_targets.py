"""Frozen targets: protocol, order, choice of the longest length, and the committed files."""

from pathlib import Path

import numpy as np
import pytest

from posbench import registry
from posbench.data import pinned, targets
from posbench.data.dataset import Dataset, load
from posbench.data.freeze import FROZEN, freeze
from posbench.data.targets import BLOCKS, SCORED, Targets, build, ends, fit, parse, room, spread
from posbench.errors import DataError


def check(own: Targets, sizes: dict[str, int]) -> None:
    """The rules of the protocol for one targets file."""
    assert own.scored == SCORED == 32
    assert len({len(d.ends) for d in own.documents}) == 1
    for document in own.documents:
        ordered = sorted(document.ends)
        assert ordered[0] >= own.longest + SCORED - 1
        assert ordered[-1] == sizes[document.id] - 1
        gaps = np.diff(ordered)
        assert gaps.min(initial=SCORED) >= SCORED
        if len(gaps):
            assert gaps.max() - gaps.min() <= 1, "evenly spaced"


@pytest.mark.parametrize(("corpus", "tokenizer"), FROZEN)
def test_committed_targets_follow_the_protocol(corpus: str, tokenizer: str) -> None:
    content = pinned.read(corpus, tokenizer, pinned.TARGETS)
    assert content
    own = targets.parse(content)
    assert (own.longest, own.blocks) == (16384, 16)
    assert len(own.documents) >= 20
    check(own, {d.id: max(d.ends) + 1 for d in own.documents})
    assert all(max(d.ends) + 1 >= 16384 + 16 * 32 + 1 for d in own.documents)
    assert own.content_sha256 == registry.get("data", corpus).sha256


def test_committed_targets_belong_to_the_dataset(sotu: Dataset) -> None:
    assert sotu.targets.tokenizer_sha256 == sotu.tokenizer.sha256
    check(sotu.targets, {name: len(tokens) for name, tokens in sotu.test.items()})
    assert list(sotu.test) == [d.id for d in sotu.targets.documents]


def test_freezing_bytes_gives_the_committed_file(tmp_path: Path) -> None:
    freeze("sotu", "bytes", tmp_path)
    same(tmp_path, "sotu-bytes")


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["sotu", "code"])
def test_freezing_bpe_gives_the_committed_files(tmp_path: Path, corpus: str) -> None:
    freeze(corpus, "bpe1024", tmp_path)
    same(tmp_path, f"{corpus}-bpe1024")


def same(folder: Path, name: str) -> None:
    committed = sorted((pinned.FOLDER / name).iterdir())
    assert [f.name for f in committed] == sorted(f.name for f in (folder / name).iterdir())
    for file in committed:
        assert file.read_bytes() == (folder / name / file.name).read_bytes(), file.name
    expected = pinned.sums(pinned.FOLDER)
    assert all(expected[path] == digest for path, digest in pinned.sums(folder).items())


def test_sums_list_exactly_the_committed_files() -> None:
    found = {f.relative_to(pinned.FOLDER).as_posix() for f in pinned.FOLDER.rglob("*.json")}
    assert set(pinned.sums(pinned.FOLDER)) == found


def test_damaged_frozen_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freeze("sotu", "bytes", tmp_path)
    monkeypatch.setattr(pinned, "FOLDER", tmp_path)
    file = tmp_path / "sotu-bytes" / "targets.json"
    file.write_bytes(file.read_bytes().replace(b"16384", b"16383", 1))
    config = registry.get("data", "sotu").Config(tokenizer="bytes")
    with pytest.raises(DataError, match=r"data=sotu: .*sotu-bytes/targets\.json is damaged"):
        load(config)
    file.unlink()
    with pytest.raises(DataError, match=r"targets\.json is missing"):
        load(config)


def test_spread_begins_far_apart() -> None:
    assert spread(1) == [0]
    assert spread(2) == [0, 1]
    assert spread(5) == [0, 4, 2, 1, 3]
    for n in (3, 16, 24):
        assert sorted(spread(n)) == list(range(n))
    assert spread(16)[:3] == [0, 15, 7]


def test_blocks_are_nested_by_construction() -> None:
    own = ends(5000, 1024, 16)
    assert own[:2] == [1024 + 31, 4999]
    assert ends(room(1024, 16), 1024, 16) == [1055 + 32 * i for i in spread(16)]


@pytest.mark.parametrize(
    ("sizes", "longest", "expected"),
    [
        ([room(512, 16)] * 20, None, (512, 16)),
        ([room(512, 16) - 1] * 20, None, (256, 16)),
        ([room(512, 16)] * 19 + [room(64, 16)], None, (64, 16)),
        ([room(512, 16)] * 19, None, (512, 16)),
        ([700] * 20, None, (128, 16)),
        ([room(64, 16) - 1] * 30, None, (64, 15)),
        ([96], None, (64, 1)),
        ([95], None, (0, 0)),
        ([], None, (0, 0)),
        ([20000, 10], 16384, (16384, 16)),
        ([16895], 16384, (0, 0)),
    ],
)
def test_longest_length(sizes: list[int], longest: int | None, expected: tuple[int, int]) -> None:
    assert fit(sizes, longest) == expected


def test_only_documents_that_reach_the_longest_carry_targets() -> None:
    tokens = {f"d{i:02d}": np.zeros(600 + 40 * i) for i in range(30)}
    own = build("x", tokens, tokenizer_sha256="t", content_sha256="c")
    assert own.longest == 256
    assert {d.id for d in own.documents} == {n for n, t in tokens.items() if len(t) >= 256 + 512}
    assert len(own.documents) >= 20
    assert all(len(d.ends) == BLOCKS for d in own.documents)
    check(own, {name: len(t) for name, t in tokens.items()})


def test_json_and_hash() -> None:
    own = build("x", {"a": np.zeros(900)}, tokenizer_sha256="t", content_sha256="c")
    again = parse(own.content)
    assert again == own
    assert again.sha256 == own.sha256
    for damage in (b"", b"{}", b"[]", b'{"documents": []}'):
        with pytest.raises(ValueError):
            parse(damage)
