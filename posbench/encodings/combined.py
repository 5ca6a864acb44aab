"""What schemes that consist of other schemes have in common."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from posbench import registry
from posbench.encodings.base import PositionalEncoding, Tied
from posbench.errors import ConfigError, NotRescalable
from posbench.parts import configured
from posbench.settings import Geometry


class Combined(PositionalEncoding):
    """A scheme of named parts, whose properties follow from theirs."""

    family = "combined"

    def hold(self, parts: dict[str, PositionalEncoding]) -> None:
        """Take the parts, and declare what follows from what they declare."""
        self.parts = nn.ModuleDict(parts)
        own = list(parts.values())
        self.hooks = frozenset().union(*(p.hooks for p in own))
        self.learnable = any(p.learnable for p in own)
        self.shift_invariant = all(p.shift_invariant for p in own)
        self.depends_on_total_length = any(p.depends_on_total_length for p in own)
        self.needs_train_length = any(p.needs_train_length for p in own)
        self.norm_preserving = all(p.norm_preserving for p in own)
        self.per_layer = any(p.per_layer for p in own)
        self.compilable = all(p.compilable for p in own)
        biased = [p for p in own if p.hooks - {"embed", "rotate", "logit_scale"}]
        self.monotone = bool(biased) and all(p.monotone for p in biased)
        self.axes = tuple(sorted(set(own[0].axes).intersection(*(p.axes for p in own[1:]))))
        if not self.axes:
            each = "; ".join(f"{n}: {' or '.join(map(str, p.axes))}" for n, p in parts.items())
            raise ConfigError(f"posenc={self.name}: its parts need other numbers of axes ({each})")

    @property
    def members(self) -> list[PositionalEncoding]:
        """The parts, in order."""
        return [cast(PositionalEncoding, p) for p in self.parts.values()]

    def having(self, hook: str) -> list[tuple[str, PositionalEncoding]]:
        """(name, part) of the parts that define a hook, in order."""
        return [(n, p) for n, p in zip(self.parts, self.members, strict=True) if hook in p.hooks]

    @property
    def max_length(self) -> int | None:
        return min((p.max_length for p in self.members if p.max_length is not None), default=None)

    def defined_for(self, shape: tuple[int, ...]) -> bool:
        return all(p.defined_for(shape) for p in self.members)

    def measured_at(self, shape: tuple[int, ...]) -> PositionalEncoding:
        new = self.replace()
        parts = zip(self.parts, self.members, strict=True)
        new.parts = nn.ModuleDict({name: part.measured_at(shape) for name, part in parts})
        return new

    def tied(self) -> list[Tied]:
        return [t for p in self.members for t in p.tied()]

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        _, part, rest = name.split(".", 2)
        cast(PositionalEncoding, self.parts[part]).init_parameter(rest, parameter, generator)

    def param_groups(self) -> list[dict[str, Any]]:
        return [g for p in self.members for g in p.param_groups()]

    def project(self) -> None:
        for part in self.members:
            part.project()

    def own_tables(self, distances: Tensor) -> dict[str, Any]:
        return {k: v for p in self.members for k, v in p.own_tables(distances).items()}

    def change_parts(
        self, change: Callable[[PositionalEncoding], PositionalEncoding]
    ) -> dict[str, PositionalEncoding]:
        """The parts, those that have what it acts on changed; NotRescalable where none has."""
        found: dict[str, PositionalEncoding] = {}
        refusals = []
        for name, part in zip(self.parts, self.members, strict=True):
            try:
                found[name] = change(part)
            except NotRescalable as error:
                refusals.append(error)
                found[name] = part
        if len(refusals) == len(found):
            raise refusals[0]
        return found


def make_part(
    option: str, name: str, options: dict[str, Any], geometry: Geometry
) -> PositionalEncoding:
    """A scheme by name, which `option` holds, with its options among those of all parts."""
    cls = registry.get("posenc", name, option)
    if issubclass(cls, Combined):
        raise ConfigError(f"{option}={name}: cannot be a part of another scheme")
    part: PositionalEncoding = cls(configured(cls, options.get(name, {})), geometry)
    return part
