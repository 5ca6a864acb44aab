"""Forward passes by test length, as an evaluation takes them, in turn with the yardstick.

A pass reads one window of random tokens and scores its last 32, on weights that were never
trained. `prefix` is the pass of that protocol: every length read off one pass at the longest.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from posbench import devices
from posbench import model as models
from posbench.bench import asked as asking
from posbench.bench import memory
from posbench.bench.alternate import alternate
from posbench.bench.asked import Asked
from posbench.bench.machine import Clock, MatrixProduct, as_in_a_run, repetitions, synchronise
from posbench.bench.result import SECONDS, Measurement
from posbench.bench.training import Note, Report, reason
from posbench.data.windows import Window
from posbench.errors import ConfigError, PosbenchError
from posbench.evaluate import score
from posbench.model import Decoder
from posbench.settings import RunConfig

#: what pass times are compared with
REFERENCE = "rope"
YARDSTICK = "eval/matmul"
#: size of the vocabulary, and scored tokens of a window
VOCABULARY, SCORED = 1024, 32


def schemes(asked: Asked) -> list[str]:
    """The reference, then what was asked for."""
    return list(dict.fromkeys([REFERENCE, *(asked.schemes or ())]))


def model(config: RunConfig, device: torch.device) -> Decoder:
    """The model of a run before its first step."""
    return models.build(config, VOCABULARY).to(device).eval()


def window(length: int, ends: list[int] | None = None) -> list[Window]:
    """Readings of one window of random tokens: 32 scored before each of `ends` (its own end)."""
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=length + 1)
    return [
        Window("random", 0, end, tokens[:-1], tokens[end - SCORED + 1 : end + 1], scored)
        for end in ends or [length]
        for scored in [np.arange(end - SCORED, end)]
    ]


@dataclass
class Pass:
    """One forward pass over a window; several readings make it one of `prefix`."""

    model: Decoder
    readings: list[Window]
    limit: float
    clock: Clock = time.perf_counter
    #: passes of a sample
    count: int = 1

    @property
    def device(self) -> torch.device:
        return self.model.embedding.weight.device

    def __call__(self) -> float:
        """Mean seconds of a pass."""
        synchronise(self.device)
        began = self.clock()
        for _ in range(self.count):
            self._once()
        synchronise(self.device)
        return (self.clock() - began) / self.count

    def _once(self) -> None:
        how = np.ones(VOCABULARY), len(self.readings[0].inputs), self.limit
        if len(self.readings) > 1:
            readings = [[reading] for reading in self.readings]
            score.score_together(self.model, self.model.posenc, readings, *how)
        else:
            score.score(self.model, self.model.posenc, self.readings, *how)


@dataclass
class Sweep:
    """The passes of one scheme; one that takes more than `limit` seconds is taken once."""

    scheme: str
    model: Decoder
    #: seconds and bytes of a pass
    limit: float
    memory: float
    clock: Clock
    passes: dict[str, Pass] = field(default_factory=dict)
    once: dict[str, float] = field(default_factory=dict)
    #: what could be taken
    lengths: list[int] = field(default_factory=list)

    def warm(self, lengths: list[int], note: Note, report: Report) -> None:
        """Take every pass, shortest first, and stop where one took too long or was refused."""
        name = f"eval/{self.scheme}"
        for length in lengths:
            report(f"{self.scheme} {length}")
            why = self._take(f"{name}/{length}", window(length), length < lengths[-1])
            if why:
                note(f"{name}/{length}: {why}")
            if f"{name}/{length}" in {**self.passes, **self.once}:
                self.lengths.append(length)
            if why:
                return
        if len(lengths) > 1 and not self.model.sampler.random_test:
            report(f"{self.scheme} prefix")
            why = self._take(f"{name}/prefix", window(lengths[-1], lengths), False)
            if why:
                note(f"{name}/prefix: {why}")

    def _take(self, name: str, readings: list[Window], more: bool) -> str:
        """Take a pass and keep it for the rounds; why no longer one is to be taken, else empty."""
        length = len(readings[0].inputs)
        if not self.model.has_positions((length,)):
            return f"no positions for {length} tokens; longer lengths were left out"
        one = Pass(self.model, readings, self.memory, self.clock)
        try:
            seconds = one()
        except score.OutOfMemory:
            return "needs more memory than is allowed; longer lengths were left out"
        except Exception as error:
            return reason(error)
        if seconds <= self.limit:
            one.count = repetitions(seconds)
            self.passes[name] = one
            return ""
        self.once[name] = seconds
        return f"took {seconds:.3g} s, so longer lengths were left out (--limit)" if more else ""


def prepare(asked: Asked, note: Note) -> dict[str, RunConfig]:
    """Settings of every scheme that can be built. ConfigError where none that was asked for can."""
    ready: dict[str, RunConfig] = {}
    problems = []
    for scheme in schemes(asked):
        try:
            config = asked.for_scheme(scheme).config(scheme)
            if len(config.shape) > 1:
                raise ConfigError(
                    f"data={config.data.name}: bench eval takes texts; leave data out"
                )
            models.build_posenc(config)
        except PosbenchError as error:
            problems.append(error)
            note(f"eval/{scheme}: {reason(error)}")
        else:
            ready[scheme] = config
    if problems and not ready.keys() & (asked.schemes or ()):
        raise problems[0]
    return ready


def measure(
    asked: Asked,
    ready: dict[str, RunConfig],
    rounds: int,
    limit: float,
    note: Note,
    report: Report = lambda item: None,
    clock: Clock = time.perf_counter,
) -> list[Measurement]:
    """Samples of every scheme and length; a pass of more than `limit` seconds is taken once."""
    device = devices.pick(asked.eval.device, "eval.device")
    bytes_allowed = score.memory_limit(asked.eval.memory_limit, device)
    sweeps: list[Sweep] = []
    with as_in_a_run(asked.eval.threads):
        product = MatrixProduct(device, torch.float32, clock)
        for scheme, config in ready.items():
            sweeps.append(Sweep(scheme, model(config, device), limit, bytes_allowed, clock))
            sweeps[-1].warm(asked.eval.lengths or [], note, report)
        subjects: dict[str, Callable[[], float]] = {YARDSTICK: product}
        for sweep in sweeps:
            subjects |= sweep.passes
        found = alternate(
            subjects,
            rounds,
            lambda name, error: note(f"{name}: {reason(error)}"),
            lambda turn: report(f"round {turn}"),
        )
    measured = [Measurement(YARDSTICK, SECONDS, found[YARDSTICK], facts=product.facts)]
    for sweep in sweeps:
        times = {k: found[k] for k in sweep.passes if k in found}
        measured += _measurements(sweep, times | {k: [s] for k, s in sweep.once.items()}, asked)
    for sweep in sweeps:
        measured += _memory(sweep, asked, note, report)
    return measured


def settings(asked: Asked) -> dict[str, Any]:
    """What two results must share, so that their passes compare."""
    return {
        **asking.shape(asked.for_reference().config(REFERENCE)),
        "eval.threads": asked.eval.threads,
        "device": str(devices.pick(asked.eval.device, "eval.device")),
        "vocabulary": VOCABULARY,
        "options of schemes": asked.scheme_options,
    }


def _measurements(sweep: Sweep, times: dict[str, list[float]], asked: Asked) -> list[Measurement]:
    """The passes of a scheme, and their sum where none is missing."""
    prefix, whole = f"eval/{sweep.scheme}/prefix", f"eval/{sweep.scheme}/sweep"
    lengths = asked.eval.lengths or []
    by_length = [times[k] for n in lengths if (k := f"eval/{sweep.scheme}/{n}") in times]
    if len(by_length) == len(lengths) > 1:
        full = max(map(len, by_length))
        padded = [t if len(t) == full else t * full for t in by_length]
        times[whole] = [math.fsum(turn) for turn in zip(*padded, strict=True)]
    found = []
    for name, samples in times.items():
        reference = f"eval/{REFERENCE}/{name.rpartition('/')[2]}"
        if name == prefix:
            reference = f"eval/{sweep.scheme}/{lengths[-1]}"
        found.append(Measurement(name, SECONDS, samples, reference, YARDSTICK))
    return found


def _memory(sweep: Sweep, asked: Asked, note: Note, report: Report) -> list[Measurement]:
    """Peak memory of a pass at every length that was timed, each in a process of its own."""
    found = []
    for length in sweep.lengths:
        name = f"memory/{sweep.scheme}/{length}"
        report(name)
        words = asked.for_scheme(sweep.scheme).overrides
        try:
            taken = memory.ask(words, sweep.scheme, length, asked.eval)
        except memory.MemoryUnknown as error:
            note(f"{name}: {error}")
            continue
        found.append(Measurement(name, "bytes", [taken], f"memory/{REFERENCE}/{length}"))
    return found
