"""Starts of processes: until they end, or until a line appears."""

import subprocess
import sys
from typing import Any

import pytest

from posbench.bench import startup


def python(code: str, **options: Any) -> startup.Start:
    return startup.Start([sys.executable, "-S", "-c", code], {}, **options)


class Ticks:
    """A clock that counts how often it was looked at."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


def test_a_start_ends_with_its_process_or_with_a_line() -> None:
    lines = "import sys; print('one', 'STEP', 'STEP again', sep='\\n', file=sys.stderr)"
    assert python("pass", clock=Ticks())() == 1
    assert python(lines, until="STEP", clock=Ticks())() == 1


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (python("raise SystemExit('no')"), "no"),
        (python("raise SystemExit(3)"), "exit code 3"),
        (python("pass", until="STEP"), "exit code 0"),
    ],
)
def test_a_start_that_fails_says_why(start: startup.Start, words: str) -> None:
    with pytest.raises(startup.StartFailed, match=f"^{words}$"):
        start()


def test_samples_beside_a_bare_python() -> None:
    told: list[str] = []
    started = {
        startup.BARE: python("pass"),
        "startup/x": python("import json"),
        "startup/broken": python("raise SystemExit('no')"),
    }
    found = startup.measure(2, told.append, started=started)
    assert [(m.name, len(m.samples)) for m in found] == [(startup.BARE, 2), ("startup/x", 2)]
    assert found[1].reference == found[1].yardstick == startup.BARE
    assert told == ["startup/broken: no"]


def test_the_programs_that_are_started_answer() -> None:
    """All but the longest, once; what it prints is what a shell or a reader gets."""
    subjects = startup.subjects()
    for name, said in {"--help": "Usage", "list": "rope", "completion": "alibi"}.items():
        one = subjects[f"startup/{name}"]
        environment = startup.os.environ | one.environment
        done = subprocess.run(one.command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0 and said in done.stdout, done.stderr


def test_the_first_step_is_seen(tiny: list[str]) -> None:
    """A run of one step writes the line that the clock waits for."""
    one = startup.subjects()["startup/train, first step"]
    one.command = [
        *one.command,
        *(w for w in tiny if not w.startswith(("train.steps", "train.val"))),
    ]
    assert one() > 0
