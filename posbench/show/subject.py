"""The objects that a name and its keys describe."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from posbench.encodings.base import PositionalEncoding
from posbench.errors import ConfigError
from posbench.overrides import plain
from posbench.parts import merged
from posbench.positions.base import PositionSampler
from posbench.rescale.base import Rescale
from posbench.seeds import seeded
from posbench.settings import Geometry, one_of, positive
from posbench.show.ask import Named, fields, find, sort
from posbench.show.keys import DTYPES, FRACTION, PARTIAL, ROTARY, Keys

HEADS, HEAD_DIM, TRAIN_LENGTH = 8, 64, 2048
#: test length in training lengths, where neither it nor a factor is given
TIMES = 4
#: training length at which a map of positions can be read, and the longest test that is drawn out
MAP_LENGTH, MAP_LIMIT = 16, 4096


@dataclass(frozen=True)
class Frame:
    """The keys that every name takes, completed."""

    heads: int
    head_dim: int
    d_model: int
    layers: int
    layer: int
    train_length: int
    test_length: int
    seed: int
    dtype: str

    def of(self, sampler: bool) -> dict[str, Any]:
        """The keys by name; only those that mean something to a sampler."""
        used = ("train_length", "test_length", "seed") if sampler else tuple(vars(self))
        return {name: getattr(self, name) for name in used}


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
    _check(keys)

    def at(length: int, most: int | None = None) -> Subject:
        made = Subject(named, keys, _frame(keys, length, most, "factor" in own))
        if beneath is None:
            _hold(made, mine)
        else:
            made.trained = _scheme(beneath, its, made.frame)
            _rescale(made, mine)
        return made

    with torch.no_grad():
        found = at(keys.train_length or TRAIN_LENGTH)
        if found.maps:
            found = at(keys.train_length or MAP_LENGTH, MAP_LIMIT)
        elif found.sampler and found.max_length:
            found = at(keys.train_length or TRAIN_LENGTH, found.max_length)
    _check_fit(found)
    return found


def _hold(made: Subject, options: Mapping[str, Any]) -> None:
    """The scheme or sampler."""
    named, frame = made.named, made.frame
    if named.group == "posenc":
        made.trained = made.encoding = _scheme(named, options, frame)
        made.config = made.encoding.config
        return
    made.config = merged(named.cls.Config, options)
    made.sampler = named.cls(made.config, frame.train_length)


def _scheme(named: Named, options: Mapping[str, Any], frame: Frame) -> PositionalEncoding:
    """A scheme with the initial values of a model of this seed."""
    size = Geometry(frame.d_model, frame.heads, frame.layers, frame.train_length)
    encoding: PositionalEncoding = named.cls(
        merged(named.cls.Config, {**named.preset, **options}), size
    )
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
    lengths = made.frame.train_length, made.frame.test_length
    made.encoding = made.rule.applied(made.trained, *lengths)


def pairs(encoding: PositionalEncoding) -> int:
    """Number of rotary pairs; 0 where it does not rotate by fixed frequencies."""
    return len(encoding.own_tables(torch.zeros(0, dtype=torch.int64)).get("inv_freq", []))


#: the longest sequence that is shown
LONGEST = 10_000_000


def _check(keys: Keys) -> None:
    """Refuse numbers that can fit nothing."""
    sizes = ("heads", "head_dim", "d_model", "layers", "train_length", "test_length")
    positive({name: getattr(keys, name) for name in sizes})
    for name, most in (("heads", 1024), ("train_length", LONGEST), ("test_length", LONGEST)):
        if (getattr(keys, name) or 0) > most:
            raise ConfigError(f"{name}={getattr(keys, name)}: at most {most} can be shown")
    one_of("dtype", keys.dtype, DTYPES)
    positive({"layer": keys.layer, "seed": keys.seed}, least=0)
    if keys.layer >= keys.layers:
        raise ConfigError(f"layer={keys.layer}: must be below layers={keys.layers}")
    for name in ("distances", "positions"):
        values = getattr(keys, name)
        if values == []:
            raise ConfigError(f"{name}=[]: give at least one, or leave it out")
        if values and min(values) < 0:
            raise ConfigError(f"{name}={values}: must not be negative")
        if values and max(values) >= 2**40:
            raise ConfigError(f"{name}={values}: below 2^40")
    if isinstance(keys.factor, str) and keys.factor != "auto":
        raise ConfigError(f"factor={keys.factor}: a number, or auto")
    if isinstance(keys.factor, int | float) and not 0 < keys.factor < math.inf:
        raise ConfigError(f"factor={keys.factor}: must be above 0")


def _frame(keys: Keys, train_length: int, most: int | None, own_factor: bool) -> Frame:
    """The keys with their defaults; the default test length is `most` at most."""
    heads, per_head, width = keys.heads, keys.head_dim, keys.d_model
    if width and not heads:
        heads = width // per_head if per_head else HEADS
    heads = heads or HEADS
    per_head = per_head or (width and width // heads) or HEAD_DIM
    if width and width != heads * per_head:
        raise ConfigError(f"d_model={width} is not heads={heads} times head_dim={per_head}")
    factor = None if isinstance(keys.factor, str) else keys.factor
    test_length = math.ceil((factor or TIMES) * train_length)
    if factor is None and most is not None:
        test_length = min(test_length, most)
    if keys.test_length and factor and not own_factor and keys.test_length != test_length:
        raise ConfigError(
            f"factor={factor:g} and test_length={keys.test_length} contradict: the factor is "
            f"test_length / train_length, and train_length={train_length}"
        )
    return Frame(
        heads=heads,
        head_dim=per_head,
        d_model=heads * per_head,
        layers=keys.layers,
        layer=keys.layer,
        train_length=train_length,
        test_length=keys.test_length or test_length,
        seed=keys.seed,
        dtype=keys.dtype,
    )


def _check_fit(found: Subject) -> None:
    """Refuse positions that it does not have."""
    frame, most, name = found.frame, found.max_length, found.named.label
    last = max(found.keys.positions or [0])
    if most is not None and last >= most:
        raise ConfigError(f"positions=[{last}]: {name} is defined for {most} positions")
    if found.sampler and most is not None and frame.test_length > most:
        raise ConfigError(f"test_length={frame.test_length}: {name} has positions for {most}")
    if found.maps and frame.test_length > MAP_LIMIT:
        raise ConfigError(
            f"test_length={frame.test_length}: relative positions are a matrix, shown up to "
            f"{MAP_LIMIT}"
        )
