"""One scheme in some layers, another in others."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from posbench.encodings.base import PositionalEncoding
from posbench.encodings.combined import Combined
from posbench.encodings.stack import make
from posbench.errors import ConfigError
from posbench.parts import check_options
from posbench.registry import register
from posbench.settings import Geometry


@register
class Layers(Combined):
    """A scheme for every layer, e.g. posenc=layers posenc.pattern=[rope,rope,rope,none].

    A pattern shorter than the model repeats; its length must divide n_layers. An entry may join
    schemes: `none+logn`. Layers of one entry share one scheme, hence what that scheme shares
    between layers. With model.window=[w,w,w,null] the pattern is that of Llama 4 and SmolLM3
    (arXiv:2501.18795).
    """

    family = "combined"
    paper = "arXiv:2501.18795"

    @dataclass
    class Config:
        #: a scheme for every layer; `a+b` joins two
        pattern: list[str] = field(default_factory=lambda: ["rope", "none"])
        #: options of the schemes by name, e.g. {rope: {base: 500000}}
        options: dict[str, Any] = field(default_factory=dict)

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        if not config.pattern:
            raise ConfigError("posenc.pattern=[]: name a scheme for every layer")
        layers, pattern = geometry.n_layers, config.pattern
        if layers % len(pattern):
            raise ConfigError(
                f"posenc.pattern={pattern}: its length {len(pattern)} must divide "
                f"model.n_layers={layers}"
            )
        self.pattern = pattern * (layers // len(pattern))
        check_options(
            self.group, config.options, [n for entry in pattern for n in entry.split("+")]
        )
        parts: dict[str, PositionalEncoding] = {}
        for entry in dict.fromkeys(pattern):
            own = replace(geometry, n_layers=self.pattern.count(entry))
            parts[entry] = part = make(entry, config.options, own)
            if "embed" in part.hooks and len(set(pattern)) > 1:
                raise ConfigError(
                    f"posenc.pattern: {entry} acts once, before the first layer; "
                    "it cannot belong to some layers only"
                )
        self.hold(parts)

    def for_layer(self, layer: int) -> tuple[PositionalEncoding, int]:
        entry = self.pattern[layer]
        part = dict(zip(self.parts, self.members, strict=True))[entry]
        return part, self.pattern[:layer].count(entry)

    @property
    def label(self) -> str:
        names = dict(zip(self.parts, (p.label for p in self.members), strict=True))
        return "-".join(names[entry] for entry in self.config.pattern)

    def embed(self, x_BTD: Tensor, pos_BTA: Tensor) -> Tensor:
        return self.members[0].embed(x_BTD, pos_BTA)

    def changed(
        self, change: Callable[[PositionalEncoding], PositionalEncoding]
    ) -> PositionalEncoding:
        new: Layers = self.replace()  # type: ignore[assignment]
        new.hold(self.change_parts(change))
        return new
