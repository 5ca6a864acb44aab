"""The keys that every name takes, completed and checked."""

import math
from dataclasses import dataclass
from typing import Any

from posbench import grid
from posbench.errors import ConfigError
from posbench.grid import Shape
from posbench.settings import one_of, positive
from posbench.show.keys import DTYPES, Keys

HEADS, HEAD_DIM, TRAIN_LENGTH = 8, 64, 2048
#: what a scheme that takes no text is shown on
PICTURE: Shape = (16, 16)
#: test length, or every extent of the test, in those of training, where no factor is given
TIMES = 4
#: the longest sequence that is shown
LONGEST = 10_000_000


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
    #: extents of a picture or clip in training and test; () = text
    shape: Shape = ()
    test_shape: Shape = ()

    def of(self, sampler: bool) -> dict[str, Any]:
        """The keys by name; only those that mean something to a sampler."""
        used = ("train_length", "test_length", "seed") if sampler else tuple(vars(self))
        values = {name: getattr(self, name) for name in used}
        shapes = {k: grid.text(v) for k, v in values.items() if isinstance(v, tuple) and v}
        return {k: v for k, v in values.items() if not isinstance(v, tuple)} | shapes


def check(keys: Keys) -> None:
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
    if keys.test_shape and not keys.shape:
        raise ConfigError(f"test_shape={keys.test_shape}: give shape=16x16 or the like too")


def given_shape(keys: Keys) -> Shape:
    """The shape that was asked for; () = none."""
    if keys.shape is None:
        return ()
    return grid.parse("shape", keys.shape, 3 if keys.shape.count("x") > 1 else 2)


def framed(keys: Keys, length: int, most: int | None, own_factor: bool, shape: Shape = ()) -> Frame:
    """The keys with their defaults; the default test length is `most` at most."""
    heads, per_head, width = keys.heads, keys.head_dim, keys.d_model
    if width and not heads:
        heads = width // per_head if per_head else HEADS
    heads = heads or HEADS
    per_head = per_head or (width and width // heads) or HEAD_DIM
    if width and width != heads * per_head:
        raise ConfigError(f"d_model={width} is not heads={heads} times head_dim={per_head}")
    lengths = _of_shape(keys, shape) if shape else _of_text(keys, length, most, own_factor)
    return Frame(
        heads=heads,
        head_dim=per_head,
        d_model=heads * per_head,
        layers=keys.layers,
        layer=keys.layer,
        seed=keys.seed,
        dtype=keys.dtype,
        **lengths,
    )


def _of_text(keys: Keys, train_length: int, most: int | None, own_factor: bool) -> dict[str, Any]:
    """Lengths in training and test."""
    factor = None if isinstance(keys.factor, str) else keys.factor
    test_length = math.ceil((factor or TIMES) * train_length)
    if factor is None and most is not None:
        test_length = min(test_length, most)
    if keys.test_length and factor and not own_factor and keys.test_length != test_length:
        raise ConfigError(
            f"factor={factor:g} and test_length={keys.test_length} contradict: the factor is "
            f"test_length / train_length, and train_length={train_length}"
        )
    return {"train_length": train_length, "test_length": keys.test_length or test_length}


def _of_shape(keys: Keys, shape: Shape) -> dict[str, Any]:
    """Extents in training and test; every extent of the test is `factor` times as large."""
    for name in ("train_length", "test_length"):
        if getattr(keys, name) is not None:
            raise ConfigError(
                f"{name}={getattr(keys, name)}: pictures and clips have a shape instead; here "
                f"shape={grid.text(shape)}, and test_shape"
            )
    factor = TIMES if keys.factor is None or isinstance(keys.factor, str) else keys.factor
    tested = tuple(math.ceil(extent * factor) for extent in shape)
    if keys.test_shape:
        given = grid.parse("test_shape", keys.test_shape, len(shape))
        if keys.factor is not None and not isinstance(keys.factor, str) and given != tested:
            raise ConfigError(
                f"factor={factor:g} and test_shape={keys.test_shape} contradict: at "
                f"shape={grid.text(shape)} the factor gives {grid.text(tested)}"
            )
        tested = given
    for name, one in (("shape", shape), ("test_shape", tested)):
        if grid.count(one) > LONGEST:
            raise ConfigError(f"{name}={grid.text(one)}: at most {LONGEST} tokens can be shown")
    lengths = {"train_length": grid.count(shape), "test_length": grid.count(tested)}
    return lengths | {"shape": shape, "test_shape": tested}
