"""Learned absolute embedding of every axis of a grid."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posbench.encodings.base import PositionalEncoding, check_rms
from posbench.encodings.learned import Learned
from posbench.encodings.sinusoidal_axial import COMBINE, blocks
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry, one_of


@register
class LearnedAxial(PositionalEncoding):
    """One learned vector per coordinate of each axis, summed or concatenated (NaViT 2023).

    The factorised embedding of arXiv:2307.06304, with absolute coordinates. A table has a row for
    every coordinate of training; where one axis is longer than its table, the scheme is undefined
    and a sweep says so. sum: tables of the whole width; concat: blocks as in sinusoidal_axial.
    """

    family = "absolute"
    paper = "arXiv:2307.06304"
    learnable = True
    shift_invariant = False
    needs_train_length = True
    axes = (2, 3)

    @dataclass
    class Config(Learned.Config):
        combine: str = "sum"

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        check_rms(config.rms)
        one_of("posenc.combine", config.combine, COMBINE)
        extents, width = geometry.shape, geometry.d_model
        widths = [width] * len(extents)
        if config.combine == "concat":
            widths = blocks(width, len(extents))
            if not all(widths):
                raise ConfigError(
                    f"model.d_model={width}: posenc={self.name} needs at least {2 * len(extents)} "
                    f"for {len(extents)} axes"
                )
        sizes = zip(extents, widths, strict=True)
        self.tables = nn.ParameterList(nn.Parameter(torch.empty(size)) for size in sizes)

    @property
    def max_length(self) -> int | None:
        return math.prod(self.geometry.shape)

    def defined_for(self, shape: tuple[int, ...]) -> bool:
        known = self.geometry.shape
        return len(shape) == len(known) and all(map(int.__le__, shape, known))

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        added = len(self.tables) if self.config.combine == "sum" else 1
        parameter.normal_(std=self.config.rms / added**0.5, generator=generator)

    def embed(self, x_BTD: Tensor, pos_BTA: Tensor) -> Tensor:
        codes = [table[at] for table, at in zip(self.tables, pos_BTA.unbind(-1), strict=True)]
        if self.config.combine == "concat":
            return x_BTD + torch.cat(codes, dim=-1)
        return x_BTD + torch.stack(codes).sum(0)
