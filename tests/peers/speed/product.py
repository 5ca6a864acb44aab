"""The rate of a large float32 matrix product, by the quicker of torch's libraries for it: what a
training step is compared with."""

import torch

from peers.speed.loop import Steps
from peers.speed.task import Task
from posbench.linear import linear

SIZE = 2048


def version() -> str:
    return torch.__version__


def start(task: Task) -> Steps:
    """A step is one product."""
    a, b = torch.randn(2, SIZE, SIZE)
    return Steps(lambda: linear(a, b), 1, {"operations": 2 * SIZE**3})
