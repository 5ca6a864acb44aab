"""The device that a name stands for."""

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
