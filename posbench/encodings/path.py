"""PaTH: accumulated Householder transformations."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench.encodings.base import Context, PositionalEncoding, Reduction
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry

#: tokens whose maps are multiplied out at once
BLOCK = 32
#: numbers of keys that a long sequence is rounded up to
TILES = 16


class Steps(NamedTuple):
    """What tokens do to the keys before them: unit vectors [B, H, T, K], sizes [B, H, T, 1]."""

    w: Tensor
    beta: Tensor


@register
class Path(PositionalEncoding):
    """PaTH attention: a product of data-dependent Householder-like maps (Yang et al. 2025).

    score_ij = q_i^T H_i H_(i-1) ... H_(j+1) k_j / sqrt(K), H_t = I - beta_t w_t w_t^T, |w_t| = 1,
    beta_t = 2 sigmoid(u_h . x_t + b_h); w_t from a low-rank projection, a causal depthwise
    convolution of width 3, SiLU and the norm. arXiv:2505.16381.

    The maps of BLOCK tokens act at once, as the solution of a triangular system, so that keys are
    turned T / BLOCK times. Float32 or better; time T^2 K a head.
    """

    family = "contextual rotation"
    paper = "arXiv:2505.16381"
    learnable = True
    norm_preserving = False
    compilable = False

    @dataclass
    class Config:
        rank: int = 32

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        if config.rank < 1:
            raise ConfigError(f"posenc.rank={config.rank}: must be at least 1")
        layers, width, heads = geometry.n_layers, geometry.d_model, geometry.n_heads
        self.down = nn.Parameter(torch.empty(layers, config.rank, width))
        self.up = nn.Parameter(torch.empty(layers, width, config.rank))
        self.conv = nn.Parameter(torch.empty(layers, width, 1, 3))
        self.size = nn.Parameter(torch.empty(layers, heads, width))
        self.offset = nn.Parameter(torch.empty(layers, heads))

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("beta = 0", "none", prepare=_stand_still)]

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name == "offset":
            parameter.zero_()
        else:
            parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)

    def prepare(self, x_BTD: Tensor, pos_BTA: Tensor, ctx: Context) -> Steps:
        layer, heads = ctx.layer, self.geometry.n_heads
        w = F.linear(F.linear(x_BTD, self.down[layer]), self.up[layer]).transpose(1, 2)
        w = F.conv1d(F.pad(w, (2, 0)), self.conv[layer], groups=w.shape[1])
        w = w.to(torch.promote_types(w.dtype, torch.float32))
        w = F.normalize(F.silu(w).unflatten(1, (heads, -1)).transpose(2, 3), dim=-1)
        beta = 2 * F.linear(x_BTD, self.size[layer], self.offset[layer]).sigmoid()
        return Steps(w, beta.transpose(1, 2)[..., None])

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> Tensor:
        kind = torch.promote_types(q.dtype, torch.float32)
        before, keys = k.shape[2] - q.shape[2], k.shape[2]
        q, k, values = q.to(kind) * q.shape[3] ** -0.5, k.to(kind), v.to(kind)
        w, beta = (x.to(kind) for x in ctx.prepared)
        starts = range(0, keys, BLOCK)
        rows = [max(0, min(s + BLOCK, keys) - max(s, before)) for s in starts]
        # few different sizes, so that freed memory is used again
        tiles = iter(k.split(max(BLOCK, -(-keys // TILES)), dim=2))
        # whole splits: the gradient of a slice would be padded to the length of all
        own = (x.split(BLOCK, dim=2) for x in (w, -beta * w))
        turned, out, index = next(tiles), [], torch.arange(keys, device=k.device)
        for start, q_rows, w, sized in zip(starts, q.split(rows, dim=2), *own, strict=True):
            stop = start + w.shape[2]
            while turned.shape[2] < stop:
                turned = torch.cat((turned, next(tiles)), dim=2)
            added = _added(w, sized, turned, start)
            first, end = stop - q_rows.shape[2], turned.shape[2]
            if first < stop:
                along = (q_rows @ w.transpose(2, 3)).tril(first - start)
                scores = q_rows @ turned.transpose(2, 3) + along @ added
                distance = index[first:stop, None] - index[:end]
                hidden = (distance < 0) | (distance >= (ctx.window or keys))
                weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
                out.append(weights @ values[:, :, :end])
            if stop < keys:
                turned = turned + added.transpose(2, 3) @ w
        return torch.cat(out, dim=2).to(v.dtype)


def _added(w: Tensor, sized: Tensor, k: Tensor, start: int) -> Tensor:
    """What each token of a block adds to each key along its w [B, H, N, T].

    `sized` is -beta w; `k` [B, H, T, K] are turned up to the block, which begins at `start`. A
    token acts on the keys before it: a_t = -beta_t (w_t . k + sum over s < t of (w_t . w_s) a_s).
    """
    return torch.linalg.solve_triangular(
        -(sized @ w.transpose(2, 3)).tril(-1),
        (sized @ k.transpose(2, 3)).tril(start - 1),
        upper=False,
        unitriangular=True,
    )


@torch.no_grad()
def _stand_still(encoding: Path) -> None:
    encoding.size.zero_()
    encoding.offset.fill_(-math.inf)
