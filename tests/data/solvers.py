"""Solvers of the generated tasks that read symbols and know nothing of the generators."""

import string
from collections.abc import Callable
from typing import Any

import pytest

from posbench import registry
from posbench.data.dataset import load
from posbench.data.tasks import TaskDataset

#: what must stand at an index, from the symbols before it
Solver = Callable[[list[str]], str]


def _text(before: list[str]) -> tuple[list[str], int]:
    """The letters before the bar, and how many stand after it."""
    bar = before.index("|")
    return [s for s in before[:bar] if s in string.ascii_lowercase], len(before) - bar - 1


def _copied(before: list[str]) -> str:
    letters, said = _text(before)
    return letters[said]


def _reversed(before: list[str]) -> str:
    letters, said = _text(before)
    return letters[-1 - said]


def _recalled(before: list[str]) -> str:
    return before[before.index(before[-1]) + 1]


def _found(before: list[str]) -> str:
    said = len(before) - before.index("?") - 1
    return before[before.index("key") + 1 + said]


def _stepped(before: list[str]) -> str:
    *_, asked, mark, step = before
    assert asked == "?"
    return before[before.index(mark) + int(step)]


def _first(before: list[str]) -> str:
    assert before[-1] == "?"
    return before[0]


def _remembered(before: list[str]) -> str:
    assert before[-1] == "r"
    last = max(i for i, symbol in enumerate(before) if symbol == "w")
    return before[last + 1]


#: task, options, a length -> solver
CASES: list[tuple[str, dict[str, Any], int, Solver]] = [
    ("copy", {}, 24, _copied),
    ("copy", {}, 25, _copied),
    ("copy", {"size": 5, "symbols": 4}, 40, _copied),
    ("reverse", {}, 24, _reversed),
    ("reverse", {"size": 5}, 40, _reversed),
    ("recall", {}, 48, _recalled),
    ("recall", {"pairs": 3, "queries": 3, "keys": 3, "values": 2}, 41, _recalled),
    ("passkey", {}, 40, _found),
    ("passkey", {"digits": 1}, 33, _found),
    ("indexing", {}, 64, _stepped),
    ("indexing", {"marks": 1, "steps": 1, "symbols": 2}, 30, _stepped),
    ("first_token", {}, 40, _first),
    ("first_token", {"distractors": False, "symbols": 2}, 40, _first),
    ("flip_flop", {}, 41, _remembered),
    ("flip_flop", {"ignore": 0.1}, 40, _remembered),
]
NAMES = sorted({name for name, *_ in CASES})
cases = pytest.mark.parametrize("name, options, length, solve", CASES)


def task(name: str, **options: Any) -> TaskDataset:
    made = load(registry.get("data", name).Config(**options))
    assert isinstance(made, TaskDataset)
    return made


def spelled(data: TaskDataset, ids: Any) -> list[str]:
    return [data.tokenizer.pieces[i].decode() for i in ids]


def whole(data: TaskDataset, window: Any) -> list[str]:
    """The T + 1 symbols of a window; its last token is always scored."""
    assert window.scored[-1] == len(window.inputs) - 1
    return spelled(data, [*window.inputs, window.labels[-1]])
