"""A contestant's process: `python -m peers.speed.worker TASK`, run by its environment's python.

Steps and sweeps are served as `posbench.bench.alternate` says; its file is loaded by its path, so
that nothing of posbench need be installed. Other work prints JSON, one object a line, and ends.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from peers.speed import loop
from peers.speed.task import Task

PROTOCOL = Path(__file__).parents[3] / "posbench" / "bench" / "alternate.py"


def serve() -> Callable[..., None]:
    spec = importlib.util.spec_from_file_location("alternate", PROTOCOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.serve


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
        serve()(steps.step, steps.tokens, **about, **steps.facts)
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
