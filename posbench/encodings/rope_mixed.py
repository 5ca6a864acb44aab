"""Rotary position embedding along learned directions."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posbench.encodings.axes import OnAxes, split_head
from posbench.encodings.base import Context, PositionalEncoding, Reduction, wide
from posbench.encodings.rope import powers, rotate_half_split
from posbench.errors import ConfigError, NotRescalable
from posbench.registry import register
from posbench.rescale.base import Ladder, Rescale
from posbench.settings import Geometry


@register
class RopeMixed(OnAxes):
    """RoPE-Mixed: every pair turns along a learned direction of its own (Heo et al. 2024).

    The angle of pair p is the sum over axes of coordinate times frequency[layer, head, p, axis];
    half-split pairs (p, p + d/2). arXiv:2403.13298. At the start the pairs are those of
    `rope_axial` at base 10, base^(-2p/d_axis) in a block for each axis, turned by a random rotation
    of space for each layer and head: with two axes a random direction, and for the second half the
    one at right angles to it, as in the authors' code. Three axes are this project's extension.
    There is no ladder once it is trained: of the rescalings only `pi` applies, by shrinking the
    coordinates.
    """

    family = "rotary"
    paper = "arXiv:2403.13298"
    learnable = True
    axes = (2, 3)

    @dataclass
    class Config:
        #: of the initial frequencies
        base: float = 10.0

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        if not 1 < config.base < math.inf:
            raise ConfigError(f"posenc.base={config.base}: must be above 1")
        #: channels that start along each direction
        self.channels = split_head(geometry, self.count, f"posenc={self.name}", "auto")
        self.frequencies = nn.Parameter(
            torch.empty(geometry.n_layers, geometry.n_heads, geometry.head_dim // 2, self.count)
        )
        #: what a coordinate of each axis is multiplied by
        self.steps = (1.0,) * self.count

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("directions along the axes", "rope_axial", {}, {"base": 10.0}, _align)]

    def directed(self, frames: Tensor) -> Tensor:
        """Initial frequencies [.., d/2, A] in frames [.., A, A], one direction a column."""
        parts = [
            powers(self.config.base, dim)[:, None] * frames[..., None, :, axis]
            for axis, dim in enumerate(self.channels)
        ]
        return torch.cat(parts, dim=-2)

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        size = (*parameter.shape[:2], self.count, self.count)
        q, r = torch.linalg.qr(torch.randn(size, generator=generator, dtype=torch.float64))
        frames = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
        frames[..., -1] *= torch.linalg.det(frames)[..., None].sign()
        parameter.copy_(self.directed(frames))

    def cos_sin(self, pos_BTA: Tensor, dtype: torch.dtype, layer: int) -> tuple[Tensor, Tensor]:
        """cos and sin [B or 1, H, T, d/2] of a layer; never below float32."""
        kind = wide(pos_BTA.device)
        steps = torch.tensor(self.steps, dtype=kind, device=pos_BTA.device)
        frequency_HPA = self.frequencies[layer].to(kind)
        angle = (pos_BTA.to(kind) * steps)[:, None] @ frequency_HPA.mT
        dtype = torch.promote_types(dtype, torch.float32)
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        of_keys = self.cos_sin(k_pos, k_BHTK.dtype, ctx.layer)
        same = q_pos is k_pos and q_BHTK.dtype == k_BHTK.dtype
        of_queries = of_keys if same else self.cos_sin(q_pos, q_BHTK.dtype, ctx.layer)
        return rotate_half_split(q_BHTK, *of_queries), rotate_half_split(k_BHTK, *of_keys)

    def rescaled(self, rule: Rescale, train_length: int, test_length: int) -> PositionalEncoding:
        if rule.by_place:
            raise NotRescalable(
                f"{self.name} cannot be rescaled by {rule.name}: its frequencies are learned and "
                "make no ladder"
            )
        steps = list(self.steps)
        for axis, own in self.along(rule, train_length, test_length).items():
            one = Ladder(torch.ones(1, dtype=torch.float64), self.config.base, 2, own.length)
            steps[axis] *= float(own.rule.frequencies(one, own.scale))
        return self.replace(steps=tuple(steps))


@torch.no_grad()
def _align(encoding: RopeMixed) -> None:
    """Pairs along the axes, as in `rope_axial`."""
    encoding.frequencies.copy_(encoding.directed(torch.eye(encoding.count, dtype=torch.float64)))
