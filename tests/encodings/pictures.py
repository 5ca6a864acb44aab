"""A picture and a clip, and their coordinates written out."""

import itertools
import math

import torch
from torch import Tensor

from posbench.settings import Geometry

PICTURE, CLIP = (4, 6), (3, 2, 4)
SHAPES = [PICTURE, CLIP]


def on(shape: tuple[int, ...], width: int = 32, heads: int = 4) -> Geometry:
    """A model that is trained on pictures or clips of a shape."""
    return Geometry(width, heads, 2, math.prod(shape), train_shape=shape)


def places(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Coordinates in raster order."""
    return list(itertools.product(*map(range, shape)))


def raster(shape: tuple[int, ...]) -> Tensor:
    """The same [1, T, A]."""
    return torch.tensor(places(shape))[None]
