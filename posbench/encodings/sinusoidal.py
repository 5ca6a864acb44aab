"""Fixed sine and cosine embedding."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encodings.base import PositionalEncoding, check_rms, wide
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry


def code(pos: Tensor, width: int, base: float) -> Tensor:
    """Sines and cosines [..., width] of positions [...], in float64 (see `wide`)."""
    kind = wide(pos.device)
    exponent = torch.arange(0, width, 2, dtype=kind, device=pos.device) / width
    angle = pos.to(kind)[..., None] * base**-exponent
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


@register
class Sinusoidal(PositionalEncoding):
    """Sines and cosines of the position, added to the token embedding (Vaswani et al. 2017).

    PE[m, 2p] = sin(m * base^(-2p/D)), PE[m, 2p+1] = cos(m * base^(-2p/D)), interleaved as in
    arXiv:1706.03762 section 3.5. With `rms` = sqrt(1/2) the table is the paper's; it is added to a
    token stream of unit rms, which is what the paper's factor sqrt(D) does.
    """

    family = "absolute"
    paper = "arXiv:1706.03762"
    shift_invariant = False

    @dataclass
    class Config:
        base: float = 10000.0
        #: root mean square of the table; sqrt(1/2) leaves sine and cosine as they are
        rms: float = 0.5**0.5

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        if geometry.d_model % 2:
            raise ConfigError(
                f"model.d_model={geometry.d_model}: posenc={self.name} needs an even width"
            )
        if not 1 < config.base < math.inf:
            raise ConfigError(f"posenc.base={config.base}: must be above 1")
        check_rms(config.rms)

    def table(self, pos: Tensor) -> Tensor:
        """Embedding [..., D] of positions [...], in float64 (float32 where a device has none)."""
        table = code(pos, self.geometry.d_model, self.config.base)
        return table * (self.config.rms / 0.5**0.5)

    def embed(self, x_BTD: Tensor, pos_BTA: Tensor) -> Tensor:
        return x_BTD + self.table(pos_BTA[..., 0]).to(x_BTD.dtype)
