"""Rescalings that put a scheme beside the trained one: position maps and temperatures."""

from collections.abc import Callable

from torch import Tensor

from posbench.encodings.base import PositionalEncoding, Region
from posbench.encodings.stack import combine
from posbench.errors import ConfigError, UnsupportedRescale
from posbench.rescale.base import Rescale
from posbench.settings import Geometry

#: positions of queries and keys -> other ones
Far = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class PositionMap(PositionalEncoding):
    """Distances below `window` as they are; from there on, rotate by the positions `far` gives."""

    def __init__(
        self, name: str, geometry: Geometry, window: int, far: Far, shift_invariant: bool = True
    ):
        super().__init__(None, geometry)
        self.name, self.window, self.far = name, window, far
        self.shift_invariant = shift_invariant

    def relative_position(self, q_pos: Tensor, k_pos: Tensor) -> list[Region]:
        distance = q_pos[:, None, :, None, 0] - k_pos[:, None, None, :, 0]
        return [
            Region(q_pos, k_pos, None),
            Region(*self.far(q_pos, k_pos), distance >= self.window),
        ]


class MapRule(Rescale):
    """A rescaling that rotates far keys by other distances; the trained frequencies stay."""

    acts_on = "positions"
    #: the distances that it gives depend on the difference of two positions alone
    shift_invariant = True

    def map(self, train_length: int, test_length: int) -> tuple[int, Far | None]:
        """Window in tokens, and what happens from there on; None = nothing."""
        raise NotImplementedError

    def on(
        self, encoding: PositionalEncoding, train_length: int, test_length: int
    ) -> PositionalEncoding:
        if "rotate" not in encoding.hooks:
            raise UnsupportedRescale(
                f"{encoding.label} cannot be rescaled by {self.name}: it is not rotary"
            )
        window, far = self.map(train_length, test_length)
        if far is None:
            return encoding
        geometry = encoding.geometry
        return beside(encoding, PositionMap(self.name, geometry, window, far, self.shift_invariant))


def window_of(window: int | str, train_length: int) -> int:
    """The window in tokens; auto = half the training length."""
    if isinstance(window, str):
        return max(1, train_length // 2)
    return window


def check_count(option: str, value: int | str) -> None:
    """Refuse what is neither a whole number of at least 1 nor auto."""
    if value != "auto" and (isinstance(value, str) or value < 1):
        raise ConfigError(f"rescale.{option}={value}: a whole number of at least 1, or auto")


def beside(encoding: PositionalEncoding, added: PositionalEncoding) -> PositionalEncoding:
    """Both together; UnsupportedRescale where the trained encoding leaves no place for it."""
    try:
        return combine([encoding, added])
    except ConfigError as error:
        raise UnsupportedRescale(
            f"{encoding.label} cannot be rescaled by {added.name}: {error}"
        ) from None
