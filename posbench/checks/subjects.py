"""What is checked: a scheme, a rescaling or a position sampler, on a small model.

The sizes differ from each other wherever a mixed-up axis could hide: 3 heads of 24 channels, width
72, 2 layers, batches of 2.
"""

import dataclasses
from functools import cache, cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from posbench import model as models
from posbench import registry
from posbench.checks.inputs import VOCABULARY, Layer, difference, normal, positions, tokens
from posbench.encodings.base import PositionalEncoding, Reduction
from posbench.model import Decoder
from posbench.positions.base import PositionSampler
from posbench.rescale.base import Rescale
from posbench.settings import Geometry, ModelConfig

WIDTH, HEADS, LAYERS, HEAD = 72, 3, 2, 24


def decoder(
    posenc: str, train_length: int, options: dict[str, Any] | None = None, seed: int = 0
) -> Decoder:
    """A small model in float64; its weights are a function of the seed and their names."""
    cls = registry.get("posenc", posenc)
    encoding = cls(cls.Config(**(options or {})), Geometry(WIDTH, HEADS, LAYERS, train_length))
    sampler = registry.get("positions", "standard")
    config = ModelConfig(d_model=WIDTH, n_layers=LAYERS, n_heads=HEADS)
    made = Decoder(config, VOCABULARY, encoding, sampler(sampler.Config(), train_length))
    models.initialise(made, seed)
    return made.double()


def nudge(encoding: PositionalEncoding, size: float = 0.1, seed: int = 1) -> None:
    """Move own parameters away from their initial values, which may be special, in place."""
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.add_(normal(*parameter.shape, seed=seed, dtype=parameter.dtype), alpha=size)
        encoding.project()


def layers_of(encoding: PositionalEncoding) -> list[Layer]:
    """The schemes that act in the layers of the small model, each once."""
    found: dict[int, Layer] = {}
    for layer in range(LAYERS):
        own, index = encoding.for_layer(layer)
        found.setdefault(id(own), Layer(own, index))
    return list(found.values())


class Given(PositionSampler):
    """Stands for any positions that a caller hands over: nothing is known of their distances."""

    name = "given"

    def draw(self, batch: int, length: int, generator: torch.Generator, training: bool) -> Tensor:
        return positions(length)


class Subject:
    """Common to all: the class, and whether it can be built without options."""

    group: ClassVar[str]

    def __init__(self, name: str):
        self.name = name

    @cached_property
    def cls(self) -> Any:
        """The registered class."""
        return registry.get(self.group, self.name)

    @cached_property
    def broken(self) -> str:
        """Why it cannot be built; empty where it can."""
        try:
            self.build()
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return ""

    def build(self) -> Any:
        """One of it."""
        raise NotImplementedError


class Encoded(Subject):
    """Something whose result is an encoding that acts in a model."""

    #: L, the training length
    length: ClassVar[int]
    #: T, the length that an encoding is tested at unless a check says otherwise
    test_length: ClassVar[int]

    def model(self, seed: int = 0, train_length: int | None = None, moved: bool = True) -> Decoder:
        """A new trained model in float64; own parameters are `moved` from their initial values."""
        raise NotImplementedError

    def acting(self, model: Decoder, length: int) -> PositionalEncoding:
        """The encoding that a trained model is tested with at a length."""
        raise NotImplementedError

    def distance_to(self, case: Reduction) -> float:
        """How far outputs are from those of what it should equal in a special case."""
        raise NotImplementedError

    def build(self) -> Any:
        return self.encoding

    @cached_property
    def encoding(self) -> PositionalEncoding:
        """The encoding at the test length, shared by the checks: to look at only."""
        return self.acting(self.model(), self.test_length)

    @cached_property
    def layers(self) -> list[Layer]:
        """The schemes that act, each once."""
        return layers_of(self.encoding)

    @property
    def axes(self) -> int:
        """Number of position axes that it is given."""
        return self.encoding.axes[0]

    @property
    def depends_on_total_length(self) -> bool:
        """Declared: appended tokens change earlier outputs."""
        return self.encoding.depends_on_total_length

    def has(self, *hooks: str) -> bool:
        """Whether a layer's scheme defines one of the hooks."""
        return any(layer.hooks & set(hooks) for layer in self.layers)

    def fitting(self, length: int) -> int:
        """The length, or the longest one that it is defined for."""
        return min(length, self.encoding.max_length or length)

    def hidden(
        self,
        model: Decoder,
        ids: Tensor,
        start: int = 0,
        step: int = 1,
        encoding: PositionalEncoding | None = None,
        consecutive: bool = True,
    ) -> Tensor:
        """Stream [B, T, D] of tokens after the last block, at positions from `start` on."""
        length = ids.shape[1]
        if not consecutive:
            model.sampler = Given(None, self.length)
        if encoding is None:
            encoding = self.acting(model, length)
        return model.hidden(ids, encoding, positions(length, self.axes, start, step))


class Scheme(Encoded):
    """A positional scheme."""

    group = "posenc"
    length = 128
    test_length = 128

    def model(self, seed: int = 0, train_length: int | None = None, moved: bool = True) -> Decoder:
        made = decoder(self.name, train_length or self.length, seed=seed)
        if moved:
            nudge(made.posenc)
        return made

    def acting(self, model: Decoder, length: int) -> PositionalEncoding:
        return model.posenc

    def distance_to(self, case: Reduction) -> float:
        other: Scheme = subject(self.group, case.equals)
        mine = decoder(self.name, self.length, case.options)
        theirs = decoder(other.name, self.length, case.equal_options)
        if case.prepare is not None:
            case.prepare(mine.posenc)
        ids = tokens(min(self.fitting(200), other.fitting(200)), batch=1)
        return difference(self.hidden(mine, ids), other.hidden(theirs, ids))


class Rule(Encoded):
    """A rescaling, on a trained scheme that it accepts: rope where it can."""

    group = "rescale"
    length = 16
    test_length = 48

    def make(self, dim: int = HEAD, **options: Any) -> Rescale:
        """One with the class's own example of what must be given."""
        given = {**self.cls.example(dim), **options}
        rule: Rescale = self.cls(self.cls.Config(**given))
        return rule

    def takes(self, option: str) -> bool:
        """Whether its Config has a field."""
        return option in {f.name for f in dataclasses.fields(self.cls.Config)}

    @property
    def depends_on_total_length(self) -> bool:
        return self.make().depends_on_total_length or self.encoding.depends_on_total_length

    @property
    def scales(self) -> bool:
        """Whether it makes frequencies from a scale s."""
        own = self.cls
        by_scale = self.takes("factor") or own.scale is not Rescale.scale
        return own.frequencies is not Rescale.frequencies and by_scale

    def model(self, seed: int = 0, train_length: int | None = None, moved: bool = True) -> Decoder:
        return decoder("rope", train_length or self.length, seed=seed)

    def acting(self, model: Decoder, length: int) -> PositionalEncoding:
        return self.make().applied(model.posenc, model.posenc.geometry.train_length, length)

    def distance_to(self, case: Reduction) -> float:
        other: Rule = subject(self.group, case.equals)
        model, worst = self.model(), 0.0
        for length in (self.length // 2, self.length, self.test_length):
            rules = self.make(**case.options), other.make(**case.equal_options)
            both = [rule.applied(model.posenc, self.length, length) for rule in rules]
            outs = [self.hidden(model, tokens(length), encoding=encoding) for encoding in both]
            worst = max(worst, difference(*outs))
        return worst


class Sampler(Subject):
    """A position sampler."""

    group = "positions"
    length = 32

    def build(self) -> PositionSampler:
        made: PositionSampler = self.cls(self.cls.Config(), self.length)
        return made


#: config group -> what is checked there
SUBJECTS: dict[str, type[Subject]] = {s.group: s for s in (Scheme, Rule, Sampler)}


@cache
def subject(group: str, name: str) -> Any:
    """A subject whose models are made once."""
    return SUBJECTS[group](name)
