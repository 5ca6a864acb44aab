"""Scalable softmax."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posbench.encodings.base import Context, PositionalEncoding, Reduction
from posbench.encodings.logn import visible_keys
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry


@register
class SSMax(PositionalEncoding):
    """Scores times s ln(n) for the n keys that a query sees, s learned (Nakanishi 2025).

    Tokens are counted, whatever their positions; a layer's window bounds n. One s for every head
    and layer, 1/sqrt(K) stays. arXiv:2501.19399. It has no other position signal: combine it, as in
    posenc=stack posenc.parts=[rope,ssmax].
    """

    family = "temperature"
    paper = "arXiv:2501.19399"
    learnable = True

    @dataclass
    class Config:
        #: s before training, 1 in released code; the paper's first figure has 0.43
        initial: float = 1.0

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        if not 0 < config.initial < math.inf:
            raise ConfigError(f"posenc.initial={config.initial}: must be above 0")
        self.scale = nn.Parameter(torch.empty(geometry.n_layers, geometry.n_heads))

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("s = 1 / ln L", "logn", prepare=_like_logn)]

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        parameter.fill_(self.config.initial)

    def logit_scale(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        return self.scale[ctx.layer][None, :, None] * visible_keys(q_pos, k_pos, ctx).log()


@torch.no_grad()
def _like_logn(encoding: SSMax) -> None:
    encoding.scale.fill_(1 / math.log(encoding.geometry.train_length))
