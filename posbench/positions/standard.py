"""Positions 0, 1, 2, ..."""

import torch
from torch import Tensor

from posbench.positions.base import PositionSampler
from posbench.registry import register


@register
class Standard(PositionSampler):
    """Every sequence begins at position 0, in training and in test."""

    family = "positions"
    paper = ""
    consecutive = True

    def draw(self, batch: int, length: int, generator: torch.Generator, training: bool) -> Tensor:
        return torch.arange(length)[None, :, None]
