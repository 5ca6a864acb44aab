"""A contestant's process: `python -m peers.speed.worker TASK`, run by its environment's python.

Steps and sweeps are served as `peers.speed.workers` says, so that nothing of posbench need be
installed. Other work prints JSON, one object a line, and ends.
"""

import importlib
import importlib.metadata
import json
import os
import sys
from typing import Any

import torch

from peers.speed import loop
from peers.speed.task import Task
from peers.speed.workers import serve


def bounded(limit: int) -> None:
    """Refuse this process more private memory than that, in bytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main(text: str) -> None:
    task = Task.read(text)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    if task.limit:
        bounded(task.limit)
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    library: Any = importlib.import_module(f"peers.speed.{task.peer}")
    about = {"torch": torch.__version__, "library": library.version()}
    if task.work in ("steps", "sweep"):
        steps: loop.Steps
        if task.work == "steps":
            steps = library.start(task)
        else:
            steps = loop.sweep(task, library.scorer(task))
        os.dup2(answers.fileno(), 1)
        serve(steps.step, steps.tokens, **about, **steps.facts)
        return
    if task.work == "survive":
        found = loop.survive(task, library.scorer(task))
    elif hasattr(library, task.work):
        found = iter([getattr(library, task.work)(task)])
    else:
        found = iter([loop.whole(library.start(task), task.steps)])
    for one in found:
        print(json.dumps({**about, **one}), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
