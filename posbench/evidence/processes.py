"""Chains of `posbench` commands, some side by side, until the time is over."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from posbench.errors import PosbenchError

#: seconds between two looks at what the processes have done, and that one has to end itself
LOOK, GRACE = 0.2, 60.0

#: arguments of one `posbench` call
Command = tuple[str, ...]
Report = Callable[[str], None]


class Process(Protocol):
    """What is asked of a command that runs."""

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""

    def stop(self) -> None:
        """Interrupt it and wait for its end."""

    def word(self) -> str:
        """The last line that it wrote."""


Start = Callable[[Command], Process]


class Chain(Protocol):
    """A piece of work: commands, each begun when the one before has ended."""

    key: str
    after: str | None

    def commands(self) -> Iterator[Command]: ...


class _Started:
    """A command in a process of its own, on one thread."""

    def __init__(self, command: Command):
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (`poll` closes it)
        self.written: list[str] = []
        environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "posbench", *command],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=environment,
        )

    def poll(self) -> int | None:
        code = self.process.poll()
        if code is not None and not self.log.closed:
            self.log.seek(0)
            self.written = self.log.read().decode(errors="replace").strip().splitlines()
            self.log.close()
        return code

    def stop(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
                self.process.send_signal(number)
                self.process.wait(GRACE)
                break
        self.poll()

    def word(self) -> str:
        errors = [line for line in self.written if "error" in line]
        return (errors or self.written or [""])[-1]


def started(command: Command) -> Process:
    """Run `posbench` with these arguments in a process of its own."""
    return _Started(command)


@dataclass
class _Active:
    """A chain whose command runs."""

    chain: Chain
    commands: Iterator[Command]
    process: Process


def side_by_side(
    chains: Sequence[Chain], seconds: float, workers: int, report: Report, start: Start = started
) -> None:
    """Work on chains in their order, `workers` at a time; what runs at the end is interrupted.

    A chain waits while another of its key works, or one of the key that it comes after. An
    error of one leaves the others alone.
    """
    end = time.monotonic() + seconds
    waiting, active = list(chains), list[_Active]()
    try:
        while (waiting or active) and time.monotonic() < end:
            while len(active) < workers and (chosen := _next(waiting, active)) is not None:
                waiting.remove(chosen)
                _advance(chosen, chosen.commands(), active, report, start)
            still = True
            for one in list(active):
                if (code := one.process.poll()) is not None:
                    still = False
                    active.remove(one)
                    if code:
                        report(f"{one.chain}: exit code {code}: {one.process.word()}")
                    _advance(one.chain, one.commands, active, report, start)
            if still:
                time.sleep(LOOK)
    finally:
        for one in active:
            one.process.stop()
            report(f"{one.chain}: interrupted, goes on from there the next time")


def _next(waiting: Sequence[Chain], active: Sequence[_Active]) -> Chain | None:
    """The first chain that nothing at work stands in the way of."""
    busy = {one.chain.key for one in active}
    for i, chain in enumerate(waiting):
        before = busy | {one.key for one in waiting[:i]}
        if chain.key not in before and chain.after not in before:
            return chain
    return None


def _advance(
    chain: Chain, commands: Iterator[Command], active: list[_Active], report: Report, start: Start
) -> None:
    """Begin the next command of a chain, if there is one."""
    try:
        command = next(commands, None)
    except PosbenchError as error:
        report(f"{chain}: {error}")
        return
    if command is not None:
        active.append(_Active(chain, commands, start(command)))
