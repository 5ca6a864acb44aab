"""What is checked: a scheme, a rescaling or a position sampler, on a small model.

A scheme is checked with every number of position axes that it understands: on text, and on pictures
and clips.
"""

import dataclasses
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posbench import registry
from posbench.checks.base import labelled
from posbench.checks.inputs import Layer, difference, extents, positions, tokens
from posbench.checks.small import HEAD, decoder, fitting, layers_of, nudge
from posbench.encodings.base import PositionalEncoding, Reduction
from posbench.model import Decoder
from posbench.positions.base import PositionSampler
from posbench.rescale.base import Rescale


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

    @property
    def axes(self) -> int:
        """Number of position axes that it is given."""
        return 1

    @property
    def label(self) -> str:
        """What a note calls it."""
        return labelled(self.name, self.axes)

    @property
    def variants(self) -> Sequence["Subject"]:
        """The subject with every number of position axes that it understands."""
        return [self]

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
    def cases(self) -> list[Reduction]:
        """The special cases in which it equals another."""
        found: list[Reduction] = self.cls.reductions()
        return found

    @property
    def depends_on_total_length(self) -> bool:
        """Declared: appended tokens change earlier outputs."""
        return self.encoding.depends_on_total_length

    def has(self, *hooks: str) -> bool:
        """Whether a layer's scheme defines one of the hooks."""
        return any(layer.hooks & set(hooks) for layer in self.layers)

    def fitting(self, length: int) -> int:
        """The length, or the longest one that it is defined for."""
        return fitting(self.encoding, length, self.axes)

    def grown(self, trained: PositionalEncoding, length: int) -> PositionalEncoding:
        """What a rescaling is applied to in a test of so many tokens."""
        return trained.measured_at(extents(length, self.axes))

    def hidden(
        self,
        model: Decoder,
        ids: Tensor,
        start: int | Tensor = 0,
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

    def __init__(self, name: str, axes: int = 0):
        super().__init__(name)
        self._axes = axes

    @property
    def axes(self) -> int:
        return self._axes or int(self.cls.axes[0])

    @cached_property
    def variants(self) -> list[Subject]:
        understood = () if self.broken else self.encoding.axes
        others = [Scheme(self.name, axes) for axes in understood if axes != self.axes]
        return [self, *others]

    @property
    def cases(self) -> list[Reduction]:
        """Those that hold on its axes: if the other scheme takes any that it takes, on these."""

        def shared(case: Reduction) -> set[int]:
            return set(self.cls.axes) & set(subject(self.group, case.equals).cls.axes)

        return [c for c in super().cases if self.axes in (shared(c) or {self.axes})]

    def model(self, seed: int = 0, train_length: int | None = None, moved: bool = True) -> Decoder:
        made = decoder(self.name, train_length or self.length, seed=seed, axes=self.axes)
        if moved:
            nudge(made.posenc)
        return made

    def acting(self, model: Decoder, length: int) -> PositionalEncoding:
        return model.posenc

    def distance_to(self, case: Reduction) -> float:
        """Where the other takes fewer axes, the rest of its own are constant."""
        other: Scheme = subject(self.group, case.equals)
        axes = self.axes if self.axes in other.cls.axes else other.axes
        mine = decoder(self.name, self.length, case.options, axes=self.axes)
        theirs = decoder(other.name, self.length, case.equal_options, axes=axes)
        if case.prepare is not None:
            case.prepare(mine.posenc)
        ids = tokens(min(self.fitting(200), other.fitting(200)), batch=1)
        pos = positions(ids.shape[1], axes)
        ours = mine.hidden(ids, pos_BTA=F.pad(pos, (0, self.axes - axes)))
        return difference(ours, theirs.hidden(ids, pos_BTA=pos))


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
