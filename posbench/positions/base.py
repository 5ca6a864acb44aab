"""Interface of position samplers."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor


class PositionSampler:
    """Positions of a batch, as a function of its size, its length and a generator alone."""

    group: ClassVar[str] = "positions"
    name: ClassVar[str]
    family: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    #: always 0, 1, 2, ...
    consecutive: ClassVar[bool] = False

    @dataclass
    class Config:
        """No options."""

    def __init__(self, config: Any):
        self.config = config

    def draw(self, batch: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Positions [batch or 1, length, axes], int64."""
        raise NotImplementedError
