"""How many threads a run trains fastest with, and how many runs side by side: measured once.

A measurement takes some seconds, in processes of its own, and is kept in the cache for this
machine, torch and shape of run, so that runs that are repeated compute with the same threads, and
so give the same numbers. What is timed are eager steps; compiled ones are taken to be alike.
"""

import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from posbench import flops, settings
from posbench.data import cache
from posbench.machine import cores, processor
from posbench.settings import RunConfig

#: operations of a run from which on a measurement of seconds pays
WORTH_MEASURING = 5e12
#: steps that are timed, after one that is not
STEPS = 4

#: tokens per second of all runs together: settings, size of the vocabulary, runs, threads of each
Rate = Callable[[RunConfig, int, int, int], float]


@dataclass(frozen=True)
class Choice:
    """Runs side by side and the threads of each; tokens per second of all candidates together.

    No rates: nothing was measured, for want of a choice or because it failed.
    """

    jobs: int
    threads: int
    rates: dict[str, float]


def halvings(n: int) -> list[int]:
    """n, n / 2, n / 4, ..., 1."""
    return [n] + (halvings(n // 2) if n > 1 else [])


def for_run(config: RunConfig, vocab_size: int, device: str) -> int | None:
    """Threads of a run that is trained alone: as given, or for `auto` the fastest number.

    None, torch's own choice, where a measurement does not pay: for a short run, off the CPU, and
    where several processes share a run.
    """
    given, train = config.train.threads, config.train
    if not isinstance(given, str):
        return given
    sequences = train.steps * train.batch_size
    size = flops.training(config.model, vocab_size, train.seq_len, sequences)
    if device != "cpu" or size < WORTH_MEASURING or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return None
    return alone(config, vocab_size).threads


def alone(config: RunConfig, vocab_size: int, rate: Rate | None = None) -> Choice:
    """The fastest number of threads for one run, of all cores, half of them, and so on."""
    return _chosen([(1, n) for n in halvings(cores())], config, vocab_size, rate)


def side_by_side(config: RunConfig, vocab_size: int, runs: int, rate: Rate | None = None) -> Choice:
    """The fastest way to share the cores among runs: one with all, two with half each, ...

    No more at a time than there are `runs`.
    """
    candidates = [(cores() // n, n) for n in halvings(cores()) if cores() // n <= runs]
    return _chosen(candidates, config, vocab_size, rate)


def _chosen(
    candidates: list[tuple[int, int]], config: RunConfig, vocab_size: int, rate: Rate | None
) -> Choice:
    """The choice that was made before for this machine and shape, or a new one."""
    import torch

    facts = {
        "candidates": candidates,
        "machine": [platform.machine(), processor(), cores(), torch.__version__],
        "parts": [settings.changed(c) for c in (config.model, config.posenc, config.optimizer)],
        "batch": [config.train.batch_size, config.train.seq_len, config.train.precision],
        "vocabulary": vocab_size,
    }
    name = "threads-" + cache.key(json.dumps(facts, sort_keys=True, default=str))
    stored = cache.read(name)
    if stored is not None:
        return Choice(**json.loads(stored))
    unmeasured = Choice(*candidates[0], {})
    if len(candidates) == 1:
        return unmeasured
    try:
        rates = {c: (rate or tokens_per_second)(config, vocab_size, *c) for c in candidates}
    except Exception:  # whatever keeps the measurement from working, the run itself goes on
        return unmeasured
    best = max(rates, key=lambda c: rates[c])
    choice = Choice(*best, {f"{j} x {t}": round(r, 1) for (j, t), r in rates.items()})
    cache.write(name, json.dumps(vars(choice)).encode())
    return choice


def tokens_per_second(config: RunConfig, vocab_size: int, jobs: int, threads: int) -> float:
    """Rate of eager training steps on random tokens, of `jobs` processes that start together."""
    context = multiprocessing.get_context("spawn")
    line = context.Barrier(jobs)
    with ProcessPoolExecutor(jobs, context, _line_up, (line,)) as pool:
        work = [pool.submit(_rate, config, vocab_size, threads) for _ in range(jobs)]
        return sum(future.result() for future in work)


#: where the processes of a measurement wait for each other
_line: Any = None


def _line_up(line: Any) -> None:
    global _line
    _line = line


def _rate(config: RunConfig, vocab_size: int, threads: int) -> float:
    """Tokens per second of one process, all of whose steps count from the common start."""
    import torch

    from posbench import devices
    from posbench import model as models
    from posbench.step import Stepper

    devices.make_fast()
    devices.use_threads(threads)
    trial = replace(config, train=replace(config.train, compile="false", device="cpu"))
    stepper = Stepper(trial, models.build(trial, vocab_size))
    size = trial.train.batch_size, trial.train.seq_len
    tokens = torch.randint(vocab_size, size)
    batch: Any = tokens, tokens, stepper.model.training_positions(size[0], config.shape, 0, 0)
    stepper(batch, 0)
    _line.wait(timeout=120)
    began = time.perf_counter()
    for _ in range(STEPS):
        stepper(batch, 0)
    return STEPS * tokens.numel() / (time.perf_counter() - began)
