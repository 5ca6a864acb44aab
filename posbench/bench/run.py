"""A bench from its command line to its result."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from posbench import devices
from posbench.bench import (
    EVAL,
    STARTUP,
    TRAIN,
    asked,
    compare,
    evaluation,
    machine,
    startup,
    training,
)
from posbench.bench.result import Result

#: shows the progress of a part: its title and number of items -> what is told each item's name
Shown = Callable[[str, int], AbstractContextManager[Callable[[str], None]]]


def run(
    words: Sequence[str], rounds: int, limit: float, against: Path | None, shown: Shown
) -> tuple[Result, compare.Comparison | None]:
    """Measure what the words ask for; everything is checked before anything is measured."""
    wanted = asked.read(words)
    known = {
        TRAIN: lambda: training.settings(wanted),
        EVAL: lambda: evaluation.settings(wanted),
        STARTUP: startup.settings,
    }
    settings = {part: known[part]() for part in wanted.parts}
    old = None
    if against is not None:
        old = Result.read(against, "--against")
        compare.check(settings, old, f"--against={against}")
    chosen = wanted.for_reference().config(training.REFERENCE).train.device
    result = Result(machine.facts(devices.pick(chosen, "train.device")), settings)
    note = result.notes.append
    steps = training.prepare(wanted, note) if TRAIN in wanted.parts else {}
    passes = evaluation.prepare(wanted, note) if EVAL in wanted.parts else {}
    measuring = {
        TRAIN: lambda report: training.measure(steps, rounds, note, report),
        EVAL: lambda report: evaluation.measure(wanted, passes, rounds, limit, note, report),
        STARTUP: lambda report: startup.measure(rounds, note, report),
    }
    items = {
        TRAIN: 2 * len(steps) + rounds,
        EVAL: len(passes) * (2 * len(wanted.eval.lengths or []) + 1) + rounds,
        STARTUP: 1 + rounds,
    }
    for part in wanted.parts:
        with shown(f"bench {part}", items[part]) as report:
            result.measurements += measuring[part](report)
    return result, compare.compare(result, old) if old else None
