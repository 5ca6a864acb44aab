"""What is written to stderr where it is no terminal."""

import pytest

from posbench import console


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    return now


def test_a_long_sweep_says_how_far_it_is(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with console.steps("sweep", 4) as report:
        for item, seconds in (("a", 0.0), ("b", 20.0), ("c", 1.0), ("d", 30.0)):
            clock[0] += seconds
            report(item)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["sweep: 4 passes", "  sweep  2/4  b", "  sweep  4/4  d"]
