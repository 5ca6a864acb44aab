"""Sandwich: the inner product of sinusoidal embeddings as a bias."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding, wide
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry


@register
class Sandwich(PositionalEncoding):
    """The product of two sinusoidal embeddings, weaker from head to head (Chi et al. 2023).

    bias[h, i, j] = (sum over p of cos((i - j) 10000^(-2p/w)) - w/2) / (8h / H), p = 0 .. w/2 - 1,
    h = 1 .. H, w the width of the embeddings (`d_bar`), added after 1/sqrt(K); 0 at distance 0.
    arXiv:2212.10356 section 5. Nothing is learned. The bias falls in the large and waves in the
    small. NVIDIA's NeMo takes p = 1 .. w/2, which gives other numbers.
    """

    family = "relative bias"
    paper = "arXiv:2212.10356"

    @dataclass
    class Config:
        #: width of the embeddings; not the head size
        d_bar: int = 128

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        if config.d_bar < 2 or config.d_bar % 2:
            raise ConfigError(f"posenc.d_bar={config.d_bar}: an even number of at least 2")

    def distance_bias(self, distance_N: Tensor, ctx: Context) -> Tensor:
        width, heads = self.config.d_bar, self.geometry.n_heads
        distance = distance_N.to(wide(distance_N.device))
        total = torch.zeros_like(distance)
        for p in range(width // 2):  # one pair at a time: memory does not grow with the width
            total += (distance * 10000.0 ** (-2 * p / width)).cos() - 1
        head = torch.arange(1, heads + 1, dtype=distance.dtype, device=distance.device)
        return total * (heads / (8 * head))[:, None]
