"""Shapes of pictures and clips: their notation, token counts and coordinates in raster order.

A shape is the extent along each axis: (T,) for text, (rows, columns) for a picture, (frames, rows,
columns) for a clip. Its tokens are in raster order: the last axis runs fastest.
"""

import math
import re

import torch
from torch import Tensor

from posbench.errors import ConfigError

Shape = tuple[int, ...]


def text(shape: Shape) -> str:
    """`16x16`, `4x16x16`; a text's length as it is."""
    return "x".join(map(str, shape))


def parse(option: str, value: str, axes: int) -> Shape:
    """The shape that a notation stands for; ConfigError, naming the option, for any other text."""
    if not re.fullmatch(r"[1-9][0-9]*(x[1-9][0-9]*)*", value) or value.count("x") != axes - 1:
        example = "x".join(["4", "16", "16"][-axes:])
        raise ConfigError(f"{option}={value}: needs {axes} extents, such as {example}")
    return tuple(map(int, value.split("x")))


def count(shape: Shape) -> int:
    """Tokens of a shape."""
    return math.prod(shape)


def coordinates(shape: Shape) -> Tensor:
    """Coordinates [1, T, A] of the tokens of a shape, int64."""
    ranges = [torch.arange(extent) for extent in shape]
    return torch.cartesian_prod(*ranges).reshape(1, count(shape), len(shape))
