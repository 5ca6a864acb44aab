"""Generators whose state is a function of a seed and a name."""

import hashlib

import torch


def seeded(seed: int, name: str) -> torch.Generator:
    """Generator whose state is a function of (seed, name)."""
    value = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(value[:8], "big") >> 1)
