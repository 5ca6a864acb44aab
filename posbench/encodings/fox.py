"""Forgetting attention: a data-dependent decay."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.encodings.alibi import slopes
from posbench.encodings.base import Context, PositionalEncoding, Reduction, wide
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry


@register
class Fox(PositionalEncoding):
    """Forgetting Transformer: every token's gate fades all that came before it (Lin et al. 2025).

    f_t = sigmoid(w_h . x_t + b_h), bias[i, j] = sum over l = j+1 .. i of ln f_l, so a token does
    not fade itself; added after 1/sqrt(K). One gate per head and layer. arXiv:2503.02130. A
    constant gate f is ALiBi with the slope -ln f. Logarithms are summed in float64.
    """

    family = "contextual bias"
    paper = "arXiv:2503.02130"
    learnable = True
    monotone = True

    @dataclass
    class Config:
        #: gate before training; the released code has 0.5, which forgets within two tokens
        initial_gate: float = 0.5

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        if not 0 < config.initial_gate < 1:
            raise ConfigError(f"posenc.initial_gate={config.initial_gate}: from 0 to 1, exclusive")
        layers, heads = geometry.n_layers, geometry.n_heads
        self.weight = nn.Parameter(torch.empty(layers, heads, geometry.d_model))
        self.offset = nn.Parameter(torch.empty(layers, heads))

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [
            Reduction("gate = 1", "none", prepare=_never_forget),
            Reduction("constant gates e^-slope", "alibi", prepare=_forget_like_alibi),
        ]

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        gate = self.config.initial_gate
        if name == "offset":
            parameter.fill_(math.log(gate / (1 - gate)))
        else:
            parameter.normal_(std=self.geometry.d_model**-0.5, generator=generator)

    def prepare(self, x_BTD: Tensor, pos_BTA: Tensor, ctx: Context) -> Tensor:
        """Sum of the log gates up to and including every token [B, H, T], float64."""
        gate = F.linear(x_BTD, self.weight[ctx.layer], self.offset[ctx.layer])
        return F.logsigmoid(gate.to(wide(gate.device))).cumsum(1).transpose(1, 2)

    def key_bias(self, k_pos: Tensor, ctx: Context) -> Tensor:
        total: Tensor = -ctx.prepared
        return total


@torch.no_grad()
def _never_forget(encoding: Fox) -> None:
    encoding.weight.zero_()
    encoding.offset.fill_(math.inf)


@torch.no_grad()
def _forget_like_alibi(encoding: Fox) -> None:
    encoding.weight.zero_()
    for head, slope in enumerate(slopes(encoding.geometry.n_heads)):
        encoding.offset[:, head] = -math.log(math.expm1(slope))
