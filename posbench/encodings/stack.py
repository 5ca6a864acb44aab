"""Several schemes at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding, Region
from posbench.encodings.combined import Combined, make_part
from posbench.errors import ConfigError
from posbench.parts import check_options
from posbench.registry import register
from posbench.settings import Geometry

if TYPE_CHECKING:
    from posbench.rescale.base import Rescale

#: hooks that only one of the parts can have
_SINGLE = ("relative_position", "normalise", "attend")


def make(text: str, options: dict[str, Any], geometry: Geometry) -> PositionalEncoding:
    """An entry of a pattern: a scheme, or several joined by '+', with their options by name."""
    made = [make_part("posenc.pattern", name, options, geometry) for name in text.split("+")]
    return made[0] if len(made) == 1 else combine(made)


def combine(parts: Sequence[PositionalEncoding]) -> "Stack":
    """Schemes that act together; stacks among them are taken apart."""
    flat: list[PositionalEncoding] = []
    for part in parts:
        flat += part.members if isinstance(part, Stack) else [part]
    stack = Stack.__new__(Stack)
    stack.join(Stack.Config(parts=[p.name for p in flat]), flat)
    return stack


@register
class Stack(Combined):
    """Several schemes at once, e.g. posenc=stack posenc.parts=[rope,fox,logn].

    Embeddings and rotations act one after the other, biases add up, factors on the scores multiply,
    masks must all agree. A position map, another normalisation or an attention of its own can come
    from one part only.
    """

    family = "combined"
    paper = ""

    @dataclass
    class Config:
        #: names of schemes
        parts: list[str] = field(default_factory=lambda: ["rope", "fox"])
        #: options of the parts by name, e.g. {rope: {base: 500000}}
        options: dict[str, Any] = field(default_factory=dict)

    def __init__(self, config: Config, geometry: Geometry):
        names = [name for part in config.parts for name in part.split("+")]
        if len(names) < 2:
            raise ConfigError(f"posenc.parts={config.parts}: name two or more schemes")
        check_options(self.group, config.options, names)
        made = [make_part("posenc.parts", name, config.options, geometry) for name in names]
        self.join(config, made)

    def join(self, config: Config, parts: Sequence[PositionalEncoding]) -> None:
        """Become the combination of these parts, all of one geometry."""
        PositionalEncoding.__init__(self, config, parts[0].geometry)
        names = [p.name for p in parts]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"posenc.parts={names}: {name} is named twice")
        for hook in _SINGLE:
            having = [p.name for p in parts if hook in p.hooks]
            if len(having) > 1:
                raise ConfigError(f"posenc.parts: {' and '.join(having)} both define {hook}")
        alone = next((p for p in parts if "attend" in p.hooks), None)
        for part in parts:
            if alone is not None and part is not alone and part.hooks - {"embed"}:
                raise ConfigError(
                    f"posenc.parts: {alone.name} computes its own attention, so {part.name} "
                    "cannot act beside it"
                )
        self.hold(dict(zip(names, parts, strict=True)))

    @property
    def label(self) -> str:
        return "+".join(p.label for p in self.members)

    @property
    def query_init_scale(self) -> float:
        scale = 1.0
        for part in self.members:
            scale *= part.query_init_scale
        return scale

    def embed(self, x_BTD: Tensor, pos_BTA: Tensor) -> Tensor:
        for _, part in self.having("embed"):
            x_BTD = part.embed(x_BTD, pos_BTA)
        return x_BTD

    def prepare(self, x_BTD: Tensor, pos_BTA: Tensor, ctx: Context) -> dict[str, Any]:
        return {n: p.prepare(x_BTD, pos_BTA, ctx) for n, p in self.having("prepare")}

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        q, k = q_BHTK, k_BHTK
        for name, part in self.having("rotate"):
            q, k = part.rotate(q, k, q_pos, k_pos, ctx.part(name))
        return q, k

    def relative_position(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> list[Region] | None:
        found = self.having("relative_position")
        if not found:
            return None
        name, part = found[0]
        return part.relative_position(q_pos, k_pos, ctx.part(name))

    def distance_bias(self, distance_N: Tensor, ctx: Context) -> Tensor:
        found = self.having("distance_bias")
        return _sum([p.distance_bias(distance_N, ctx.part(n)) for n, p in found])

    def key_bias(self, k_pos: Tensor, ctx: Context) -> Tensor:
        return _sum([p.key_bias(k_pos, ctx.part(n)) for n, p in self.having("key_bias")])

    def pair_bias(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        found = self.having("pair_bias")
        return _sum([p.pair_bias(q_pos, k_pos, ctx.part(n)) for n, p in found])

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
        for name, part in self.having("content_bias"):
            scores = part.content_bias(scores, q, k, visible, q_pos, k_pos, ctx.part(name))
        return scores

    def visible(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        seen = q_pos.new_ones((1, 1, 1, 1), dtype=torch.bool)
        for name, part in self.having("visible"):
            seen = seen & part.visible(q_pos, k_pos, ctx.part(name))
        return seen

    def logit_scale(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> float | Tensor | None:
        bounds = [n for n in (ctx.window, *(p.most_keys for p in self.members)) if n is not None]
        ctx = ctx.at(ctx.layer, min(bounds, default=None), ctx.prepared)
        total: float | Tensor | None = None
        for name, part in self.having("logit_scale"):
            scale = part.logit_scale(q_pos, k_pos, ctx.part(name))
            if scale is not None:
                total = scale if total is None else total * scale
        return total

    def normalise(
        self, scores: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> Tensor:
        for name, part in self.having("normalise"):
            return part.normalise(scores, v, q_pos, k_pos, ctx.part(name))
        return super().normalise(scores, v, q_pos, k_pos, ctx)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> Tensor:
        for name, part in self.having("attend"):
            return part.attend(q, k, v, q_pos, k_pos, ctx.part(name))
        return super().attend(q, k, v, q_pos, k_pos, ctx)

    def by_hooks(self, ctx: Context) -> tuple[PositionalEncoding, Context] | None:
        for name, part in self.having("attend"):
            return part.by_hooks(ctx.part(name))
        return super().by_hooks(ctx)

    def rescaled(self, rule: "Rescale", train_length: int, test_length: int) -> PositionalEncoding:
        parts = self.change_parts(lambda p: p.rescaled(rule, train_length, test_length))
        return combine(list(parts.values()))


def _sum(values: list[Tensor]) -> Tensor:
    """Sum of one or more tensors."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total
