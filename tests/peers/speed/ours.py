"""posbench through its own parts; the one file here that imports it."""

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import posbench
from peers.speed import loop
from peers.speed.task import SCORED, Task
from posbench import devices, jobs, launch, train
from posbench import model as models
from posbench.data import dataset, windows
from posbench.settings import RunConfig
from posbench.step import Stepper


def version() -> str:
    return posbench.__version__


def settings(task: Task) -> RunConfig:
    """posbench's defaults on the task's shape."""
    s = task.shape
    overrides = {
        "posenc": task.scheme,
        "model.n_layers": s.layers,
        "model.d_model": s.width,
        "model.n_heads": s.heads,
        "model.hidden": s.hidden,
        "train.seq_len": s.length,
        "train.batch_size": s.batch,
        "train.steps": max(1, task.steps),
        "train.compile": task.compile,
        "train.device": "cpu",
        "train.threads": task.threads,
    }
    [(config, preset)] = launch.train_configs([f"{k}={v}" for k, v in overrides.items()], False)
    return jobs.run_config(config, preset)


def start(task: Task) -> loop.Steps:
    """Steps of `train`, on the batches that all contestants read."""
    config = settings(task)
    devices.make_fast()
    model = models.build(config, task.shape.vocabulary)
    stepper, data, count = Stepper(config, model), loop.batches(task), itertools.count()

    def step() -> Tensor:
        number = next(count) % config.train.steps
        batch = next(data)
        size, length = config.train.batch_size, config.train.seq_len
        pos = model.sampler.training(size, length, config.seed, number)
        return stepper((batch[:, :-1], batch[:, 1:], pos), number)

    facts = {"compiled": stepper.compiled, **loop.sizes(model, task)}
    return loop.Steps(step, task.shape.tokens, facts)


def scorer(task: Task) -> Callable[[Tensor], Tensor]:
    """As evaluation does it for the same targets: the last layer and the logits of those only."""
    devices.make_fast()
    model = models.build(settings(task), task.shape.vocabulary).eval()

    def score(window: Tensor) -> Tensor:
        length = len(window) - 1
        pos = model.sampler.testing(length)
        scored = torch.arange(length - SCORED, length)
        hidden = model.hidden(window[None, :-1], model.posenc, pos, scored)
        return loop.last(model.logits(hidden), window)

    return score


def whole(task: Task) -> dict[str, Any]:
    """A run with its log, validation and checkpoints, on its own batches."""
    config = settings(task)
    data = dataset.load(config.data)
    began = time.perf_counter()
    with contextlib.redirect_stdout(None):
        record = train.run(config, Path(task.out), data, argv=["posbench", "train"])
    found = {key: record.manifest.get(key) for key in ("compiled", "first_step_seconds")}
    return {
        "seconds": time.perf_counter() - began,
        "loss": record.manifest["train_loss"],
        **found,
    }


def export(task: Task) -> dict[str, Any]:
    """Write what all contestants read: `task.steps` batches, or a text for the sweep."""
    config = settings(task)
    data, s = dataset.load(config.data), task.shape
    if task.lengths:
        window = next(windows.target_windows(data, max(task.lengths), docs=1, blocks=1))
        np.save(task.out, np.append(window.inputs, window.labels[-1:]))
    else:
        pairs = [windows.training_batch(data, s.length, s.batch, 0, n) for n in range(task.steps)]
        np.save(task.out, np.stack([np.concatenate([x, y[:, -1:]], 1) for x, y in pairs]))
    return {"corpus": config.data.name, "vocabulary": data.tokenizer.vocab_size}
