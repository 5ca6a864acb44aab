"""Learned absolute embedding."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posbench.encodings.base import PositionalEncoding, check_rms
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry


@register
class Learned(PositionalEncoding):
    """One learned vector per position, added to the token embedding (as in GPT-2 and BERT).

    Gehring et al. 2017, arXiv:1705.03122. The table has a row for every position of training; past
    its rows the scheme is undefined and a sweep says so. With `size` there are more rows, and those
    that no training position reads stay as they were drawn.
    """

    family = "absolute"
    paper = "arXiv:1705.03122"
    learnable = True
    shift_invariant = False
    needs_train_length = True

    @dataclass
    class Config:
        #: root mean square of the table at the start; the same as the sinusoidal table's
        rms: float = 0.5**0.5
        #: rows of the table; default: as many as training has positions
        size: int | None = None

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        check_rms(config.rms)
        size = geometry.positions if config.size is None else config.size
        if size < geometry.positions:
            raise ConfigError(
                f"posenc.size={size}: must be at least {geometry.positions}, the positions of "
                "training"
            )
        self.table = nn.Parameter(torch.empty(size, geometry.d_model))

    @property
    def max_length(self) -> int | None:
        return self.table.shape[0]

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        parameter.normal_(std=self.config.rms, generator=generator)

    def embed(self, x_BTD: Tensor, pos_BTA: Tensor) -> Tensor:
        return x_BTD + self.table[pos_BTA[..., 0]]
