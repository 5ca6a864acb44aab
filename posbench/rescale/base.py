"""Interface of rescalings: new frequencies and a new logit scale from a factor s."""

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from posbench import settings
from posbench.encodings.base import Reduction
from posbench.errors import ConfigError, UnsupportedRescale

if TYPE_CHECKING:
    from posbench.encodings.base import PositionalEncoding

#: options that `scale` gives where they are auto
_SCALES = ("factor", "group", "k")
#: axes that a rescaling acts along
GROWN, ALL = "grown", "all"


@dataclass(frozen=True)
class Ladder:
    """A trained rotary ladder: frequencies [dim/2] in float64, base, rotary size and L."""

    inv_freq: Tensor
    base: float
    dim: int
    train_length: int

    @property
    def turns(self) -> Tensor:
        """Full turns r_p = L * theta_p / (2 pi) that each pair makes within the training length."""
        return self.train_length * self.inv_freq / (2 * math.pi)

    @property
    def pairs(self) -> Tensor:
        """Indices 0, 1, ... [dim/2] of the pairs, the fastest first, in float64."""
        return torch.arange(self.dim // 2, dtype=torch.float64)


class Rescale:
    """Base class: what a trained encoding becomes at a test length.

    A rule of frequencies defines `frequencies`, and `rotation_scale` where it has a temperature; a
    rule that acts on something else defines `on`. Past its design range a rule goes on; it raises
    UnsupportedRescale where its formula gives nothing, and ConfigError for options that contradict
    each other or the rotary size.
    """

    group: ClassVar[str] = "rescale"
    name: ClassVar[str]
    family: ClassVar[str] = "rescaling"
    paper: ClassVar[str] = ""
    #: what it acts on: frequencies, positions or scores; a stack takes one rule for each
    acts_on: ClassVar[str] = "frequencies"
    #: what becomes of a frequency depends on its place in the ladder, or on its turns within L
    by_place: ClassVar[bool] = True
    #: acts along axes of pictures and clips on which tests do not grow, too
    every_axis: bool = False

    @dataclass
    class Config:
        #: s = target / training length; auto = max(1, test length / L), anew for every length
        factor: int | float | str = "auto"
        #: with several axes: those along which tests grow, each by its own s (grown), or all of
        #: them by the largest s (all)
        axes: str = GROWN

    @classmethod
    def example(cls, dim: int) -> dict[str, Any]:
        """Options to show and check it with, where a field must be given (rotary size `dim`)."""
        return {}

    @classmethod
    def reductions(cls) -> list[Reduction]:
        """Special cases in which it equals another rescaling, at every length."""
        known = {f.name for f in dataclasses.fields(cls.Config)}
        return [Reduction("factor = 1", "none", {"factor": 1})] if "factor" in known else []

    def __init__(self, config: Any):
        self.config = config
        factor = getattr(config, "factor", None)
        if getattr(config, "axes", GROWN) == ALL:
            self.every_axis = True
        if isinstance(factor, str) and factor != "auto":
            raise ConfigError(f"rescale.factor={factor}: a number of at least 1, or auto")
        if isinstance(factor, int | float) and not 1 <= factor < math.inf:
            raise ConfigError(f"rescale.factor={factor}: must be at least 1, or auto")
        settings.one_of("rescale.axes", getattr(config, "axes", GROWN), (GROWN, ALL))

    # ---- what it is

    @property
    def factor(self) -> str:
        """The factor as given, for the table; empty where the rule takes none."""
        factor = getattr(self.config, "factor", "")
        return factor if isinstance(factor, str) else f"{factor:.12g}"

    @property
    def label(self) -> str:
        """`yarn@8`, `rerope`: name and factor."""
        return f"{self.name}@{self.factor}" if self.factor else self.name

    @property
    def options(self) -> list[str]:
        """`key=value` of what is not at its default, the factor aside; a list by its hash."""
        changed = sorted(settings.changed(self.config).items())
        return [f"{k}={_word(v)}" for k, v in changed if k not in ("name", "factor")]

    def columns(self) -> dict[str, str]:
        """The columns of a table that name it."""
        return {"rescale": self.name, "factor": self.factor, "options": " ".join(self.options)}

    @property
    def depends_on_total_length(self) -> bool:
        """Whether another test length makes another encoding of it."""
        return bool(getattr(self.config, "factor", None) == "auto")

    # ---- what it does

    def used(self, train_length: int, test_length: int) -> dict[str, Any]:
        """What options that are `auto` come to at these lengths, by name."""
        auto = [name for name, value in vars(self.config).items() if value == "auto"]
        found = {n: self.scale(train_length, test_length) for n in _SCALES if n in auto}
        if isinstance(self.config, TurnsConfig) and "beta" in auto:
            found["beta"] = self.config.cut_offs(train_length)[1]
        return found

    def scale(self, train_length: int, test_length: int) -> float:
        """The number s in use at a test length; 1 where the rule has none."""
        factor = getattr(self.config, "factor", 1.0)
        return max(1.0, test_length / train_length) if factor == "auto" else float(factor)

    def at(self, train_length: int, test_length: int) -> "Rescale":
        """The rule along an axis of these extents; itself, unless it holds lengths."""
        return self

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        """Rescaled frequencies [dim/2], float64."""
        raise NotImplementedError

    def rotation_scale(self, scale: float) -> float:
        """What the released code multiplies cos and sin of queries and keys with."""
        return 1.0

    def logit_multiplier(self, scale: float) -> float:
        """Factor on the attention scores (a temperature below 1 sharpens: factor above 1)."""
        return self.rotation_scale(scale) ** 2

    def applied(
        self, encoding: "PositionalEncoding", train_length: int, test_length: int
    ) -> "PositionalEncoding":
        """The encoding to test with; the trained one is left as it is."""
        self.refuse_trained(encoding)
        return encoding.changed(lambda part: self.on(part, train_length, test_length))

    def trained_into(
        self, encoding: "PositionalEncoding", train_length: int, target: int
    ) -> "PositionalEncoding":
        """The encoding of a run that trains under the rule: for all lengths what it is at `target`.

        Rules that act on the same thing can no longer be applied to it.
        """
        found = self.applied(encoding, train_length, target)
        return found.replace(trained_under={**encoding.trained_under, **self.acting()})

    def acting(self) -> dict[str, str]:
        """What it acts on -> its label."""
        return {self.acts_on: self.label}

    def refuse_trained(self, encoding: "PositionalEncoding") -> None:
        """UnsupportedRescale where the run was trained under a rule that acts on the same thing."""
        for thing in self.acting():
            if thing in encoding.trained_under:
                raise UnsupportedRescale(
                    f"{encoding.label} cannot be rescaled by {self.name}: the run was trained "
                    f"under {encoding.trained_under[thing]}, which also acts on {thing}"
                )

    def on(
        self, encoding: "PositionalEncoding", train_length: int, test_length: int
    ) -> "PositionalEncoding":
        """The same for the scheme of one layer."""
        return encoding.rescaled(self, train_length, test_length)


def refuse_coordinates(rule: Rescale, encoding: "PositionalEncoding") -> None:
    """UnsupportedRescale where positions are coordinates of several axes, which make no line."""
    if encoding.on_a_grid or 1 not in encoding.axes:
        raise UnsupportedRescale(
            f"{encoding.label} cannot be rescaled by {rule.name}: it counts tokens along one axis, "
            "and positions here have several"
        )


def _word(value: Any) -> str:
    """An option's value as one word of a row's name."""
    return f"#{settings.digest(value)}" if isinstance(value, list | dict) else str(value)


def positive(option: str, value: float | None) -> None:
    """Refuse a number that is given and not above 0, or infinite."""
    if value is not None and not 0 < value < math.inf:
        raise ConfigError(f"rescale.{option}={value}: must be above 0")


def ramp_blend(inv_freq: Tensor, keep: Tensor, scale: float) -> Tensor:
    """theta' = (1 - keep) * theta / s + keep * theta; exactly theta at s = 1."""
    return inv_freq * (keep + (1 - keep) / scale)


def kept_by_turns(ladder: Ladder, alpha: float, beta: float) -> Tensor:
    """gamma(r) of arXiv:2309.00071: 0 below alpha turns, 1 above beta, linear in r between."""
    return ((ladder.turns - alpha) / (beta - alpha)).clamp(0, 1)


def yarn_rotation_scale(scale: float, coefficient: float = 1.0) -> float:
    """sqrt(1/t) = 0.1 * coefficient * ln s + 1, 1 up to s = 1; scores get its square."""
    return 0.1 * coefficient * math.log(scale) + 1.0 if scale > 1 else 1.0


@dataclass
class TurnsConfig(Rescale.Config):
    """Cut-offs in turns within the training length."""

    #: the released beta and the training length that it belongs to
    released: ClassVar[tuple[float, int]] = (32.0, 2048)

    #: pairs with fewer turns are fully interpolated
    alpha: float = 1.0
    #: pairs with more turns are left alone; auto = the same share of the ladder as released,
    #: 32 * L / 2048
    beta: int | float | str = 32.0

    def cut_offs(self, train_length: int) -> tuple[float, float]:
        """alpha and beta in use, checked."""
        if isinstance(self.beta, str) and self.beta != "auto":
            raise ConfigError(f"rescale.beta={self.beta}: a number above rescale.alpha, or auto")
        auto = isinstance(self.beta, str)
        turns, length = self.released
        beta = turns * train_length / length if auto else float(self.beta)
        if not 0 < self.alpha < beta < math.inf:
            raise (UnsupportedRescale if auto else ConfigError)(
                f"rescale.alpha={self.alpha:g} and rescale.beta={self.beta}"
                f"{f' ({beta:g} at L = {train_length})' if auto else ''}: need 0 < alpha < beta"
            )
        return self.alpha, beta
