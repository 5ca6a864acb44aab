"""What checks are fed with: tokens, positions, queries; and one layer's attention on them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posbench import attention, grid
from posbench.encodings.base import Context, PositionalEncoding
from posbench.grid import Shape

VOCABULARY = 61
#: number of axes -> the extents of all but the first; they differ, so that no axis passes for
#: another one
INNER: dict[int, Shape] = {1: (), 2: (7,), 3: (3, 5)}


def normal(*size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers, a function of size and seed."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tokens(length: int, batch: int = 2, seed: int = 0) -> Tensor:
    """Tokens [batch, length]; those of a shorter length are the first of a longer one."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (length, batch), generator=draw).T.contiguous()


def extents(length: int, axes: int = 1) -> Shape:
    """The text, picture or clip that holds so many tokens; it grows along its first axis."""
    inner = INNER[axes]
    return (-(-length // grid.count(inner)), *inner)


def positions(length: int, axes: int = 1, start: int | Tensor = 0, step: int = 1) -> Tensor:
    """Positions [1, length, axes] in raster order.

    The first axis begins at `start` and has a token every `step`; a tensor [axes] is where each
    axis begins.
    """
    found = grid.coordinates(extents(length, axes))[:, :length]
    found[..., 0] *= step
    if isinstance(start, Tensor):
        return found + start
    found[..., 0] += start
    return found


def difference(a: Tensor, b: Tensor) -> float:
    """Largest difference; infinite where shapes differ or one side alone is not finite."""
    if a.shape != b.shape:
        return float("inf")
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return float((a - b).abs().nan_to_num(float("inf")).masked_fill(same, 0.0).max())


@contextmanager
def chunks_of(rows: int, keys: int, heads: int) -> Iterator[None]:
    """Attention in chunks of so many queries, for a batch of one."""
    before = attention.CHUNK_ROWS, attention.CHUNK_SCORES
    attention.CHUNK_ROWS, attention.CHUNK_SCORES = rows, rows * keys * heads
    try:
        yield
    finally:
        attention.CHUNK_ROWS, attention.CHUNK_SCORES = before


@dataclass(frozen=True)
class Feed:
    """A layer's normed stream x [B, T, D], its q, k, v [B, H, T, K] and the positions [1, T, A]."""

    x: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    pos: Tensor

    def to(self, dtype: torch.dtype) -> "Feed":
        """In another type; positions stay whole."""
        x, q, k, v = (t.to(dtype) for t in (self.x, self.q, self.k, self.v))
        return Feed(x, q, k, v, self.pos)

    def first(self, keys: int) -> "Feed":
        """The first keys alone."""
        q, k, v = (t[:, :, :keys] for t in (self.q, self.k, self.v))
        return Feed(self.x[:, :keys], q, k, v, self.pos[:, :keys])

    def but(self, **tensors: Tensor) -> "Feed":
        """With other tensors."""
        return Feed(**{**vars(self), **tensors})


@dataclass(frozen=True)
class Layer:
    """The scheme that acts in a layer, and the layer's index among the scheme's own."""

    encoding: PositionalEncoding
    index: int

    @property
    def hooks(self) -> frozenset[str]:
        return self.encoding.hooks

    @property
    def axes(self) -> int:
        """Number of position axes that it is given."""
        return len(self.encoding.geometry.shape) if self.encoding.on_a_grid else 1

    def feed(self, keys: int, batch: int = 1, start: int = 0, step: int = 1, seed: int = 0) -> Feed:
        """Random input of so many keys, in float64."""
        shape = self.encoding.geometry
        x = normal(batch, keys, shape.d_model, seed=seed)
        q, k, v = (
            normal(batch, shape.n_heads, keys, shape.head_dim, seed=seed + n) for n in (1, 2, 3)
        )
        return Feed(x, q, k, v, positions(keys, self.axes, start, step))

    def context(self, feed: Feed, consecutive: bool = False, window: int | None = None) -> Context:
        """A new pass, at this layer, with what `prepare` makes of the input."""
        ctx = Context(consecutive and self.axes == 1).at(self.index, window)
        ctx.prepared = self.encoding.prepare(feed.x, feed.pos, ctx)
        return ctx

    def attend(
        self,
        feed: Feed,
        rows: int | None = None,
        consecutive: bool = False,
        window: int | None = None,
    ) -> Tensor:
        """Attention output [B, H, rows, K] of the last queries (None: all)."""
        rows = feed.k.shape[2] if rows is None else rows
        ctx = self.context(feed, consecutive, window)
        q, q_pos = feed.q[:, :, -rows:], feed.pos[:, -rows:]
        return self.encoding.attend(q, feed.k, feed.v, q_pos, feed.pos, ctx)

    def weights(self, feed: Feed, **how: Any) -> Tensor:
        """Attention weights [B, H, T, T]: what unit vectors as values give beyond no values.

        Needs as many keys as a head has channels.
        """
        unit = torch.eye(feed.k.shape[2], dtype=feed.k.dtype).expand_as(feed.k)
        none = self.attend(feed.but(v=torch.zeros_like(feed.v)), **how)
        return self.attend(feed.but(v=unit), **how) - none

    def turned(self, pos: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """What unit vectors become as queries at positions [1, N, A]: [N, H, K, K or wider]."""
        shape = self.encoding.geometry
        unit = torch.eye(shape.head_dim, dtype=dtype)
        unit = unit.expand(1, shape.n_heads, -1, -1)
        found = []
        for at in pos[0]:
            here = at.expand(1, shape.head_dim, -1).contiguous()
            ctx = Context(False).at(self.index)
            found.append(self.encoding.rotate(unit, unit, here, here, ctx)[0][0])
        return torch.stack(found)
