"""A clock that only work moves, and words of a bench that takes a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Clock:
    """Seconds that tests add by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def small(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Overrides of a tiny run; samples are single steps and passes, products are small."""
    from posbench.bench import machine

    monkeypatch.setattr(machine, "SAMPLE", 1e-9)
    monkeypatch.setattr(machine, "SIZES", {"cpu": (64, 1)})
    return [*tiny, "train.compile=false"]


@pytest.fixture
def bench(posbench: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """`posbench bench ... --out`: what was printed, and the result."""
    from posbench.bench.result import Result

    def run(*words: str) -> Any:
        done = posbench("bench", *words, "--out", "result.json")
        assert done.code == 0, done.err
        assert max(map(len, done.out.splitlines())) <= 80
        return done, Result.read(tmp_path / "result.json", "--out")

    return run
