"""The rate of a large float32 matrix product: what a training step is compared with."""

import torch

from peers.speed.loop import Steps
from peers.speed.task import Task

SIZE = 2048


def version() -> str:
    return torch.__version__


def start(task: Task) -> Steps:
    """A step is one product."""
    a, b = torch.randn(2, SIZE, SIZE)
    out = torch.empty(SIZE, SIZE)
    return Steps(lambda: torch.mm(a, b, out=out), 1, {"operations": 2 * SIZE**3})
