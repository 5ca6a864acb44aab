"""A contestant as a process that does steps of its work when told to; both of its ends.

Only the standard library: it is loaded in environments that have no posbench.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any


class WorkerError(Exception):
    """A worker process ended, took too long, or said what is not expected; one line."""


class Worker:
    """A process that has its work ready and does steps of it when told to.

    The process prints one JSON object when it is ready, with at least `tokens` (of one step) and
    `first` (seconds of the first step, compiling included); lines before that which are no such
    object are skipped. Then, for every line "N" on its stdin, it does N steps and prints the mean
    seconds of a step as JSON. It ends when its stdin is closed. `serve` is the other end.
    """

    def __init__(
        self,
        command: Sequence[str],
        steps: int = 1,
        timeout: float = 600.0,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ):
        #: steps of a call, and seconds after which a silent process is ended
        self.steps, self.timeout = steps, timeout
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 (`close` closes it)
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=dict(env) if env is not None else None,
            cwd=cwd,
        )
        #: what the process said when it was ready
        self.ready: dict[str, Any] = {}

    def wait(self) -> "Worker":
        """Wait until the process is ready."""
        while not self.ready:
            said = self._line()
            if isinstance(said, dict) and {"tokens", "first"} <= said.keys():
                self.ready = said
        return self

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return int(self.wait().ready["tokens"])

    @property
    def first(self) -> float:
        """Seconds of the first step."""
        return float(self.wait().ready["first"])

    def start(self, steps: int | None = None) -> None:
        """Begin `steps` steps; `result` waits for them."""
        self.wait()
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{self.steps if steps is None else steps}\n")
            self.process.stdin.flush()
        except OSError:
            raise self._failed("ended") from None

    def result(self) -> float:
        """Mean seconds of a step of those that were begun."""
        said = self._line()
        if isinstance(said, bool) or not isinstance(said, (int, float)):
            raise self._failed(f"answered {said!r}, not a number of seconds")
        return float(said)

    def __call__(self) -> float:
        """Mean seconds of a step, over `self.steps` of them."""
        self.start()
        return self.result()

    def close(self) -> None:
        """End the process."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *why: object) -> None:
        self.close()

    def _line(self) -> Any:
        """The next line of the process, decoded; None where it is no JSON."""
        assert self.process.stdout is not None
        alarm = threading.Timer(self.timeout, self.process.kill)
        alarm.start()
        try:
            line = self.process.stdout.readline()
        finally:
            late = not alarm.is_alive()
            alarm.cancel()
        if not line:
            raise self._failed(f"gave no answer in {self.timeout:g} s" if late else "ended")
        try:
            return json.loads(line)
        except ValueError:
            return None

    def _failed(self, what: str) -> WorkerError:
        """The error, with the last thing that the process wrote on stderr."""
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return WorkerError(f"the worker {what}{': ' + lines[-1] if lines else ''}")


def serve(step: Callable[[], object], tokens: int, **facts: object) -> None:
    """The process's end of a Worker: take the first step, then steps as they are asked for.

    What libraries print goes to stderr from here on. `step` must return when its work is done: on a
    GPU, after a synchronisation. `facts` are added to what is said when ready.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(value: object) -> None:
        print(json.dumps(value), file=answers, flush=True)

    began = time.perf_counter()
    step()
    say({"tokens": tokens, "first": time.perf_counter() - began, **facts})
    for line in sys.stdin:
        count = int(line)
        began = time.perf_counter()
        for _ in range(count):
            step()
        say((time.perf_counter() - began) / count)


def side_by_side(workers: Sequence[Worker], steps: int) -> list[float]:
    """Mean seconds of a step of workers that run at the same time."""
    for worker in workers:
        worker.wait()
    for worker in workers:
        worker.start(steps)
    return [worker.result() for worker in workers]
