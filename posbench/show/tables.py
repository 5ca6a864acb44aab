"""The numbers of a scheme, rescaling or sampler, asked from its own hooks.

What a hook does with content is shown on a token stream of zeros, and learned tables at their
initial values for the seed. H heads, T time, K head width.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posbench.attention import written_out
from posbench.encodings.base import Context, PositionalEncoding
from posbench.positions.base import PositionSampler
from posbench.show.subject import Subject, pairs, subject

#: tokens whose weights are shown, for another normalisation than softmax
WEIGHTS = 16
#: the axes of a picture, and of a clip
AXES = {2: ("row", "column"), 3: ("frame", "row", "column")}


def tables(name: str, /, **keys: Any) -> dict[str, Any]:
    """What `posbench show NAME key=value ... --json` has under "tables"."""
    return tables_of(subject(name, keys))


@torch.no_grad()
def tables_of(found: Subject) -> dict[str, Any]:
    """The tables that apply, by name."""
    if found.encoding is None:
        assert found.sampler is not None
        return {"positions": drawn(found.sampler, found)}
    layer = Layer(found, found.encoding)
    parts = {
        **layer.own(found.distances),
        "axis_map": layer.axis_map(),
        "rotation": layer.rotation(),
        "bias": layer.bias(found.distances, found.keys.positions),
        "logit_scale": layer.logit_scale(found.positions),
        "embedding": layer.embedding(found.positions),
        "relative_position": layer.relative_position() if found.maps else None,
        "weights": layer.weights_table(),
    }
    return {name: table for name, table in parts.items() if table is not None}


def drawn(sampler: PositionSampler, found: Subject) -> dict[str, Any]:
    """Positions of the first training step, and of the test's draw of the seed's number."""
    seed, frame = found.frame.seed, found.frame
    return {
        "train": sampler.training(1, frame.train_length, seed, 0)[0, :, 0].tolist(),
        "test": sampler.testing(frame.test_length, seed)[0, :, 0].tolist(),
    }


def numbers(values: Tensor) -> Any:
    """A tensor as lists; None for what is not a finite number."""
    return values.tolist() if bool(values.isfinite().all()) else finite(values.tolist())


def finite(value: Any) -> Any:
    """Numbers in lists, None in place of those that are not finite."""
    if isinstance(value, list):
        return [finite(v) for v in value]
    return value if math.isfinite(value) else None


class Layer:
    """One layer of a model without content: what its scheme does, hook by hook.

    Positions are indices, on pictures and clips in raster order.
    """

    def __init__(self, found: Subject, whole: PositionalEncoding):
        self.whole, self.frame, self.asked = whole, found.frame, found.keys.positions
        self.scheme, self.index = whole.for_layer(found.frame.layer)
        #: extents of what has coordinates; () = text, or where the scheme sees the index
        self.grid = found.frame.test_shape if found.on_a_grid else ()
        if self.grid and not whole.defined_for(self.grid):
            self.grid = found.frame.shape
            self.frame = replace(
                self.frame, test_shape=self.grid, test_length=found.frame.train_length
            )
        #: type of the stream, and of what attention keeps in float32 or better
        self.dtype: torch.dtype = getattr(torch, found.frame.dtype)
        self.kind = torch.promote_types(self.dtype, torch.float32)

    def has(self, *hooks: str) -> bool:
        """Whether the layer's scheme defines one of these hooks."""
        return bool(self.scheme.hooks & {*hooks})

    def context(self, pos: Tensor) -> Context:
        """What the hooks get for positions [1, T, A], from a stream of zeros."""
        steps = pos[0, 1:, 0] - pos[0, :-1, 0]
        ctx = Context(not self.grid and bool((steps == 1).all()), self.index)
        if self.has("prepare"):
            ctx.prepared = self.scheme.prepare(self.zeros(pos), pos, ctx)
        return ctx

    def row(self, values: Any) -> Tensor:
        """Positions [1, T, A] of indices."""
        index = torch.tensor(list(values))
        if not self.grid:
            return index[None, :, None]
        return torch.stack(torch.unravel_index(index, self.grid), dim=-1)[None]

    def zeros(self, pos: Tensor) -> Tensor:
        """A stream [1, T, D] of zeros."""
        return torch.zeros(1, pos.shape[1], self.frame.d_model, dtype=self.dtype)

    def own(self, distances: list[int]) -> dict[str, Any]:
        """The tables that the scheme itself names."""
        found = {}
        for name, values in self.scheme.own_tables(torch.tensor(distances)).items():
            found[name] = self.rounded(values)
        return found

    def rounded(self, values: Any) -> Any:
        """Fractions as a model of the type has them, in float32 or better."""
        if isinstance(values, list):
            return [self.rounded(v) for v in values]
        if isinstance(values, dict):
            return {k: self.rounded(v) for k, v in values.items()}
        return torch.tensor(values, dtype=self.kind).item() if isinstance(values, float) else values

    def bias(self, distances: list[int], queries: list[int] | None = None) -> Any:
        """Bias per head and distance, everything together; null where there is no such key.

        Where it depends on the query, that is the last of `queries`, or the end of the test.
        """
        if not self.has("distance_bias", "key_bias", "pair_bias"):
            return None
        distance = torch.tensor(distances)
        found: dict[str, Any] = {"distances": distances}
        total = torch.zeros(self.frame.heads, len(distances), dtype=self.kind)
        row = max(distances)
        if self.has("pair_bias"):
            row = queries[-1] if queries else self.frame.test_length - 1
            found["query"] = row
        pos = self.row(range(row + 1))
        ctx = (
            self.context(pos)
            if self.has("key_bias", "pair_bias", "prepare")
            else Context(True, self.index)
        )
        if self.has("distance_bias"):
            total += self.scheme.distance_bias(distance, ctx).to(self.kind)
        by_key = torch.zeros(1, row + 1, dtype=self.kind)
        if self.has("key_bias"):
            keys = self.scheme.key_bias(pos, ctx)[0]
            by_key = by_key + (keys - keys[:, -1:]).to(self.kind)
        if self.has("pair_bias"):
            by_key = by_key + self.scheme.pair_bias(pos[:, -1:], pos, ctx)[0, :, 0].to(self.kind)
        total = total + by_key[:, (row - distance).clamp(min=0)]
        found["values"] = numbers(total.masked_fill(distance > row, math.nan))
        return found

    def logit_scale(self, positions: list[int]) -> Any:
        """Factor on q . k by position of the query; by head too, where heads differ."""
        if not self.has("logit_scale"):
            return None
        pos = self.row(range(max(positions) + 1))
        scale = self.scheme.logit_scale(pos, pos, self.context(pos))
        if scale is None:
            return None
        values = torch.as_tensor(scale, dtype=self.kind)
        if values.ndim:
            values = values[..., positions]
        if isinstance(scale, Tensor) and not written_out(self.scheme, Context(True)):
            values = values.to(self.dtype)  # there the queries keep their own type
        values = values.expand(1, values.shape[-2] if values.ndim > 1 else 1, len(positions))[0]
        return {"positions": positions, "values": numbers(values if len(values) > 1 else values[0])}

    def embedding(self, positions: list[int]) -> Any:
        """What is added to a stream, here one of zeros."""
        if "embed" not in self.whole.hooks:
            return None
        pos = self.row(positions)
        added = self.whole.embed(self.zeros(pos), pos)[0]
        if not added.any():
            return None
        return {"positions": positions, "values": numbers(added)}

    def rotation(self) -> Any:
        """cos, sin and angle (-pi to pi) of every pair at the positions that were asked for.

        Read from `rotate`, in the type of the model: what that model turns by.
        """
        half = pairs(self.scheme)
        if not self.asked or not half or not self.has("rotate"):
            return None
        x = torch.zeros(1, self.frame.heads, 1, self.frame.head_dim, dtype=self.dtype)
        x[..., :half] = 1
        rows = []
        for position in self.asked:  # one by one: a scheme may centre them
            pos = self.row([position])
            rows.append(self.scheme.rotate(x, x, pos, pos, self.context(pos))[0][0, 0, 0])
        turned = torch.stack(rows).to(self.dtype)
        cos, sin = turned[:, :half], turned[:, half : 2 * half]
        angle = torch.atan2(sin.to(self.kind), cos.to(self.kind))
        values = {"angle": numbers(angle), "cos": numbers(cos), "sin": numbers(sin)}
        return {"positions": self.asked, **values}

    def axis_map(self) -> Any:
        """What a step of 1 along each axis turns every pair by, by head where heads differ.

        Read from `rotate`; angles below pi, as every frequency of a ladder is.
        """
        if not self.grid or not self.has("rotate") or self.has("prepare"):
            return None
        half, axes = pairs(self.scheme) or self.frame.head_dim // 2, len(self.grid)
        x = torch.zeros(axes, self.frame.heads, 1, self.frame.head_dim, dtype=torch.float64)
        x[..., :half] = 1
        steps = torch.eye(axes, dtype=torch.int64)[:, None]
        turned = self.scheme.rotate(x, x, steps, steps, Context(False, self.index))[0][:, :, 0]
        angle = torch.atan2(turned[..., half : 2 * half], turned[..., :half]).permute(1, 2, 0)
        same = bool((angle == angle[:1]).all())
        values = numbers((angle[0] if same else angle).to(self.kind))
        return {"axes": list(AXES[axes]), "extents": list(self.frame.shape), "values": values}

    def relative_position(self) -> list[list[int | float]]:
        """The relative position of every query [T] to every key [T]; keys after it are masked."""
        pos = self.row(range(self.frame.test_length))
        found = pos[0] - pos[0].T
        for region in self.scheme.relative_position(pos, pos, Context(True)) or []:
            moved = region.q_pos[0] - region.k_pos[0].T
            found = moved if region.where is None else torch.where(region.where[0, 0], moved, found)
        matrix: list[list[int | float]] = found.tolist()
        return matrix

    def weights_table(self) -> Any:
        """Weights by head, query and key where all q . k are 0, for what is not a softmax."""
        if not self.has("normalise"):
            return None
        length = min(WEIGHTS, self.frame.test_length)
        return {"positions": list(range(length)), "values": numbers(self.weights(length))}

    def weights(self, length: int) -> Tensor:
        """Attention weights [H, T, T] where all q . k are 0, through the model's own kernel."""
        pos, width = self.row(range(length)), self.frame.head_dim
        ctx = self.context(pos)
        zero = torch.zeros(1, self.frame.heads, length, width, dtype=self.dtype)
        found = []
        for start in range(0, length, width):
            v = torch.eye(length, dtype=self.dtype)[:, start : start + width]
            v = torch.nn.functional.pad(v, (0, width - v.shape[1])).expand_as(zero)
            # less what a scheme adds to the values themselves
            out = [self.scheme.attend(zero, zero, x, pos, pos, ctx) for x in (v, zero)]
            found.append((out[0] - out[1])[0])
        return torch.cat(found, dim=-1)[..., :length]

    def similarity(self, distances: Sequence[float], axis: int = 0) -> Tensor:
        """Score [N] of a query with a key of the same content, as a share of that at distance 0.

        On a picture or clip they stand apart along one axis. nan where the key is not seen.
        """
        along = torch.tensor([0, *distances])
        q_pos = along.new_zeros(len(along), 1, max(1, len(self.grid)))
        q_pos[..., axis] = along[:, None]
        x = torch.ones(len(q_pos), self.frame.heads, 1, self.frame.head_dim, dtype=self.dtype)
        ctx = Context(False, self.index)
        if self.has("prepare"):
            stream = torch.zeros(len(q_pos), 1, self.frame.d_model, dtype=self.dtype)
            ctx.prepared = self.scheme.prepare(stream, q_pos, ctx)
        scheme, ctx = (self.has("attend") and self.scheme.by_hooks(ctx)) or (self.scheme, ctx)
        q, k = scheme.rotate(x, x, q_pos, torch.zeros_like(q_pos), ctx)
        scores = (q * k).sum(-1).mean((1, 2))
        shares = scores[1:] / scores[0]
        if ctx.window is not None:
            shares[along[1:] >= ctx.window] = torch.nan
        return shares
