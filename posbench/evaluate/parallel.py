"""Several runs measured by one command: one after the other, or side by side in processes.

A run that fails leaves the others alone. Processes come from joblib's loky (the extra `launch`);
each has its share of cores and memory, and reads its run from disk.
"""

import contextlib
import importlib
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from posbench import devices, machine, runs
from posbench.errors import ConfigError, PosbenchError
from posbench.evaluate import lengths, score
from posbench.evaluate.plan import Plan, plan
from posbench.settings import EvalConfig, SweepConfig

Report = Callable[[str], None]
#: seconds between two looks at what the processes have done
LOOK = 0.5
#: variables that say how many threads the libraries below torch start with
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """What became of one run: its evaluation folder, or why there is none."""

    folder: Path | None
    message: str = ""


def loky() -> Any:
    """joblib's loky; ConfigError with the command that installs it."""
    try:
        return importlib.import_module("joblib.externals.loky")
    except ImportError:
        raise ConfigError(
            "--jobs needs joblib: pip install 'posbench-harness[launch]', or leave it out"
        ) from None


def share(sweeps: Sequence[SweepConfig], jobs: int) -> list[SweepConfig]:
    """The sweeps for one of `jobs` processes at a time: threads and memory that are not given."""
    threads = max(1, machine.cores() // jobs)
    device = devices.pick(sweeps[0].eval.device, "eval.device")
    memory = score.memory_limit(None, device) / jobs / 2**30

    def own(given: EvalConfig) -> EvalConfig:
        limit = given.memory_limit or memory
        return replace(given, threads=given.threads or threads, memory_limit=limit)

    return [replace(sweep, eval=own(sweep.eval)) for sweep in sweeps]


def one_by_one(plans: Sequence[Plan], report: Report) -> list[Outcome]:
    """Measure runs in this process. The error of a run that is alone is raised."""
    if len(plans) == 1:
        return [Outcome(lengths.evaluate(plans[0], report))]
    return [_outcome(p.run.path, partial(lengths.evaluate, p, report)) for p in plans]


def side_by_side(
    plans: Sequence[Plan], sweeps: Sequence[SweepConfig], jobs: int, report: Report
) -> list[Outcome]:
    """Measure runs in `jobs` processes at a time; `sweeps` are those of `share`.

    Where a process dies (of a lack of memory, for instance), the runs that it takes with it are
    tried again, each in a process of its own. An interrupt ends them all.
    """
    watches = [_Watch(p, report) for p in plans]
    outcomes: dict[int, Outcome] = {}
    _round(range(len(plans)), jobs, plans, sweeps, watches, outcomes)
    for i in range(len(plans)):
        if i not in outcomes:
            _round([i], 1, plans, sweeps, watches, outcomes)
    died = Outcome(None, "its process ended without a word, for lack of memory perhaps")
    return [
        outcomes.get(i) or replace(died, message=f"{p.run.path}: {died.message}")
        for i, p in enumerate(plans)
    ]


def _round(
    chosen: Iterable[int],
    jobs: int,
    plans: Sequence[Plan],
    sweeps: Sequence[SweepConfig],
    watches: Sequence["_Watch"],
    outcomes: dict[int, Outcome],
) -> None:
    """Fill in the outcomes of some plans; those whose process died stay out."""
    backend = loky()
    threads = dict.fromkeys(_THREADS, str(sweeps[0].eval.threads))
    executor = backend.ProcessPoolExecutor(
        max_workers=jobs,
        env=threads,
        # only this process answers to an interrupt: it ends the others
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    left: dict[Any, int] = {}
    try:
        with contextlib.suppress(backend.BrokenProcessPool):
            for i in chosen:
                work = plans[i].run.path, list(sweeps), os.getpid()
                left[executor.submit(_elsewhere, *work)] = i
        while left:
            done, _ = backend.wait(left, timeout=LOOK, return_when=backend.FIRST_COMPLETED)
            for future in done:
                i = left.pop(future)
                if not isinstance(future.exception(), backend.BrokenProcessPool):
                    outcomes[i] = future.result()
                    watches[i].all()
            for i in left.values():
                watches[i].look()
    finally:
        executor.shutdown(wait=True, kill_workers=bool(left))


def _elsewhere(path: Path, sweeps: list[SweepConfig], parent: int) -> Outcome:
    """Measure one run, in a process of its own, which ends when its parent has."""
    machine.end_with(parent)
    devices.make_fast()
    return _outcome(path, lambda: lengths.evaluate(plan(runs.Run.open(path), sweeps)))


def _outcome(path: Path, work: Callable[[], Path]) -> Outcome:
    """What a piece of work gives, or its error in one line."""
    try:
        return Outcome(work())
    except PosbenchError as error:
        return Outcome(None, str(error))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        return Outcome(None, f"{path}: {type(error).__name__}: {error} ({place})")


class _Watch:
    """Tells how far a run is that another process measures: it counts the cells that it keeps."""

    def __init__(self, todo: Plan, report: Report):
        self.file = todo.folder / lengths.CELLS
        self.name = str(todo.run.manifest["preset"])
        self.total = len(todo.keys())
        self.told = 0
        self.report = report

    def look(self) -> None:
        """Report what is new."""
        try:
            self._tell(self.file.read_bytes().count(b"\n"))
        except OSError:  # not begun, or just finished
            return

    def all(self) -> None:
        """Report the rest."""
        self._tell(self.total)

    def _tell(self, done: int) -> None:
        while self.told < min(done, self.total):
            self.told += 1
            self.report(self.name)
