"""Attention limited to the last L keys: the reference that a use of far tokens must beat."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posbench import settings
from posbench.encodings.base import Context, PositionalEncoding
from posbench.registry import register
from posbench.rescale.added import together
from posbench.rescale.base import Rescale, refuse_coordinates


class Windowed(PositionalEncoding):
    """A scheme whose layers have a window, or a shorter one than they had."""

    name = "windowed"

    def __init__(self, inner: PositionalEncoding, window: int):
        super().__init__(inner.config, inner.geometry)
        self.inner, self.window = inner, window
        self.shift_invariant, self.norm_preserving = inner.shift_invariant, inner.norm_preserving
        self.depends_on_total_length = inner.depends_on_total_length
        self.axes, self.trained_under = inner.axes, inner.trained_under
        self.hooks = frozenset({"attend"} | inner.hooks & {"embed", "prepare"})

    @property
    def max_length(self) -> int | None:
        return self.inner.max_length

    def own_tables(self, distances: Tensor) -> dict[str, Any]:
        return self.inner.own_tables(distances)

    def embed(self, x_BTD: Tensor, pos_BTA: Tensor) -> Tensor:
        return self.inner.embed(x_BTD, pos_BTA)

    def prepare(self, x_BTD: Tensor, pos_BTA: Tensor, ctx: Context) -> Any:
        return self.inner.prepare(x_BTD, pos_BTA, self._narrow(ctx))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> Tensor:
        return self.inner.attend(q, k, v, q_pos, k_pos, self._narrow(ctx))

    def by_hooks(self, ctx: Context) -> tuple[PositionalEncoding, Context] | None:
        return self.inner.by_hooks(self._narrow(ctx))

    def _narrow(self, ctx: Context) -> Context:
        window = self.window if ctx.window is None else min(self.window, ctx.window)
        return ctx.at(ctx.layer, window, ctx.prepared)


class Visible(PositionalEncoding):
    """Each query sees the last `window` keys and the first `sinks`."""

    name = "window"

    def __init__(self, inner: PositionalEncoding, window: int, sinks: int):
        super().__init__(None, inner.geometry)
        self.window, self.sinks = window, sinks
        self.most_keys = window + sinks

    def visible(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        keys = torch.arange(k_pos.shape[1], device=k_pos.device)
        queries = keys[-q_pos.shape[1] :, None]
        return ((queries - keys < self.window) | (keys < self.sinks))[None, None]


@register
class Window(Rescale):
    """In every layer a query sees the last L keys, itself included, and the first `sinks` keys.

    A reference, not a method: positions stay as they are. With 4 sinks it is the mask of
    StreamingLLM, arXiv:2309.17453, which also counts positions anew within what is seen. Layers add
    up: n of them reach n (L - 1) tokens back. A layer's own window, where it is shorter, stays
    (with sinks: for the sinks too). Up to L tokens nothing changes.
    """

    family = "reference"
    paper = "arXiv:2309.17453"
    acts_on = "keys"

    @dataclass
    class Config:
        #: first tokens that stay visible; 0 and 4 are the references
        sinks: int = 0

    def __init__(self, config: Config):
        super().__init__(config)
        settings.positive({"rescale.sinks": config.sinks}, least=0)

    def on(
        self, encoding: PositionalEncoding, train_length: int, test_length: int
    ) -> PositionalEncoding:
        refuse_coordinates(self, encoding)
        if test_length <= train_length:
            return encoding
        if not self.config.sinks:
            return Windowed(encoding, train_length)
        added = Visible(encoding, train_length, self.config.sinks)
        return together([encoding, added], encoding.label)
