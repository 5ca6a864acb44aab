"""An encoding that changes as the sequence grows, one query at a time."""

import torch
from torch import Tensor

from posbench.attention import attend
from posbench.encodings.base import Context, PositionalEncoding


class PerQuery(PositionalEncoding):
    """Query i, which sees i + 1 tokens, attends as under `encodings[max(0, i + 1 - start)]`.

    Keys are turned anew for every query, as with a cache of un-rotated keys. Needs positions
    0, 1, 2, ...; memory is that of one query, time grows with the square of the length.
    """

    def __init__(self, encodings: list[PositionalEncoding], start: int):
        super().__init__(encodings[0].config, encodings[0].geometry)
        self.encodings = encodings
        self.start = start

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
            inner = Context(ctx.consecutive, ctx.layer)
            pos = q_pos[:, row], k_pos[:, :seen]
            turned = encoding.rotate(q[:, :, row], k[:, :, :seen], *pos, inner)
            out.append(attend(encoding, *turned, v[:, :, :seen], *pos, inner))
        return torch.cat(out, dim=2)
