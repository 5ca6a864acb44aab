"""Training steps of schemes, eager and compiled, in turn with the yardstick.

A scheme runs `posbench train`'s own steps on real batches. Each stays alive over all rounds, so
the model's states of all schemes lie in memory together.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch

from posbench import devices, flops, jobs, registry, threads
from posbench import model as models
from posbench.bench import asked as asking
from posbench.bench.alternate import alternate
from posbench.bench.asked import Asked
from posbench.bench.machine import Clock, MatrixProduct, as_in_a_run, repetitions, synchronise
from posbench.bench.result import COMPILED, EAGER, SECONDS, Measurement
from posbench.data.dataset import Dataset
from posbench.errors import PosbenchError
from posbench.settings import RunConfig
from posbench.step import Batch, Stepper

#: what step times are compared with: attention without positions
REFERENCE = "none"
YARDSTICK = "train/matmul"
#: code that torch may compile for one function: every scheme here shares the stepper's
VARIANTS = 1024

#: what is told each item of work, and each thing that could not be measured
Report = Callable[[str], None]
Note = Callable[[str], None]


class Steps:
    """A scheme in one mode: its first step and then samples of several.

    `first` are the seconds of the first step, compiling included.
    """

    def __init__(self, stepper: Stepper, data: Dataset, clock: Clock = time.perf_counter):
        self.stepper, self.clock = stepper, clock
        self.batches = self._forever(data)
        kept = _missed()
        self.first = self._take(1)
        #: whether something was compiled that the cache on disk does not hold
        self.cold = _missed() > kept
        self.count = repetitions(self._take(1))

    def _forever(self, data: Dataset) -> Iterator[tuple[Batch, int]]:
        """Batches of a run with the numbers of their steps, from its start again at its end."""
        while True:
            for step, batch in enumerate(self.stepper.batches(data, 0)):
                yield batch, step

    def _take(self, count: int) -> float:
        """Mean seconds of a step, over `count` of them."""
        synchronise(self.stepper.device)
        began = self.clock()
        for _ in range(count):
            self.stepper(*next(self.batches))
        synchronise(self.stepper.device)
        return (self.clock() - began) / count

    def __call__(self) -> float:
        return self._take(self.count)


def _missed() -> int:
    """Graphs that torch compiled in this process because its cache did not hold them."""
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["fxgraph_cache_miss"])


def schemes(asked: Asked) -> list[str]:
    """The reference, then what was asked for: all schemes where nothing was."""
    return list(dict.fromkeys([REFERENCE, *(asked.schemes or registry.names("posenc"))]))


def measure(
    ready: dict[str, jobs.Prepared],
    rounds: int,
    note: Note,
    report: Report = lambda item: None,
    clock: Clock = time.perf_counter,
) -> list[Measurement]:
    """Samples of every scheme and of the yardstick; what could not be measured is a note."""
    config, data = ready[REFERENCE].config, ready[REFERENCE].data
    device = devices.pick(config.train.device, "train.device")
    dtype = torch.bfloat16 if config.train.precision == "bf16" else torch.float32
    started: dict[str, Steps] = {}

    def failed(name: str, error: Exception) -> None:
        started.pop(name, None)
        note(f"{name}: {reason(error)}")

    with (
        as_in_a_run(threads.for_run(config, data.tokenizer.vocab_size, device.type)),
        torch._dynamo.config.patch(recompile_limit=VARIANTS, accumulated_recompile_limit=VARIANTS),
    ):
        try:
            for scheme, one in ready.items():
                _start(scheme, one, started, note, report, clock)
            product = MatrixProduct(device, dtype, clock)
            subjects: dict[str, Callable[[], float]] = {YARDSTICK: product, **started}
            found = alternate(
                subjects,
                rounds,
                failed,
                lambda turn: report(f"round {turn}"),
            )
        finally:
            for steps in started.values():
                steps.stepper.close()
    yardstick = Measurement(YARDSTICK, SECONDS, found.pop(YARDSTICK), facts=product.facts)
    work = _work(config, data.tokenizer.vocab_size)
    measured = [_measurement(name, found[name], started[name], work) for name in found]
    return [yardstick, *measured]


def reason(error: Exception) -> str:
    """One line about what went wrong."""
    lines = str(error).strip().splitlines() or [""]
    return lines[0] if isinstance(error, PosbenchError) else f"{type(error).__name__}: {lines[0]}"


def settings(asked: Asked) -> dict[str, Any]:
    """What two results must share, so that their steps compare."""
    config = asked.for_reference().config(REFERENCE)
    train = config.train
    return {
        **asking.shape(config),
        "train.batch_size": train.batch_size,
        "train.precision": train.precision,
        "train.threads": train.threads,
        "device": str(devices.pick(train.device, "train.device")),
        "optimizer": asdict(config.optimizer),
        "data": asdict(config.data),
        "options of schemes": asked.scheme_options,
    }


def prepare(asked: Asked, note: Note) -> dict[str, jobs.Prepared]:
    """Every scheme that can be built. ConfigError where none that was asked for can be."""
    ready = {REFERENCE: asked.for_reference().prepared(REFERENCE)}
    problems = []
    for scheme in schemes(asked)[1:]:
        try:
            ready[scheme] = asked.prepared(scheme)
        except PosbenchError as error:
            problems.append(error)
            note(f"train/{scheme}: {reason(error)}")
    if problems and len(ready) == 1:
        raise problems[0]
    return ready


def _start(
    scheme: str,
    one: jobs.Prepared,
    started: dict[str, Steps],
    note: Note,
    report: Report,
    clock: Clock,
) -> None:
    """Add a scheme's eager steps and, where the settings ask for them, its compiled ones."""
    for mode in (EAGER, COMPILED):
        if mode == COMPILED and one.config.train.compile == "false":
            continue
        name = f"train/{scheme}/{mode}"
        report(name.removeprefix("train/"))
        config = one.config
        if mode == EAGER:
            config = replace(config, train=replace(config.train, compile="false"))
        try:
            stepper = Stepper(config, models.build(config, one.data.tokenizer.vocab_size))
            if mode == COMPILED and not stepper.compiled:
                if stepper.not_compiled:
                    note(f"{name}: {stepper.not_compiled}")
                continue
            steps = Steps(stepper, one.data, clock)
        except Exception as error:
            note(f"{name}: {reason(error)}")
            continue
        if mode == COMPILED and not stepper.compiled:
            note(f"{name}: {stepper.not_compiled}")
        else:
            started[name] = steps


def _work(config: RunConfig, vocabulary: int) -> dict[str, Any]:
    """Work of one step, and steps of the run."""
    train = config.train
    done = flops.training(config.model, vocabulary, train.seq_len, train.batch_size)
    tokens = train.batch_size * train.seq_len
    return {"tokens": tokens, "operations": done, "steps": train.steps}


def _measurement(
    name: str, samples: list[float], steps: Steps, work: dict[str, Any]
) -> Measurement:
    """Samples with what the table says about them."""
    mode = name.rpartition("/")[2]
    one = Measurement(name, SECONDS, samples, f"train/{REFERENCE}/{mode}", YARDSTICK)
    one.facts = work | {"first": steps.first, "steps_per_sample": steps.count}
    if mode == COMPILED:
        one.facts |= {"compiling": max(0.0, steps.first - one.median), "cold": steps.cold}
    return one
