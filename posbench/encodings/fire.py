"""FIRE: a learned function of the distance relative to the position."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posbench.encodings.base import Context, PositionalEncoding, Tied, wide
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry

#: pairs of tokens whose hidden units are held at once
PAIRS = 1 << 15


@register
class Fire(PositionalEncoding):
    """A small network reads the distance as a share of the query's position (Li et al. 2024).

    bias[h, i, j] = MLP_h( psi(i - j) / (psi(max(i, |m L0|)) + 1e-6) ), psi(x) = ln(|c x| + 1), MLP
    1 -> 32 -> ReLU -> H, added after 1/sqrt(K). c (0.1 at the start), m (1) and the MLP are learned
    in every layer; `shared=true` is FIRE-S, one set for all. arXiv:2310.04418 section 3. The input
    stays within [0, 1] at any length. L0 = 512 in the paper; here half the training length, since
    below |m L0| the bias does not depend on the position.
    """

    family = "relative bias"
    paper = "arXiv:2310.04418"
    learnable = True
    shift_invariant = False

    @dataclass
    class Config:
        #: L0 in tokens; auto = half the training length
        threshold: int | str = "auto"
        #: hidden units of the network
        width: int = 32
        #: one set of parameters for all layers (FIRE-S)
        shared: bool = False

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        auto = config.threshold == "auto"
        threshold = geometry.train_length // 2 if auto else config.threshold
        if not isinstance(threshold, int) or threshold < 1:
            raise ConfigError(
                f"posenc.threshold={threshold}: a whole number of at least 1, or auto"
            )
        if config.width < 1:
            raise ConfigError(f"posenc.width={config.width}: must be at least 1")
        self.threshold = threshold
        self.needs_train_length = auto
        self.per_layer = not config.shared
        sets, heads = 1 if config.shared else geometry.n_layers, geometry.n_heads
        self.c = nn.Parameter(torch.empty(sets))
        self.multiplier = nn.Parameter(torch.empty(sets))
        self.inner_weight = nn.Parameter(torch.empty(sets, config.width))
        self.inner_offset = nn.Parameter(torch.empty(sets, config.width))
        self.outer_weight = nn.Parameter(torch.empty(sets, heads, config.width))
        self.outer_offset = nn.Parameter(torch.empty(sets, heads))

    def tied(self) -> list[Tied]:
        return [Tied("posenc.threshold", "512", str(self.threshold))]

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name in ("c", "multiplier"):
            parameter.fill_(0.1 if name == "c" else 1.0)
        else:  # as torch initialises linear layers: U(-b, b), b = 1 / sqrt(inputs)
            bound = (1 if name.startswith("inner") else self.config.width) ** -0.5
            parameter.uniform_(-bound, bound, generator=generator)

    def share(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        """Input of the network [B or 1, Tq, Tk], in float64; 0 where a key is after the query."""
        kind = wide(q_pos.device)
        c = self.c[layer].to(kind)
        distance = (q_pos[:, :, None, 0] - k_pos[:, None, :, 0]).clamp(min=0).to(kind)
        least = (self.multiplier[layer].to(kind) * self.threshold).abs()
        whole = torch.maximum(q_pos[..., 0].to(kind), least)
        return (c * distance).abs().log1p() / ((c * whole).abs().log1p() + 1e-6)[..., None]

    def network(self, share_N: Tensor, layer: int) -> Tensor:
        """Bias [H, N] of inputs, in the parameters' type, float32 or better."""
        kind = torch.promote_types(self.inner_weight.dtype, torch.float32)
        inner, inner_offset, outer, outer_offset = (
            p[layer].to(kind)
            for p in (self.inner_weight, self.inner_offset, self.outer_weight, self.outer_offset)
        )
        hidden = torch.addmm(inner_offset[:, None], inner[:, None], share_N.to(kind)[None])
        return torch.addmm(outer_offset[:, None], outer, hidden.relu_())

    def pair_bias(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        layer = ctx.layer if self.per_layer else 0
        share = self.share(q_pos, k_pos, layer)
        parts = [self.network(part, layer) for part in share.flatten().split(PAIRS)]
        return torch.cat(parts, dim=1).unflatten(1, share.shape).transpose(0, 1)
