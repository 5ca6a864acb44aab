"""How many threads a run trains fastest with, and how many runs side by side: measured once.

A measurement takes some seconds and is kept in the cache for this machine, torch and shape of
model, so that runs that are repeated compute with the same threads, and so give the same numbers.
"""

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from posbench import flops, settings
from posbench.data import cache
from posbench.settings import RunConfig

#: operations of a run from which on a measurement of seconds pays
WORTH_MEASURING = 5e12
#: steps that are timed, after one that is not
STEPS = 3


@dataclass(frozen=True)
class Choice:
    """Runs side by side and the threads of each; tokens per second of all candidates together."""

    jobs: int
    threads: int
    rates: dict[str, float]


def cores() -> int:
    """Cores that this process may use."""
    available = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available else os.cpu_count() or 1


def halvings(n: int) -> list[int]:
    """n, n / 2, n / 4, ..., 1."""
    return [n] + (halvings(n // 2) if n > 1 else [])


def for_run(config: RunConfig, vocab_size: int) -> int | None:
    """Threads of a run that is trained alone: as given, or for `auto` the fastest number.

    None, torch's own choice, for a run too short for measuring to pay.
    """
    given = config.train.threads
    if not isinstance(given, str):
        return given
    train = config.train
    sequences = train.steps * train.batch_size
    size = flops.training(config.model, vocab_size, train.seq_len, sequences)
    return alone(config, vocab_size).threads if size >= WORTH_MEASURING else None


def alone(config: RunConfig, vocab_size: int, rate: Callable[..., float] | None = None) -> Choice:
    """The fastest number of threads for one run, of all cores, half of them, and so on."""
    measure = rate or tokens_per_second
    return _remembered(
        "alone", config, [(1, n) for n in halvings(cores())],
        lambda jobs, threads: measure(config, vocab_size, threads),
    )  # fmt: skip


def side_by_side(
    config: RunConfig, vocab_size: int, rate: Callable[..., float] | None = None
) -> Choice:
    """The fastest way to share the cores among runs: one with all, two with half each, ..."""
    measure = rate or _together
    candidates = [(cores() // n, n) for n in halvings(cores())]
    return _remembered(
        "together", config, candidates,
        lambda jobs, threads: measure(config, vocab_size, threads, jobs),
    )  # fmt: skip


def _remembered(
    kind: str,
    config: RunConfig,
    candidates: list[tuple[int, int]],
    measure: Callable[[int, int], float],
) -> Choice:
    """The choice that was made before for this machine and shape, or a new one."""
    import torch

    facts = {
        "kind": kind,
        "machine": [platform.machine(), _processor(), cores(), torch.__version__],
        "model": settings.changed(config.model),
        "posenc": config.posenc.name,
        "batch": [config.train.batch_size, config.train.seq_len, config.train.precision],
    }
    name = "threads-" + cache.key(json.dumps(facts, sort_keys=True))
    stored = cache.read(name)
    if stored is not None:
        return Choice(**json.loads(stored))
    if len(candidates) == 1:
        return Choice(*candidates[0], {})
    rates = {c: measure(*c) for c in candidates}
    best = max(rates, key=lambda c: rates[c])
    choice = Choice(*best, {f"{j} x {t}": round(r, 1) for (j, t), r in rates.items()})
    cache.write(name, json.dumps(vars(choice)).encode())
    return choice


def _processor() -> str:
    """Name of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()


def tokens_per_second(config: RunConfig, vocab_size: int, threads: int) -> float:
    """Rate of eager training steps on random tokens, with a number of threads."""
    import torch

    from posbench import model as models
    from posbench.step import Stepper

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        trial = replace(config, train=replace(config.train, compile="false", device="cpu"))
        stepper = Stepper(trial, models.build(trial, vocab_size))
        size = trial.train.batch_size, trial.train.seq_len
        tokens = torch.randint(vocab_size, size)
        batch: Any = tokens, tokens, stepper.model.sampler.training(*size, 0, 0)
        stepper(batch, 0)
        best = min(_seconds(lambda: stepper(batch, 0)) for _ in range(STEPS))
    finally:
        torch.set_num_threads(before)
    return tokens.numel() / best


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _together(config: RunConfig, vocab_size: int, threads: int, jobs: int) -> float:
    """Summed rate of several runs at once, each in a process of its own."""
    from joblib import Parallel, delayed

    with Parallel(n_jobs=jobs) as pool:
        work = [delayed(tokens_per_second)(config, vocab_size, threads) for _ in range(jobs)]
        pool(work)  # the processes import what they need
        rates: list[float] = pool(work)
    return sum(rates)
