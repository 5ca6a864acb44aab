"""The small model that things are checked on.

The sizes differ from each other wherever a mixed-up axis could hide: 3 heads of 24 channels, width
72, 2 layers; batches are of 2, and pictures and clips have extents that differ (see `extents`).
"""

from typing import Any

import torch

from posbench import grid, registry
from posbench import model as models
from posbench.checks.inputs import VOCABULARY, Layer, extents, normal
from posbench.encodings.base import PositionalEncoding
from posbench.model import Decoder
from posbench.settings import Geometry, ModelConfig

WIDTH, HEADS, LAYERS, HEAD = 72, 3, 2, 24


def decoder(
    posenc: str,
    train_length: int,
    options: dict[str, Any] | None = None,
    seed: int = 0,
    axes: int = 1,
) -> Decoder:
    """A small model in float64; its weights are a function of the seed and their names.

    It is trained on whole pictures or clips where there are axes, of `train_length` tokens or more.
    """
    cls, shape = registry.get("posenc", posenc), extents(train_length, axes)
    train_length = grid.count(shape)
    geometry = Geometry(WIDTH, HEADS, LAYERS, train_length, train_shape=shape)
    encoding = cls(cls.Config(**(options or {})), geometry)
    sampler = registry.get("positions", "standard")
    config = ModelConfig(d_model=WIDTH, n_layers=LAYERS, n_heads=HEADS)
    made = Decoder(config, VOCABULARY, encoding, sampler(sampler.Config(), train_length))
    models.initialise(made, seed)
    return made.double()


def nudge(encoding: PositionalEncoding, size: float = 0.1, seed: int = 1) -> None:
    """Move own parameters away from their initial values, which may be special, in place."""
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(normal(*parameter.shape, seed=seed, dtype=parameter.dtype), alpha=size)
        encoding.project()


def layers_of(encoding: PositionalEncoding) -> list[Layer]:
    """The schemes that act in the layers of the small model, each once."""
    found: dict[int, Layer] = {}
    for layer in range(LAYERS):
        own, index = encoding.for_layer(layer)
        found.setdefault(id(own), Layer(own, index))
    return list(found.values())


def fitting(encoding: PositionalEncoding, length: int, axes: int = 1) -> int:
    """The length, or the longest one below it that an encoding is defined for."""
    while length > 1 and not encoding.defined_for(extents(length, axes)):
        length -= 1
    return length
