"""T5's bucketed bias on a grid."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posbench.encodings.alibi_axial import apart
from posbench.encodings.base import Context, PositionalEncoding, Tied
from posbench.encodings.t5 import bucket, furthest
from posbench.registry import register
from posbench.settings import Geometry, one_of, positive

DISTANCES = ("manhattan", "per_axis")
#: the least that max_distance=auto gives: on the few frames of a clip every distance is told apart
LEAST = 4


@register
class T5Axial(PositionalEncoding):
    """A learned number per head and bucket of the distance on the grid, added to the scores.

    `manhattan`: T5's causal buckets (arXiv:1910.10683) of the sum of all axes' distances.
    `per_axis`: a table for each axis, summed as in LayoutLMv2 (Xu et al. 2021, arXiv:2012.14740). A
    key may lie ahead of its query on all axes but the first, so these have as many buckets again
    for keys ahead, as T5's encoder has. Tables are shared by all layers.

    Extents are short: a table has no more buckets (of a side) than max_distance, which by default
    is half the training extent (manhattan: of all extents together), at least 4.
    """

    family = "relative bias"
    paper = "arXiv:2012.14740"
    learnable = True
    axes = (2, 3)

    @dataclass
    class Config:
        distance: str = "manhattan"
        #: buckets of a table, or of either side of it, at most
        buckets: int = 32
        #: distance at which the last bucket begins to saturate; auto = half the training extent
        max_distance: int | str = "auto"

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        one_of("posenc.distance", config.distance, DISTANCES)
        per_axis = config.distance == "per_axis"
        extents = geometry.shape if per_axis else (sum(geometry.shape),)
        self.needs_train_length = config.max_distance == "auto"
        #: of each table
        self.max_distances = [furthest(config.max_distance, max(n // 2, LEAST)) for n in extents]
        least = min(self.max_distances)
        positive({"posenc.buckets": config.buckets, "posenc.max_distance": least}, least=2)
        self.buckets = [min(config.buckets, most) for most in self.max_distances]
        self.tables = nn.ParameterList(
            nn.Parameter(torch.empty(count * (2 if axis else 1), geometry.n_heads))
            for axis, count in enumerate(self.buckets)
        )

    def tied(self) -> list[Tied]:
        used = dict.fromkeys(map(str, self.max_distances))
        return [Tied("posenc.max_distance", "128", ", ".join(used))]

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        std = (len(self.tables) * self.geometry.d_model) ** -0.5
        parameter.normal_(std=std, generator=generator)

    def rows(self, axis: int, distance: Tensor) -> Tensor:
        """Rows of a table [...] for distances [...], query minus key (below 0: a key ahead)."""
        count = self.buckets[axis]
        found = bucket(distance.abs() if axis else distance, count, self.max_distances[axis])
        return found + count * (distance < 0) if axis else found

    def pair_bias(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        if self.config.distance == "manhattan":
            distances = [apart(q_pos, k_pos, "manhattan").long()]
        else:
            both = zip(q_pos.unbind(-1), k_pos.unbind(-1), strict=True)
            distances = [q[:, :, None] - k[:, None] for q, k in both]
        found = [
            table.T.index_select(1, self.rows(axis, distance).flatten())
            for axis, (table, distance) in enumerate(zip(self.tables, distances, strict=True))
        ]
        bias: Tensor = sum(found[1:], found[0])
        return bias.view(-1, *distances[0].shape).transpose(0, 1)

    def own_tables(self, distances: Tensor) -> dict[str, Any]:
        found = [self.rows(axis, distances).tolist() for axis in range(len(self.tables))]
        if self.config.distance == "manhattan":
            return {"buckets": found[0]}
        return {f"buckets_of_axis_{axis}": rows for axis, rows in enumerate(found)}
