"""What is measured, and the processes that are measured."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.environments import reason
from peers.speed.task import Shape, Task
from peers.speed.workers import Worker, WorkerError

TESTS = Path(__file__).parents[2]
#: seconds after which a silent process is ended
PATIENCE = 600.0
#: bytes that a process may allocate where the longest length is looked for
LIMIT = 8 * 2**30
#: training steps of a compiled and of a whole run: the demo's 1,700, and as many of this shape's
#: batches as hold the tokens of the demo (1,700 batches of 8 sequences of 128)
LONG_RUN, DEMO_TOKENS = 1700, 1700 * 8 * 128
OURS, PLAIN = "posbench", "posbench, compile=false"
PRODUCT = "matrix product"

SHAPES = (
    Shape("small", layers=4, width=128, heads=4, hidden=384, length=128, batch=32),
    Shape("larger", layers=6, width=256, heads=4, hidden=768, length=256, batch=16),
)
#: for trying this file out
TOY = (Shape("toy", layers=1, width=64, heads=2, hidden=128, length=64, batch=8),)


@dataclass
class Size:
    """How much is measured."""

    rounds: int = 5
    #: steps of a sample, by shape
    steps: dict[str, int] = field(default_factory=lambda: {"small": 5, "larger": 1, "toy": 5})
    shapes: tuple[Shape, ...] = SHAPES
    lengths: tuple[int, ...] = tuple(2**n for n in range(7, 15))
    #: shortest length that is tried under the memory limit
    shortest: int = 4096
    #: steps of the run that is really made
    whole: int = DEMO_TOKENS // SHAPES[0].tokens
    batches: int = 32
    #: whether peers are also measured under torch.compile
    compiled: bool = True


QUICK = Size(
    rounds=2, shapes=TOY, lengths=(128, 256, 512, 1024), shortest=512, whole=40, compiled=False
)


@dataclass
class Bench:
    """Where contestants run: the python of each, and a folder that is theirs."""

    #: python of a file of this package
    pythons: dict[str, Path]
    #: why others have none
    absent: dict[str, str]
    folder: Path
    threads: int
    size: Size
    checkout: str = ""
    say: Callable[[str], None] = lambda text: None
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    #: share of a core that idle contestants used together
    idle: list[float] = field(default_factory=list)
    corpus: str = ""

    def environment(self, cache: str, threads: int) -> dict[str, str]:
        """Variables of a process; compiled code is kept apart, so that each compiles its own."""
        own = {
            "PYTHONPATH": str(TESTS),
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            # the compiler's command line suffers no spaces
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "compiled" / re.sub(r"\W+", "-", cache)),
        }
        return os.environ | own

    def command(self, task: Task) -> list[str]:
        if task.peer not in self.pythons:
            raise WorkerError(self.absent.get(task.peer, "not installed"))
        return [str(self.pythons[task.peer]), "-m", "peers.speed.worker", task.text()]

    def worker(self, task: Task, cache: str) -> Worker:
        """A contestant that is ready; WorkerError if it is not to be had."""
        command, environment = self.command(task), self.environment(cache, task.threads)
        worker = Worker(command, timeout=PATIENCE, env=environment, cwd=self.folder)
        try:
            worker.wait()
        except BaseException:
            worker.close()
            raise
        self._met(task.peer, worker.ready)
        return worker

    def said(self, task: Task, cache: str) -> tuple[list[dict[str, Any]], str]:
        """JSON lines of a process that ends by itself, and how it ended if not well."""
        done = subprocess.run(
            self.command(task),
            env=self.environment(cache, task.threads),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        for line in lines[:1]:
            self._met(task.peer, line)
        ended = reason(done.stderr) or f"exit code {done.returncode}"
        return lines, ended if done.returncode else ""

    def one(self, task: Task, cache: str) -> dict[str, Any]:
        """The one JSON line of a process; WorkerError if there is none."""
        lines, ended = self.said(task, cache)
        if ended or not lines:
            raise WorkerError(ended or "said nothing")
        return lines[0]

    def _met(self, peer: str, ready: dict[str, Any]) -> None:
        """Note the versions; contestants on different builds of torch are no comparison."""
        self.versions[peer] = {key: ready[key] for key in ("torch", "library")}
        builds = {v["torch"] for v in self.versions.values()}
        if len(builds) > 1:
            raise SystemExit(f"peers.speed: torch differs between environments: {self.versions}")


def busy(pids: list[int], seconds: float = 1.0) -> float:
    """Share of one core that processes use; -1 where the system does not say."""

    def used() -> float:
        total = 0
        for pid in pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    try:
        before = used()
        time.sleep(seconds)
        return (used() - before) / seconds
    except (OSError, ValueError):
        return -1.0
