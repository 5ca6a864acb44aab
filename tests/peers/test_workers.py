"""Worker processes that have nothing but the standard library."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peers.speed import workers as module
from peers.speed.workers import Worker, WorkerError, side_by_side
from posbench.bench.alternate import alternate

FILE = Path(module.__file__)


@contextmanager
def worker(code: str, **options: float) -> Iterator[Worker]:
    """A worker without posbench, which loads the module by its path where it needs it."""
    load = f"import sys; sys.path.insert(0, {str(FILE.parent)!r})\n"
    with Worker([sys.executable, "-I", "-S", "-c", load + code], **options) as made:
        yield made


SERVING = """
import time, workers
done = []
def step():
    print('noise of a library')
    done.append(1)
    time.sleep(0.02)
workers.serve(step, 7, loss=1.5)
"""


def test_it_loads_where_there_is_no_posbench() -> None:
    code = f"import sys; sys.path.insert(0, {str(FILE.parent)!r}); import workers; "
    code += "print(*[m for m in ('posbench', 'torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_a_worker_takes_the_steps_that_it_is_told() -> None:
    with worker(SERVING, steps=3) as one:
        assert (one.tokens, one.ready["loss"]) == (7, 1.5)
        assert 0.02 <= one.first < 5
        assert 0.02 <= one() < 5
        first, second = alternate({"a": one, "b": lambda: 0.0}, 2)["a"]
        assert first >= 0.02 and second >= 0.02
    assert one.process.returncode == 0


def test_workers_side_by_side_overlap(tmp_path: Path) -> None:
    """No step ends before the other worker has begun its own."""
    code = f"""
import itertools, pathlib, time, workers
place, count = pathlib.Path({str(tmp_path)!r}), itertools.count()
def step():
    turn, until = next(count), time.monotonic() + 60
    (place / f"{{ME}}{{turn}}").touch()
    while not (place / f"{{OTHER}}{{turn}}").exists():
        if time.monotonic() > until:
            raise SystemExit("alone")
        time.sleep(0.001)
"""
    serve = "\nworkers.serve(step, 1)"
    with (
        worker(f"ME, OTHER = 'ab'{code}{serve}") as one,
        worker(f"ME, OTHER = 'ba'{code}{serve}") as other,
    ):
        assert len(side_by_side([one, other], 3)) == 2
    assert len(list(tmp_path.iterdir())) == 2 * (1 + 3)


def test_lines_before_it_is_ready_are_skipped() -> None:
    code = "print('hello'); print('[1]'); print('{\"tokens\": 1, \"first\": 2}')"
    with worker(code) as one:
        assert one.first == 2.0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit('no torch here')", "the worker ended: no torch here"),
        ("import time; time.sleep(60)", "the worker gave no answer in 0.5 s"),
        (
            "print('{\"tokens\": 1, \"first\": 1}', flush=True); input(); print('true')",
            "the worker answered True, not a number of seconds",
        ),
    ],
)
def test_a_worker_that_fails_says_why(code: str, words: str) -> None:
    patience = 0.5 if "sleep" in code else 30.0
    with worker(code, timeout=patience) as one, pytest.raises(WorkerError) as raised:
        one()
    assert str(raised.value) == words
