"""Relative position vectors, added to keys and values."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posbench.encodings.base import Context, PositionalEncoding, Reduction, Tied
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry


def clipped(q_pos: Tensor, k_pos: Tensor, largest: int) -> Tensor:
    """Distance, query minus key, from 0 to `largest` [B or 1, 1, Tq, Tk] (int64)."""
    return (q_pos[:, None, :, None, 0] - k_pos[:, None, None, :, 0]).clamp(0, largest)


def at_distance(columns: Tensor, distance: Tensor) -> Tensor:
    """[B, H, Tq, Tk] from one column per distance [B, H, Tq, N] and distances [B or 1, 1, Tq, Tk].

    Only one query's columns are held, never a vector for every pair.
    """
    return columns.gather(-1, distance.expand(*columns.shape[:3], -1))


@register
class Shaw(PositionalEncoding):
    """A learned vector per clipped distance, added to keys and to values (Shaw et al. 2018).

    score_ij = q_i . (k_j + a_c) / sqrt(K), out_i = sum_j weight_ij (v_j + b_c), c = min(i - j, k):
    k + 1 rows, as a causal model meets no keys after the query. Own tables in every layer, one for
    all its heads. arXiv:1803.02155 sections 3.1, 3.2. All distances from k on are one.
    """

    family = "relative vectors"
    paper = "arXiv:1803.02155"
    learnable = True

    @dataclass
    class Config:
        #: k, the last distance that has its own vector; auto = half the training length
        max_distance: int | str = "auto"
        #: own tables for every head
        per_head: bool = False

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        length, given = geometry.train_length, config.max_distance
        largest = length // 2 if given == "auto" else given
        if not isinstance(largest, int) or not 1 <= largest < length:
            raise ConfigError(
                f"posenc.max_distance={given}: from 1 to train.seq_len - 1 = {length - 1}, or auto"
            )
        self.max_distance, self.needs_train_length = largest, given == "auto"
        heads = geometry.n_heads if config.per_head else 1
        size = geometry.n_layers, heads, largest + 1, geometry.head_dim
        self.keys = nn.Parameter(torch.empty(size))
        self.values = nn.Parameter(torch.empty(size))

    def tied(self) -> list[Tied]:
        return [Tied("posenc.max_distance", "16", str(self.max_distance))]

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("all vectors 0", "none", prepare=_silence)]

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        parameter.normal_(std=self.geometry.head_dim**-0.5, generator=generator)

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
        table = self.keys[ctx.layer].to(q.dtype)
        columns = q @ table.transpose(1, 2) * q.shape[3] ** -0.5
        return scores + at_distance(columns, clipped(q_pos, k_pos, self.max_distance))

    def normalise(
        self, scores: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> Tensor:
        weights = scores.softmax(-1)
        distance = clipped(q_pos, k_pos, self.max_distance).expand_as(weights)
        empty = weights.new_zeros(*weights.shape[:3], self.max_distance + 1)
        by_distance = empty.scatter_add(-1, distance, weights)
        return weights @ v + by_distance @ self.values[ctx.layer].to(v.dtype)


@torch.no_grad()
def _silence(encoding: Shaw) -> None:
    encoding.keys.zero_()
    encoding.values.zero_()
