"""What schemes have in common that turn pairs by coordinates: blocks of the head, rescaled axes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from posbench.encodings.base import PositionalEncoding, wide
from posbench.encodings.rope import Rope
from posbench.errors import ConfigError, UnsupportedRescale
from posbench.rescale.base import Ladder
from posbench.settings import Geometry

if TYPE_CHECKING:
    from posbench.rescale.base import Rescale

#: ways to split a head, besides a list of channels
SPLITS = ("auto", "equal", "hunyuan", "vjepa2")


def blocks(dim: int, axes: int, rule: str = "auto") -> list[int] | None:
    """Channels of a head of `dim` that turn with each axis; None where the rule gives none.

    auto: halves for two axes, d - 4 floor(d/6), 2 floor(d/6), 2 floor(d/6) for three; equal: d / A;
    hunyuan: 16/56/56 of 128; vjepa2: 2 floor(floor(d/A)/2) each, the rest does not turn.
    """
    if rule == "auto" and axes == 3:
        rest = 2 * (dim // 6)
        found = [dim - 2 * rest, rest, rest]
    elif rule == "hunyuan":
        found = [dim // 8, 7 * dim // 16, 7 * dim // 16] if axes == 3 else []
    else:
        each = dim // axes
        found = [each - each % 2 if rule == "vjepa2" else each] * axes
    whole = rule == "vjepa2" or sum(found) == dim
    return found if found and whole and all(n > 0 and n % 2 == 0 for n in found) else None


def split_head(geometry: Geometry, axes: int, option: str, rule: str | list[int]) -> list[int]:
    """Channels per axis by a rule or as given; ConfigError, naming the option, where it cannot."""
    dim = geometry.head_dim
    sizes = f"model.d_model={geometry.d_model} / model.n_heads={geometry.n_heads} gives heads of"
    if not isinstance(rule, str):
        numbers = all(isinstance(n, int) and n > 0 and n % 2 == 0 for n in rule)
        if len(rule) != axes or not numbers or sum(rule) != dim:
            raise ConfigError(
                f"{option}: {sizes} {dim}; needs {axes} even numbers above 0 with that sum, one "
                f"for each axis, not {sum(rule) if numbers else list(rule)}"
                + (f" in {len(rule)}" if numbers else "")
            )
        return list(rule)
    found = blocks(dim, axes, rule)
    if found is not None:
        return found
    near = [range(dim, 0, -1), range(dim, dim + 65)]
    fitting = [next((n for n in side if blocks(n, axes, rule)), None) for side in near]
    known = " or ".join(str(n) for n in fitting if n is not None)
    if not known:
        raise ConfigError(f"{option} is a rule for three axes, and positions here have {axes}")
    raise ConfigError(f"{sizes} {dim}: {option} on {axes} axes needs {known}")


class Along(NamedTuple):
    """A rescaling along one axis: the rule, the extent in training and the factor in use."""

    rule: "Rescale"
    length: int
    scale: float


class OnAxes(PositionalEncoding):
    """A scheme whose positions are coordinates, each of an axis with an extent of its own."""

    #: extents of the test, where they are known
    test_shape: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Number of axes of the positions that it is given."""
        given = len(self.geometry.shape)
        return given if given in self.axes else self.axes[0]

    def measured_at(self, shape: tuple[int, ...]) -> PositionalEncoding:
        return self.replace(test_shape=shape)

    def along(self, rule: "Rescale", train_length: int, test_length: int) -> dict[int, Along]:
        """axis -> what a rescaling does along it, for the axes that it acts on.

        Each has the factor of its own extents; where every axis is asked for, the largest of them.
        """
        train, test = self.geometry.shape, self.test_shape
        if self.count == 1:
            train, test = (train_length,), (test_length,)
        if not len(train) == len(test) == self.count:
            raise UnsupportedRescale(
                f"{self.label} cannot be rescaled by {rule.name}: the extents of the test along "
                f"{self.count} axes are not known"
            )
        lengths = list(zip(train, test, strict=True))
        widest = max(lengths, key=lambda both: rule.scale(*both))
        found = {}
        for axis, grows in enumerate(self.geometry.grows):
            if grows or rule.every_axis:
                both = widest if rule.every_axis else lengths[axis]
                found[axis] = Along(rule.at(*both), train[axis], rule.scale(*both))
        return found


class RopeOnAxes(OnAxes, Rope):
    """RoPE whose pairs each turn with one axis of the positions."""

    #: pairs of all axes stand on one ladder; else those of each axis are a ladder of their own
    one_ladder = False

    @dataclass
    class Config(Rope.Config):
        base: float = 10000.0

    def turning_with(self, count: int) -> Tensor:
        """Axis [r/2] that each pair turns with, of so many; -1 = none."""
        raise NotImplementedError

    def angles(self, pos_BTA: Tensor) -> Tensor:
        kind, device = wide(pos_BTA.device), pos_BTA.device
        # a last coordinate of 0, for the pairs that turn with none
        coordinates = F.pad(pos_BTA.to(kind), (0, 1))
        turning = self.turning_with(pos_BTA.shape[-1]).to(device)
        return coordinates[..., turning] * self.inv_freq.to(device, kind)

    def own_tables(self, distances: Tensor) -> dict[str, Any]:
        """Frequencies as they act, and the axis of each pair: 0 and -1 where it turns with none."""
        turning = self.turning_with(self.count)
        acting = {"inv_freq": (self.inv_freq * (turning >= 0)).tolist()}
        return super().own_tables(distances) | acting | {"axis_of": turning.tolist()}

    def rescaled(self, rule: "Rescale", train_length: int, test_length: int) -> PositionalEncoding:
        """Each axis by the rule at its own extents; the scores once, by the largest factor."""
        acting = self.along(rule, train_length, test_length)
        if not acting:
            return self
        turning, new = self.turning_with(self.count), self.inv_freq.clone()
        for axis, own in acting.items():
            mine = turning == axis
            rungs = torch.ones_like(mine) if self.one_ladder else mine
            if mine.any():
                theta = self.inv_freq[rungs]
                ladder = Ladder(theta, self.base, 2 * len(theta), own.length)
                new[mine] = own.rule.frequencies(ladder, own.scale)[mine[rungs]]
        most = max(acting.values(), key=lambda own: own.scale)
        return self.retuned(new, most.rule, most.scale)
