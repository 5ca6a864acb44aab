"""An encoding that changes as the sequence grows, one query at a time."""

from typing import Any

import torch
from torch import Tensor

from posbench.attention import attend
from posbench.encodings.base import Context, PositionalEncoding


class PerQuery(PositionalEncoding):
    """Query i, which sees i + 1 tokens, attends as under `encodings[max(0, i + 1 - start)]`.

    Keys are turned anew for every query, as with a cache of un-rotated keys. Memory is that of one
    query, time grows with the square of the length. The encodings differ in what they rotate by;
    all else is the first one's.
    """

    name = "per_query"

    def __init__(self, encodings: list[PositionalEncoding], start: int):
        first = encodings[0]
        super().__init__(first.config, first.geometry)
        self.encodings = encodings
        self.start = start
        self.shift_invariant = first.shift_invariant
        self.norm_preserving = first.norm_preserving
        self.axes = first.axes
        self.hooks = frozenset({"attend"} | first.hooks & {"embed", "prepare"})

    @property
    def max_length(self) -> int | None:
        return self.encodings[0].max_length

    def own_tables(self, distances: Tensor) -> dict[str, Any]:
        """Those of the last query."""
        return self.encodings[-1].own_tables(distances)

    def embed(self, x_BTD: Tensor, pos_BTA: Tensor) -> Tensor:
        return self.encodings[0].embed(x_BTD, pos_BTA)

    def prepare(self, x_BTD: Tensor, pos_BTA: Tensor, ctx: Context) -> Any:
        return self.encodings[0].prepare(x_BTD, pos_BTA, ctx)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> Tensor:
        before = k.shape[2] - q.shape[2]
        together = max(0, min(self.start - before, q.shape[2]))
        rows = [slice(0, together)] if together else []
        rows += [slice(row, row + 1) for row in range(together, q.shape[2])]
        out = []
        for row in rows:
            seen = before + row.stop
            encoding = self.encodings[max(0, seen - self.start)]
            inner = ctx.alone()
            pos = q_pos[:, row], k_pos[:, :seen]
            out.append(attend(encoding, q[:, :, row], k[:, :, :seen], v[:, :, :seen], *pos, inner))
        return torch.cat(out, dim=2)
