"""Dropping the rotation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.registry import register
from posbench.rescale.base import Ladder, Rescale


@register
class Drope(Rescale):
    """DroPE: every frequency becomes 0, so that nothing is rotated: RoPE becomes NoPE.

    Gelberg et al. 2025, arXiv:2512.12167: most of the training has the rotation, the last part, at
    the same length, has not (`train init=RUN rescale=drope`). Without that part it shows what the
    trained model makes of an order that it is no longer told. xPos keeps its decay.
    """

    family = "rescaling"
    paper = "arXiv:2512.12167"
    by_place = False
    every_axis = True

    @dataclass
    class Config:
        """No options."""

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        return torch.zeros_like(ladder.inv_freq)
