"""Fixed sine and cosine embedding of every axis of a grid."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encodings.sinusoidal import Sinusoidal, code
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry, one_of

#: how the codes of the axes become one vector
COMBINE = ("concat", "sum")


def blocks(width: int, axes: int) -> list[int]:
    """Even widths, one per axis, that make up an even width: equal ones, the rest to the first."""
    other = width // (2 * axes) * 2
    return [width - (axes - 1) * other, *[other] * (axes - 1)]


@register
class SinusoidalAxial(Sinusoidal):
    """Sines and cosines of each coordinate, side by side or summed (Parmar et al. 2018).

    concat: the width is cut into even blocks, one per axis in their order, equal ones as far as an
    even size allows and the rest to the first; a block is the sinusoidal embedding of its own width
    (arXiv:1802.05751 section 3.2; 12 channels of three axes are 4 + 4 + 4, 14 are 6 + 4 + 4).
    sum: the embeddings of the whole width of all axes, each over sqrt(axes), are added.
    """

    family = "absolute"
    paper = "arXiv:1802.05751"
    axes = (2, 3)

    @dataclass
    class Config(Sinusoidal.Config):
        combine: str = "concat"

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        one_of("posenc.combine", config.combine, COMBINE)
        least = 2 * len(geometry.shape)
        if config.combine == "concat" and geometry.d_model < least:
            raise ConfigError(
                f"model.d_model={geometry.d_model}: posenc={self.name} needs at least {least} for "
                f"{len(geometry.shape)} axes"
            )

    def table(self, pos: Tensor) -> Tensor:
        """Embedding [..., D] of coordinates [..., A], in float64 (see `wide`)."""
        width, base, axes = self.geometry.d_model, self.config.base, pos.shape[-1]
        size = self.config.rms / 0.5**0.5
        if self.config.combine == "sum":
            return code(pos, width, base).sum(-2) * (size / axes**0.5)
        own = zip(pos.unbind(-1), blocks(width, axes), strict=True)
        return torch.cat([code(at, block, base) for at, block in own], dim=-1) * size

    def embed(self, x_BTD: Tensor, pos_BTA: Tensor) -> Tensor:
        return x_BTD + self.table(pos_BTA).to(x_BTD.dtype)
