"""Interface of position samplers."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posbench.encodings.base import Tied
from posbench.seeds import seeded


class PositionSampler:
    """Positions of a batch in training and in test, as a function of seeds and lengths alone."""

    group: ClassVar[str] = "positions"
    name: ClassVar[str]
    family: ClassVar[str] = "positions"
    paper: ClassVar[str] = ""
    #: neighbours always differ by one
    consecutive: ClassVar[bool] = False
    #: test positions are drawn too, so that a result is a mean over draws
    random_test: ClassVar[bool] = False

    @dataclass
    class Config:
        """No options."""

    def __init__(self, config: Any, train_length: int):
        self.config = config
        self.train_length = train_length

    @property
    def target(self) -> int:
        """Length that training prepares for."""
        return self.train_length

    @property
    def max_length(self) -> int | None:
        """Longest sequence that it has positions for; None = any."""
        return None

    def tied(self) -> list[Tied]:
        """Hyper-parameters that follow the training length."""
        return []

    @property
    def skipped(self) -> int:
        """Tokens of text that lie between those of a training sequence at most."""
        return 0

    @property
    def trained(self) -> int:
        """Every position of training is below it."""
        return self.span(self.train_length)

    def span(self, length: int) -> int:
        """Every position of a sequence of this length, in training or test, is below it."""
        return length

    def draw(self, batch: int, length: int, generator: torch.Generator, training: bool) -> Tensor:
        """Positions [batch or 1, length, 1], ascending."""
        raise NotImplementedError

    def training(self, batch: int, length: int, seed: int, step: int) -> Tensor:
        """Positions of a training step: a function of (seed, step)."""
        return self.draw(batch, length, seeded(seed, f"positions:{step}"), True)

    def places(self, batch: int, length: int, seed: int, step: int) -> Tensor:
        """Where the tokens of training sequences lie in a text [batch, length + 1], ascending.

        From 0 to at most length + `skipped`; asked for where that is not 0. A function of (seed,
        step).
        """
        raise NotImplementedError

    def testing(self, length: int, draw: int = 0) -> Tensor:
        """Positions [1, length, 1] of the test: a function of (length, number of the draw)."""
        return self.draw(1, length, seeded(draw, f"test positions:{length}"), False)
