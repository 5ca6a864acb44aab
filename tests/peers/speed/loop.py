"""What every library does in the same way: training steps, sweeps over lengths. Needs torch."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from peers.speed.task import SCORED, Task

BETAS = 0.9, 0.95
CLIP = 1.0


@dataclass
class Steps:
    """A step of work, and what is to be known about it."""

    step: Callable[[], Any]
    tokens: int
    facts: dict[str, Any]


def batches(task: Task) -> Iterator[Tensor]:
    """Batches [B, L + 1], over and over."""
    return itertools.cycle(torch.from_numpy(np.load(task.data)))


def rate(task: Task) -> float:
    """Learning rate: posbench's default for the width."""
    return 0.6 / task.shape.width


def adamw(model: nn.Module, task: Task) -> torch.optim.Optimizer:
    """AdamW as torch makes it when asked for nothing else."""
    return torch.optim.AdamW(model.parameters(), lr=rate(task), betas=BETAS)


def sizes(model: nn.Module, task: Task) -> dict[str, int]:
    """Parameters, and the weights by which a token is multiplied (output embedding included)."""
    linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    weights = sum(w.numel() for w in linear)
    s = task.shape
    if not any(len(w) == s.vocabulary for w in linear):  # tied, with no layer of its own
        weights += s.vocabulary * s.width
    return {"parameters": sum(p.numel() for p in model.parameters()), "weights": weights}


def training(
    task: Task,
    model: nn.Module,
    loss: Callable[[nn.Module, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
) -> Steps:
    """Steps of a plain loop; `loss` is that of a model on a batch [B, L + 1]."""
    model.train()
    called: Any = torch.compile(model) if task.compile == "true" else model
    data = batches(task)

    def step() -> Tensor:
        value = loss(called, next(data))
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return value.detach()

    facts = {"compiled": task.compile == "true", **sizes(model, task)}
    return Steps(step, task.shape.tokens, facts)


def sweep(task: Task, score: Callable[[Tensor], Tensor]) -> Steps:
    """One window at every length, all with the same end; `score` gives the loss of a window.

    A window of T tokens is handed over with the token that follows it, [T + 1].
    """
    text = torch.from_numpy(np.load(task.data))

    @torch.inference_mode()
    def step() -> None:
        spent = []
        for length in task.lengths:
            began = time.perf_counter()
            value = float(score(text[-length - 1 :]))
            spent.append(time.perf_counter() - began)
            if not np.isfinite(value):
                raise ValueError(f"loss at length {length} is {value}")
        with open(task.out, "a", encoding="utf-8") as log:
            log.write(json.dumps(spent) + "\n")

    return Steps(step, sum(task.lengths), {})


def survive(task: Task, score: Callable[[Tensor], Tensor]) -> Iterator[dict[str, Any]]:
    """Seconds at one length after the other until memory ends, and once more at the longest.

    The second time counts: what a model keeps for a length is there by then.
    """
    text = torch.from_numpy(np.load(task.data))

    @torch.inference_mode()
    def timed(length: int) -> dict[str, Any]:
        began = time.perf_counter()
        float(score(text[-length - 1 :]))
        return {"length": length, "seconds": time.perf_counter() - began}

    longest = 0
    for length in task.lengths:
        try:
            yield timed(length)
        except (MemoryError, RuntimeError) as error:
            yield {"stopped": str(error).splitlines()[0] if str(error) else type(error).__name__}
            break
        longest = length
    if longest:
        yield timed(longest)


def whole(steps: Steps, count: int, every: int = 10) -> dict[str, float]:
    """A run of `count` steps that looks at its loss now and then."""
    began, value = time.perf_counter(), float("nan")
    for done in range(1, count + 1):
        loss = steps.step()
        if done % every == 0 or done == count:
            value = float(loss)
    return {"seconds": time.perf_counter() - began, "loss": value}


def last(logits: Tensor, window: Tensor) -> Tensor:
    """Mean loss of the last predictions [1, S, V] of a window [T + 1]."""
    return nn.functional.cross_entropy(logits[0, -SCORED:].float(), window[-SCORED:])
