"""KERPLE's logarithmic kernel, and what its kernels have in common."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from posbench.encodings.base import Context, PositionalEncoding, wide
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry


class Kerple(PositionalEncoding):
    """A penalty with two learned positive numbers per head, r1 and r2, the same in all layers."""

    family = "relative bias"
    paper = "arXiv:2205.09921"
    learnable = True
    monotone = True
    #: initial values are uniform from 0 to this
    initial: ClassVar[dict[str, float]]
    #: largest allowed value, where there is one
    largest: ClassVar[dict[str, float]] = {}

    @dataclass
    class Config:
        #: smallest allowed value of r1 and r2
        least: float = 0.01

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        if not 0 <= config.least < 1:
            raise ConfigError(f"posenc.least={config.least}: from 0 to below 1")
        self.r1 = nn.Parameter(torch.empty(geometry.n_heads))
        self.r2 = nn.Parameter(torch.empty(geometry.n_heads))

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        parameter.uniform_(0, self.initial[name], generator=generator)
        parameter.clamp_(min=self.config.least)

    @torch.no_grad()
    def project(self) -> None:
        for name, parameter in self.named_parameters():
            parameter.clamp_(self.config.least, self.largest.get(name))

    def distance_bias(self, distance_N: Tensor, ctx: Context) -> Tensor:
        kind = wide(distance_N.device)
        # in the parameters' own type, so that one on the bound still gets a gradient
        r1, r2 = (
            p.clamp(self.config.least, self.largest.get(name)).to(kind)[:, None]
            for name, p in self.named_parameters()
        )
        return -r1 * self.kernel(distance_N.to(kind), r2)

    def kernel(self, distance_N: Tensor, r2: Tensor) -> Tensor:
        """What grows with the distance [H, N], 0 at distance 0; r2 [H, 1]."""
        raise NotImplementedError


@register
class KerpleLog(Kerple):
    """A learned penalty that grows with the logarithm of the distance (Chi et al. 2022).

    bias[h, i, j] = -r1_h ln(1 + r2_h (i - j)), added after 1/sqrt(K); r1 ~ U(0, 2), r2 ~ U(0, 1) at
    the start, both kept at 0.01 or above. arXiv:2205.09921.
    """

    family = "relative bias"
    paper = "arXiv:2205.09921"
    initial = {"r1": 2.0, "r2": 1.0}

    def kernel(self, distance_N: Tensor, r2: Tensor) -> Tensor:
        return (r2 * distance_N).log1p()
