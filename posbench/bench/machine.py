"""The machine under measurement: its facts, its threads, and the yardstick of its speed."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from posbench import devices, machine, runs
from posbench.linear import linear

#: rows of the square matrices of the yardstick, and products of a sample, by kind of device
SIZES = {"cpu": (2048, 3), "cuda": (8192, 20)}

#: seconds that a sample takes at least, and repetitions that it takes at most
SAMPLE, MOST = 0.3, 50

Clock = Callable[[], float]


def facts(device: torch.device) -> dict[str, Any]:
    """What a time depends on besides the settings."""
    cuda = device.type == "cuda"
    return {
        "cpu": machine.processor(),
        "cores": machine.cores(),
        **({"gpu": torch.cuda.get_device_name(device)} if cuda else {}),
        **runs.environment(),
        **runs.code_version(),
        "time": runs.now(),
    }


@contextmanager
def as_in_a_run(count: int | None) -> Iterator[None]:
    """Threads and settings of this process as in a run; the former number of threads afterwards."""
    before = torch.get_num_threads()
    devices.make_fast()
    devices.use_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def synchronise(device: torch.device) -> None:
    """Wait until a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def repetitions(seconds: float) -> int:
    """How often to do within a sample what takes this long once."""
    return min(MOST, max(1, math.ceil(SAMPLE / max(seconds, 1e-9))))


class MatrixProduct:
    """The yardstick: seconds of one product of two large square matrices, as in layers."""

    def __init__(self, device: torch.device, dtype: torch.dtype, clock: Clock = time.perf_counter):
        self.device, self.clock = device, clock
        self.size, self.products = SIZES.get(device.type, SIZES["cpu"])
        generator = torch.Generator().manual_seed(0)
        shape = self.size, self.size
        self.a, self.b = (torch.rand(shape, generator=generator).to(device, dtype) for _ in "ab")
        self.threads = torch.get_num_threads()
        self()

    @property
    def operations(self) -> int:
        """Floating-point operations of a product."""
        return 2 * self.size**3

    @property
    def facts(self) -> dict[str, Any]:
        """What the table says about it."""
        dtype = str(self.a.dtype).removeprefix("torch.")
        return {
            "operations": self.operations,
            "size": self.size,
            "dtype": dtype,
            "threads": self.threads,
        }

    def __call__(self) -> float:
        synchronise(self.device)
        began = self.clock()
        for _ in range(self.products):
            linear(self.a, self.b)
        synchronise(self.device)
        return (self.clock() - began) / self.products
