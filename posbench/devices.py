"""The device that a name stands for, and settings of this process that make it fast."""

import contextlib
import ctypes
import os
import platform
from pathlib import Path

import torch

from posbench.errors import ConfigError


def pick(name: str, option: str) -> torch.device:
    """`auto` is CUDA or MPS where there is one, else the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        found = torch.device(name)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError):
        raise ConfigError(f"{option}={name}: not available here; use auto or cpu") from None
    return found


def make_fast(threads: int | None = None) -> None:
    """Settings of this process for work on the CPU; before the first parallel computation.

    `threads` of torch, None = as they are. Numbers below 1e-38 count as 0: a processor handles them
    a hundred times more slowly, and the weights of far keys under a bias are full of them.
    """
    torch.set_flush_denormal(True)
    if threads:
        torch.set_num_threads(threads)
    _keep_memory()


def _keep_memory() -> None:
    """Have the C library keep freed memory for the next step, where it is glibc.

    It else gives large blocks back at once, and the system clears every page of them anew.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX of malloc.h
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, -1)


def keep_compiled(folder: Path) -> None:
    """Keep what torch compiles in a folder that outlives the session, unless the user chose one."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
