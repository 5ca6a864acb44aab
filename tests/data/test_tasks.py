"""The instances of generated tasks: what their answers are, and what they are known from."""

import inspect
import re
import string
from typing import Any

import numpy as np
import pytest

from data.solvers import NAMES, Solver, cases, spelled, task, whole
from posbench import registry
from posbench.data.corpora.task import FILLER
from posbench.data.tasks import UNSCORED, TaskDataset


def others(symbol: str, data: TaskDataset) -> list[str]:
    """Other symbols of the same kind: letters, digits, values; none for what is no content."""
    kinds = (string.ascii_lowercase, string.digits)
    known = spelled(data, range(data.tokenizer.vocab_size))
    instructions = {"i", "r", "w"} & set(known) if "r" in known and "0" in known else set()
    if symbol.startswith("V"):
        return [s for s in known if s.startswith("V") and s != symbol]
    for kind in kinds:
        if symbol in kind and symbol not in instructions:
            return [s for s in known if s in kind and s not in {*instructions, symbol}]
    return []


@cases
def test_the_solver_finds_every_answer_in_what_is_before_it(
    name: str, options: dict[str, Any], length: int, solve: Solver
) -> None:
    data = task(name, **options)
    windows = list(data.target_windows((length,), None, None))
    assert len(windows) == 256
    for window in windows:
        assert window.inputs.shape == (length,) and window.shape == (length,)
        symbols = whole(data, window)
        answers = spelled(data, window.labels)
        assert answers == [symbols[i + 1] for i in window.scored]
        assert answers == [solve(symbols[: i + 1]) for i in window.scored]
    assert len({tuple(w.scored) for w in windows}) == 1  # so that they share batches


@cases
def test_another_source_means_another_answer_and_the_distance_is_to_the_farthest(
    name: str, options: dict[str, Any], length: int, solve: Solver
) -> None:
    data = task(name, **options)
    for window in data.target_windows((length,), 8, None):
        symbols, reach = whole(data, window), []
        for i, label in zip(window.scored, spelled(data, window.labels), strict=True):
            at = int(i) + 1
            sources = [
                j
                for j in range(int(window.scored[0]) + 1)
                if any(
                    solve([*symbols[:j], other, *symbols[j + 1 : at]]) != label
                    for other in others(symbols[j], data)[:2]
                )
            ]
            assert len(sources) == 1, (symbols, label)
            reach.append(at - sources[0])
        assert window.distance == max(reach)


def guessed(name: str, symbols: list[str]) -> set[str]:
    """The symbols that can be an answer, by their looks."""
    if name == "recall":
        return {s for s in symbols if s.startswith("V")}
    if name == "flip_flop":
        return {"0", "1"}
    kind = string.digits if name in ("passkey", "first_token") else string.ascii_lowercase
    return {s for s in symbols if s in kind}


@cases
def test_chance_is_one_of_the_symbols_that_can_be_an_answer(
    name: str, options: dict[str, Any], length: int, solve: Solver
) -> None:
    data = task(name, **options)
    able = guessed(name, spelled(data, range(data.tokenizer.vocab_size)))
    assert data.chance == 1 / len(able)
    answers = [a for w in data.target_windows((length,), None, None) for a in w.labels.tolist()]
    assert set(spelled(data, answers)) <= able
    most = max(np.bincount(answers)) / len(answers)
    assert most < data.chance + 4 * (data.chance / len(answers)) ** 0.5 + 4 / 256


@cases
def test_training_scores_answers_alone(
    name: str, options: dict[str, Any], length: int, solve: Solver
) -> None:
    data = task(name, **options)
    inputs, labels = data.training_batch((length,), 64, 3, 5)
    assert inputs.shape == labels.shape == (64, length)
    ends = []
    for row, wanted in zip(inputs, labels, strict=True):
        symbols = spelled(data, row)
        scored = np.flatnonzero(wanted != UNSCORED)
        assert len(scored)
        for i in scored:
            answer = spelled(data, wanted[i : i + 1])[0]
            assert answer == solve(symbols[: i + 1]) and answer not in FILLER
            if i < scored[-1]:
                assert symbols[i + 1] == answer
        ends.append(int(scored[-1]) + 1)
        assert set(symbols[ends[-1] :]) <= {FILLER[0]}
    assert min(ends) >= data.shortest and max(ends) <= length
    low, middle, high = np.quantile(ends, [0.1, 0.5, 0.9])  # uniform from shortest to length
    span = length - data.shortest
    assert low < data.shortest + 0.3 * span and high > data.shortest + 0.7 * span
    assert data.shortest + 0.2 * span < middle < data.shortest + 0.8 * span
    fixed = task(name, **options, mixed=False)
    inputs, labels = fixed.training_batch((length,), 64, 3, 5)
    assert (labels[:, -1] != UNSCORED).all()
    for row, wanted in zip(inputs, labels, strict=True):
        assert spelled(fixed, wanted[-1:])[0] == solve(spelled(fixed, row))


@pytest.mark.parametrize("name", NAMES)
def test_the_docstrings_example_is_drawn(name: str) -> None:
    doc = inspect.getdoc(registry.get("data", name)) or ""
    drawn = [line.split() for line in doc.splitlines() if line.startswith("    ")]
    assert drawn
    for symbols in drawn:
        said = doc[: doc.index(" ".join(symbols))]
        options = {k: float(v) for k, v in re.findall(r"data\.(\w+)=([0-9.]+)", said)}
        for option, value in options.items():
            options[option] = int(value) if value.is_integer() else value
        length = int(re.findall(r"T = (\d+)", said)[-1])
        data = task(name, **options)
        assert len(symbols) == length + 1
        windows = data.target_windows((length,), 4, None)
        assert symbols in [whole(data, window) for window in windows]


@pytest.mark.parametrize(
    "name, options, length, jitter",
    [
        ("copy", {"size": 8}, 256, 0),
        ("reverse", {"size": 8}, 256, 0),
        ("recall", {}, 512, 2 * 8),
        ("passkey", {}, 256, 0),
        ("indexing", {}, 512, 6 + 4),
        ("flip_flop", {}, 257, 0),
    ],
)
@pytest.mark.parametrize("first", [32, 256])
def test_distances_are_covered_evenly(
    name: str, options: dict[str, Any], length: int, jitter: int, first: int
) -> None:
    windows = task(name, **options).target_windows((length,), first, None)
    distances = np.sort([w.distance for w in windows])
    even = np.linspace(distances[0], distances[-1], first)
    assert np.ptp(distances) > 0.7 * length
    assert np.abs(distances - even).max() <= 2 * length / first + jitter


@cases
def test_filler_occurs_in_no_answer_and_no_alphabet(
    name: str, options: dict[str, Any], length: int, solve: Solver
) -> None:
    data = task(name, **options)
    symbols = spelled(data, range(data.tokenizer.vocab_size))
    assert symbols[: len(FILLER)] == list(FILLER) and len(set(symbols)) == len(symbols)
    answers = {a for w in data.target_windows((length,), None, None) for a in w.labels.tolist()}
    assert min(answers) >= len(FILLER) and len(answers) > 1
