"""The objects that a name and its keys describe."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from posbench import grid
from posbench.encodings.base import PositionalEncoding, made
from posbench.errors import ConfigError
from posbench.grid import Shape
from posbench.overrides import plain
from posbench.parts import merged
from posbench.positions.base import PositionSampler
from posbench.rescale.base import Rescale
from posbench.seeds import seeded
from posbench.settings import Geometry
from posbench.show.ask import Named, fields, find, sort
from posbench.show.frame import PICTURE, TRAIN_LENGTH, Frame, check, framed, given_shape
from posbench.show.keys import FRACTION, PARTIAL, ROTARY, Keys

#: training length at which a map of positions can be read, and the longest test that is drawn out
MAP_LENGTH, MAP_LIMIT = 16, 4096


@dataclass
class Subject:
    """What is shown."""

    named: Named
    keys: Keys
    frame: Frame
    #: options of the scheme, rescaling or sampler
    config: Any = None
    #: the scheme as trained, and as tested (under the rescaling)
    trained: PositionalEncoding | None = None
    encoding: PositionalEncoding | None = None
    rule: Rescale | None = None
    sampler: PositionSampler | None = None
    #: options that are an example, since only a user can choose them
    example: tuple[str, ...] = ()

    @property
    def maps(self) -> bool:
        """Whether a rescaling puts other positions in place of the trained ones."""
        hook, tested, trained = "relative_position", self.encoding, self.trained
        return bool(tested and trained and hook in tested.hooks - trained.hooks)

    @property
    def on_a_grid(self) -> bool:
        """Whether it is given the coordinates of a picture or clip."""
        return self.trained is not None and self.trained.on_a_grid

    @property
    def lengths(self) -> tuple[int, int]:
        """Extents of training and test along the axis that grows most; a text's lengths."""
        frame = self.frame
        if not self.on_a_grid:
            return frame.train_length, frame.test_length
        both = zip(frame.shape, frame.test_shape, strict=True)
        return max(both, key=lambda extents: extents[1] / extents[0])

    @property
    def max_length(self) -> int | None:
        """Number of positions it is defined for; None = any."""
        return (self.encoding or self.sampler or PositionSampler(None, 0)).max_length

    @property
    def distances(self) -> list[int]:
        """Query minus key: those given, or all to 256 and eight an octave to the test length."""
        return self.keys.distances or spread(self.frame.test_length, 256, 8)

    @property
    def positions(self) -> list[int]:
        """Those given, or all to 16 and two an octave to the test length."""
        if self.keys.positions:
            return self.keys.positions
        return spread(min(self.frame.test_length, self.max_length or math.inf), 16, 2)


def spread(stop: int | float, dense: int, octave: int) -> list[int]:
    """From 0 to stop - 1: all to `dense`, then so many an octave, and the last one."""
    found, step = list(range(min(int(stop), dense + 1))), 1
    while (value := round(dense * 2 ** (step / octave))) < stop:
        found.append(value)
        step += 1
    return list(dict.fromkeys([*found, int(stop) - 1]))


def subject(text: str, given: Mapping[str, Any]) -> Subject:
    """What a name and its keys describe; ConfigError where they are unknown or do not fit."""
    named, given = find(text), {key: plain(value) for key, value in given.items()}
    if (named.group, named.name) == ("posenc", ROTARY) and FRACTION in given:
        named = Named("posenc", PARTIAL, PARTIAL, named.preset)
    own, general = fields(named.cls.Config), fields(Keys)
    beneath: Named | None = None
    if named.group == "rescale":
        default = PARTIAL if FRACTION in given and FRACTION not in own else ROTARY
        beneath = find(f"posenc={given.get('posenc', default)}")
    else:
        general.remove("posenc")
    inner = fields(beneath.cls.Config) if beneath else []
    mine, its, rest = sort(named.label, given, (own, inner, general))
    keys = merged(Keys, rest)
    check(keys)
    shown = beneath or named

    def at(length: int, most: int | None = None, shape: Shape = ()) -> Subject:
        shape = shape or given_shape(keys)
        subject = Subject(named, keys, framed(keys, length, most, "factor" in own, shape))
        if named.group == "positions":
            subject.config = merged(named.cls.Config, mine)
            subject.sampler = named.cls(subject.config, subject.frame.train_length)
            return subject
        subject.trained = _scheme(shown, its if beneath else mine, subject.frame)
        if 1 not in subject.trained.axes and not subject.on_a_grid:
            if shape:
                axes = " or ".join(map(str, subject.trained.axes))
                raise ConfigError(
                    f"shape={grid.text(shape)}: {shown.label} needs positions of {axes} axes"
                )
            return at(length, most, PICTURE)
        if beneath is None:
            subject.encoding, subject.config = subject.trained, subject.trained.config
        else:
            _rescale(subject, mine)
        return subject

    with torch.no_grad():
        found = at(keys.train_length or TRAIN_LENGTH)
        if found.maps:
            found = at(keys.train_length or MAP_LENGTH, MAP_LIMIT)
        elif found.sampler and found.max_length:
            found = at(keys.train_length or TRAIN_LENGTH, found.max_length)
    _check_fit(found)
    return found


def _scheme(named: Named, options: Mapping[str, Any], frame: Frame) -> PositionalEncoding:
    """A scheme with the initial values of a model of this seed."""
    size = Geometry(
        frame.d_model, frame.heads, frame.layers, frame.train_length, train_shape=frame.shape
    )
    encoding = made(named.cls, merged(named.cls.Config, {**named.preset, **options}), size)
    for name, parameter in encoding.named_parameters():
        encoding.init_parameter(name, parameter, seeded(frame.seed, f"posenc.{name}"))
    return encoding.to(getattr(torch, frame.dtype))


def _rescale(made: Subject, options: Mapping[str, Any]) -> None:
    """The rule, and the trained scheme under it."""
    assert made.trained is not None
    cls = made.named.cls
    example = cls.example(2 * pairs(made.trained))
    example = {k: v for k, v in example.items() if k not in options}
    made.example = tuple(example)
    made.config = merged(cls.Config, {**made.named.preset, **example, **options})
    made.rule = cls(made.config)
    frame = made.frame
    trained = made.trained.measured_at(frame.test_shape) if frame.shape else made.trained
    made.encoding = made.rule.applied(trained, frame.train_length, frame.test_length)


def pairs(encoding: PositionalEncoding) -> int:
    """Number of rotary pairs; 0 where it does not rotate by fixed frequencies."""
    return len(encoding.own_tables(torch.zeros(0, dtype=torch.int64)).get("inv_freq", []))


def _check_fit(found: Subject) -> None:
    """Refuse positions that it does not have."""
    frame, most, name = found.frame, found.max_length, found.named.label
    last = max(found.keys.positions or [0])
    if most is not None and last >= most:
        raise ConfigError(f"positions=[{last}]: {name} is defined for {most} positions")
    asked = max([0, *(found.keys.positions or []), *(found.keys.distances or [])])
    if found.on_a_grid and asked >= frame.test_length:
        raise ConfigError(
            f"{asked}: positions and distances are counted in raster order, and "
            f"test_shape={grid.text(frame.test_shape)} has {frame.test_length} tokens"
        )
    if found.sampler and most is not None and frame.test_length > most:
        raise ConfigError(f"test_length={frame.test_length}: {name} has positions for {most}")
    if found.maps and frame.test_length > MAP_LIMIT:
        raise ConfigError(
            f"test_length={frame.test_length}: relative positions are a matrix, shown up to "
            f"{MAP_LIMIT}"
        )
