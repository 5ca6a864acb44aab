"""Transformer-XL's relative encoding."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posbench.encodings.base import Context, PositionalEncoding, Reduction, wide
from posbench.encodings.shaw import at_distance, clipped
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry


@register
class TransformerXL(PositionalEncoding):
    """Queries meet a projected sinusoid of the distance, and keys alone (Dai et al. 2019).

    score_ij = ((q_i + u) . k_j + (q_i + v) . W_R r_(i-j)) / sqrt(K), r_n = [sin(n theta_p), ...,
    cos(n theta_p), ...] of width D, theta_p = 10000^(-2p/D). u and v [H, K] belong to all layers,
    W_R [H K, D] to one. arXiv:1901.02860 section 3.3.

    The sine and cosine of a difference are products of those of its ends, so a layer costs one
    matrix product of width D with the keys' own sinusoids, at any positions, and nothing is
    shifted or gathered.
    """

    family = "contextual bias"
    paper = "arXiv:1901.02860"
    learnable = True

    @dataclass
    class Config:
        #: larger distances count as this one; null = none does
        clamp: int | None = None

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        width, heads, per_head = geometry.d_model, geometry.n_heads, geometry.head_dim
        if width % 2:
            raise ConfigError(f"model.d_model={width}: posenc=transformer_xl needs an even width")
        if config.clamp is not None and config.clamp < 1:
            raise ConfigError(f"posenc.clamp={config.clamp}: must be at least 1, or null")
        self.u = nn.Parameter(torch.empty(heads, per_head))
        self.v = nn.Parameter(torch.empty(heads, per_head))
        self.project_r = nn.Parameter(torch.empty(geometry.n_layers, heads, per_head, width))

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("W_R = 0, u = v = 0", "none", prepare=_silence)]

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        std = self.geometry.d_model**-0.5 if name == "project_r" else 0.02
        parameter.normal_(std=std, generator=generator)

    def sinusoid(self, pos: Tensor, dtype: torch.dtype) -> Tensor:
        """r [..., D] of positions or distances [...]: the sines, then the cosines."""
        kind, width = wide(pos.device), self.geometry.d_model
        exponent = torch.arange(0, width, 2, dtype=kind, device=pos.device) / width
        angle = pos.to(kind)[..., None] * 10000.0**-exponent
        return torch.cat((angle.sin(), angle.cos()), dim=-1).to(dtype)

    def prepare(self, x_BTD: Tensor, pos_BTA: Tensor, ctx: Context) -> Tensor:
        """Sinusoids of the positions [B or 1, 1, T, D], the same in every layer."""
        kind = torch.promote_types(x_BTD.dtype, torch.float32)

        def build() -> tuple[Tensor, Any]:
            # kept with the table, so that no other object can get these ids
            return self.sinusoid(pos_BTA[:, None, :, 0], kind), (self, pos_BTA)

        table: Tensor = ctx.once(("transformer_xl", id(self), id(pos_BTA), kind), build)[0]
        return table

    def content_bias(
        self,
        scores: Tensor,
        q: Tensor,
        k: Tensor,
        visible: Tensor,
        q_pos: Tensor,
        k_pos: Tensor,
        ctx: Context,
    ) -> Tensor:
        u, v, project = (x.to(q.dtype) for x in (self.u, self.v, self.project_r[ctx.layer]))
        by_key = k @ u[:, :, None]
        asked = (q + v[:, None]) @ project
        if self.config.clamp is None:
            rows, keys = q.shape[2], k.shape[2]
            own = ctx.prepared[:, :, keys - rows : keys].to(q.dtype)
            by_pair = turned(asked, own) @ ctx.prepared[:, :, :keys].to(q.dtype).transpose(2, 3)
        else:
            far = torch.arange(self.config.clamp + 1, device=q.device)
            columns = asked @ self.sinusoid(far, q.dtype).T
            by_pair = at_distance(columns, clipped(q_pos, k_pos, self.config.clamp))
        return scores + (by_key.transpose(2, 3) + by_pair) * q.shape[3] ** -0.5


def turned(asked: Tensor, own: Tensor) -> Tensor:
    """What asks a key's sinusoid for what `asked` asks the sinusoid of the distance (both [.., D]).

    With a . sin(i - j) + b . cos(i - j), a and b the halves of `asked`, i the query's position:
    sin j gets b sin i - a cos i, cos j gets a sin i + b cos i.
    """
    a, b = asked.chunk(2, dim=-1)
    sin, cos = own.chunk(2, dim=-1)
    return torch.cat((b * sin - a * cos, a * sin + b * cos), dim=-1)


@torch.no_grad()
def _silence(encoding: TransformerXL) -> None:
    for parameter in encoding.parameters():
        parameter.zero_()
