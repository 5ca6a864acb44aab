"""Taking turns."""

import pytest

from posbench.bench.alternate import alternate


def test_the_order_is_reversed_every_other_round() -> None:
    taken: list[str] = []
    subjects = {name: lambda name=name: taken.append(name) for name in "abc"}
    alternate(subjects, 3)
    assert "".join(taken) == "abccbaabc"


def test_samples_are_by_round() -> None:
    times = iter(range(6))
    turns: list[int] = []
    found = alternate({n: lambda: next(times) for n in "ab"}, 3, done=turns.append)
    assert found == {"a": [0, 3, 4], "b": [1, 2, 5]}
    assert turns == [1, 2, 3]


def test_what_fails_is_left_out_and_told() -> None:
    def second() -> int:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("broken")
        return 1

    calls: list[int] = []
    told: list[str] = []
    found = alternate({"a": lambda: 0, "b": second}, 4, lambda n, e: told.append(f"{n}: {e}"))
    assert found == {"a": [0] * 4} and told == ["b: broken"] and len(calls) == 2
    calls.clear()
    with pytest.raises(ValueError, match="broken"):
        alternate({"b": second}, 2)
