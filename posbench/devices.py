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


def make_fast() -> None:
    """Settings of this process for work on the CPU; to be called before anything is computed.

    Numbers below 1e-38 count as 0: a processor handles them a hundred times more slowly, and the
    weights of far keys under a bias are full of them. Only threads that torch starts later follow.
    The C library keeps freed memory for the next step, where it is glibc: it else gives large
    blocks back at once, and the system clears every page of them anew.
    """
    torch.set_flush_denormal(True)
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX of malloc.h
    _c_library("mallopt", mmap_max, 0)
    _c_library("mallopt", trim_threshold, -1)


def give_back_memory() -> None:
    """Return what the C library keeps to the system."""
    _c_library("malloc_trim", 0)


def _c_library(name: str, *arguments: int) -> None:
    """Call a function that only glibc has; nothing elsewhere."""
    if platform.libc_ver()[0] == "glibc":
        with contextlib.suppress(OSError, AttributeError):
            getattr(ctypes.CDLL(None), name)(*arguments)


#: what torch chose when it was loaded
_THREADS = torch.get_num_threads()


def use_threads(count: int | None) -> None:
    """Threads of torch; None is torch's own choice."""
    torch.set_num_threads(count or _THREADS)


def keep_compiled(folder: Path) -> None:
    """Keep what torch compiles in a folder that outlives the session, unless the user chose one.

    Where it cannot be made, or has a space in its name, which the C++ compiler's command does not
    bear, torch's own temporary folder serves.
    """
    if " " in str(folder):
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
