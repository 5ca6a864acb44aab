"""Rescalings that put a scheme beside the trained one: position maps and temperatures."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding, Region
from posbench.encodings.combined import Combined
from posbench.encodings.stack import combine
from posbench.errors import ConfigError, NotRescalable, UnsupportedRescale
from posbench.rescale.base import Rescale, refuse_coordinates
from posbench.settings import Geometry

#: positions of queries and keys -> other ones
Far = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
#: hook of schemes that take positions region by region
REGIONS = "relative_position"


class PositionMap(PositionalEncoding):
    """Distances below `window` as they are; from there on, rotate by the positions `far` gives.

    Where the trained scheme takes positions region by region, `inner` does so with the new ones.
    """

    def __init__(
        self,
        name: str,
        geometry: Geometry,
        window: int,
        far: Far,
        inner: PositionalEncoding | None = None,
    ):
        super().__init__(None, geometry)
        self.name, self.window, self.far, self.inner = name, window, far, inner

    def relative_position(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> list[Region]:
        distance = q_pos[:, None, :, None, 0] - k_pos[:, None, None, :, 0]
        beyond = distance >= self.window
        regions = self._regions(q_pos, k_pos, ctx)
        anywhere = Context(False, ctx.layer, ctx.window, ctx.prepared)
        for region in self._regions(*self.far(q_pos, k_pos), anywhere):
            where = beyond if region.where is None else beyond & region.where
            regions.append(region._replace(where=where))
        return regions

    def _regions(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> list[Region]:
        """How the trained scheme takes positions."""
        inner = self.inner and self.inner.relative_position(q_pos, k_pos, ctx)
        return inner or [Region(q_pos, k_pos, None)]


class MapRule(Rescale):
    """A rescaling that rotates far keys by other distances; the trained frequencies stay."""

    acts_on = "positions"
    #: the distances that it gives depend on the difference of two positions alone
    shift_invariant = True

    def map(self, train_length: int, test_length: int) -> tuple[int, Far | None]:
        """Window in tokens, and what happens from there on; None = nothing."""
        raise NotImplementedError

    def used(self, train_length: int, test_length: int) -> dict[str, Any]:
        found = super().used(train_length, test_length)
        if getattr(self.config, "window", None) == "auto":
            found["window"] = self.map(train_length, test_length)[0]
        return found

    def on(
        self, encoding: PositionalEncoding, train_length: int, test_length: int
    ) -> PositionalEncoding:
        if "rotate" not in encoding.hooks:
            raise NotRescalable(
                f"{encoding.label} cannot be rescaled by {self.name}: it is not rotary"
            )
        refuse_coordinates(self, encoding)
        window, far = self.map(train_length, test_length)
        if far is None:
            return encoding
        parts = encoding.members if isinstance(encoding, Combined) else [encoding]
        inner = next((p for p in parts if REGIONS in p.hooks), None)
        parts = [p.replace(hooks=p.hooks - {REGIONS}) if p is inner else p for p in parts]
        added = PositionMap(self.name, encoding.geometry, window, far, inner)
        added.shift_invariant = self.shift_invariant
        return together([*parts, added], encoding.label)


def together(parts: Sequence[PositionalEncoding], label: str) -> PositionalEncoding:
    """A trained scheme and, last, what a rule adds; UnsupportedRescale where it has no place."""
    try:
        return combine(parts)
    except ConfigError as error:
        raise UnsupportedRescale(
            f"{label} cannot be rescaled by {parts[-1].name}: {error}"
        ) from None


def window_of(window: int | str, train_length: int) -> int:
    """The window in tokens; auto = half the training length."""
    return max(1, train_length // 2) if isinstance(window, str) else window


def check_count(option: str, value: int | str) -> None:
    """Refuse what is neither a whole number of at least 1 nor auto."""
    if value != "auto" and (isinstance(value, str) or value < 1):
        raise ConfigError(f"rescale.{option}={value}: a whole number of at least 1, or auto")
