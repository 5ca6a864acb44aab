"""Windows and batches of generated tasks: determinism, lengths, options, symbols."""

from typing import Any

import numpy as np
import pytest

from data.solvers import CASES, NAMES, Solver, cases, spelled, task, whole
from posbench import registry
from posbench.data.tasks import UNSCORED
from posbench.data.tokenizer import SymbolTokenizer, parse
from posbench.errors import ConfigError, DataError


@pytest.mark.parametrize("name", NAMES)
def test_windows_and_batches_are_functions_of_their_numbers(name: str) -> None:
    data, again = task(name), task(name)
    for step in (0, 7):
        one, other = data.training_batch((64,), 8, 1, step), again.training_batch((64,), 8, 1, step)
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    base = data.training_batch((64,), 8, 1, 7)[0]
    for seed, step in ((1, 8), (2, 7), (7, 1)):
        assert not np.array_equal(base, data.training_batch((64,), 8, seed, step)[0])
    few = list(data.target_windows((96,), 5, 1))
    _ = list(again.target_windows((200,), 3, None))
    many = list(again.target_windows((96,), None, None))
    for a, b in zip(few, many, strict=False):
        assert a.document == b.document and np.array_equal(a.inputs, b.inputs)
    assert len({w.document for w in many}) == len({w.inputs.tobytes() for w in many}) == 256
    held = {row.tobytes() for row in data.validation_windows((96,), 64)[0]}
    assert len(held) == 64 and not held & {w.inputs.tobytes() for w in many}


@pytest.mark.parametrize("name", NAMES)
def test_only_what_changes_the_test_changes_the_hash(name: str) -> None:
    data = task(name)
    assert data.content_sha256 == task(name, mixed=False).content_sha256
    assert data.targets.sha256 == task(name, mixed=False).targets.sha256
    own = [(n, o) for n, o, *_ in CASES if n == name and o]
    assert all(task(name, **options).content_sha256 != data.content_sha256 for _, options in own)
    assert len({task(n).content_sha256 for n in NAMES}) == len(NAMES)


@cases
def test_a_length_that_is_too_short_is_refused_with_the_shortest(
    name: str, options: dict[str, Any], length: int, solve: Solver
) -> None:
    data = task(name, **options)
    least = data.shortest
    assert data.test_shapes(None, [length, least, length]) == [(least,), (length,)]
    for window in data.target_windows((least,), 16, None):
        symbols = whole(data, window)
        assert spelled(data, window.labels) == [solve(symbols[: i + 1]) for i in window.scored]
    assert (data.training_batch((least,), 4, 0, 0)[1] != UNSCORED).any(axis=1).all()
    with pytest.raises(ConfigError, match=rf"eval\.lengths={least - 1}: .* from {least} to 65536"):
        data.test_shapes(None, [length, least - 1])
    for refused in (data.training_batch, data.validation_windows):
        arguments = (1, 0, 0) if refused == data.training_batch else (1,)
        with pytest.raises(ConfigError, match=rf"train\.seq_len={least - 1}: .* {least} "):
            refused((least - 1,), *arguments)
    assert not data.reaches((least - 1,)) and data.reaches((least,))


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("copy", {"size": 0}, r"data\.size=0: must be from 1"),
        ("reverse", {"symbols": 27}, r"data\.symbols=27: must be from 2 to 26"),
        ("recall", {"pairs": 65}, r"data\.pairs=65: must be from 1 to data\.keys=64"),
        ("recall", {"queries": 9}, r"data\.queries=9: must be from 1 to data\.pairs=8"),
        ("recall", {"values": 1}, r"data\.values=1: must be from 2"),
        ("passkey", {"digits": 0}, r"data\.digits=0: must be from 1"),
        ("indexing", {"marks": 27}, r"data\.marks=27: must be from 1 to 26"),
        ("indexing", {"steps": 0}, r"data\.steps=0: must be from 1"),
        ("first_token", {"symbols": 11}, r"data\.symbols=11: must be from 2 to 10"),
        ("flip_flop", {"ignore": 1.5}, r"data\.ignore=1\.5: must be from 0 to 1"),
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        registry.get("data", name).Config(**options)


def test_shapes_are_for_pictures() -> None:
    with pytest.raises(ConfigError, match=r"eval\.shapes: data=copy has one axis"):
        task("copy").test_shapes(["8x8"], None)


def test_mean_context_counts_the_tokens_before_what_is_scored() -> None:
    # copy of T = 8: t v l r | t v l -> answers after 5, 6, 7 and 8 tokens
    assert task("copy").mean_context((8,)) == 6.5
    assert task("first_token").mean_context((8,)) == 8


def test_symbols_survive_the_file_and_unknown_ones_do_not_pass() -> None:
    own = task("recall").tokenizer
    kept = parse(own.content)
    assert isinstance(kept, SymbolTokenizer) and kept.pieces == own.pieces
    assert kept.sha256 == own.sha256 and kept.vocab_size == 8 + 64 + 64 + 1
    (ids,) = kept.encode(["K3 V1 ? ."])
    assert kept.decode(ids) == b"K3 V1 ? ." and kept.token_bytes()[ids].tolist() == [1] * 4
    with pytest.raises(DataError, match="K64 is no symbol"):
        kept.encode(["K64"])
