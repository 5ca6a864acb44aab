"""One colour, marker and dash per scheme and per rescaling, the same in every figure.

Colours are Okabe and Ito's for schemes and Paul Tol's muted set for rescalings, both made for
colour-blind readers. Markers and dashes alone tell the lines apart in a grey print.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any

from posbench import registry

Dash = str | tuple[int, tuple[float, ...]]

SOLID: Dash = "solid"
DASHED: Dash = (0, (4.0, 1.6))
DASHDOT: Dash = (0, (5.0, 1.4, 1.2, 1.4))
DOTTED: Dash = (0, (1.2, 1.4))
LONG: Dash = (0, (8.0, 1.6))
TWODOT: Dash = (0, (6.0, 1.4, 1.2, 1.4, 1.2, 1.4))


@dataclass(frozen=True)
class Style:
    """How a line looks; `filled` is False for markers drawn as outlines."""

    color: str
    marker: str
    dash: Dash = SOLID
    filled: bool = True


SCHEMES = {
    "none": Style("#000000", "o", DOTTED),
    "sinusoidal": Style("#E69F00", "s", DASHED),
    "learned": Style("#CC79A7", "D", DASHDOT),
    "t5": Style("#009E73", "^", LONG),
    "alibi": Style("#56B4E9", "v", SOLID),
    "rope": Style("#0072B2", "P", SOLID),
    "rope_matched": Style("#D55E00", "X", DASHED),
}
RESCALINGS = {
    "pi": Style("#999933", "s"),
    "ntk": Style("#117733", "^"),
    "ntk_by_parts": Style("#44AA99", "D"),
    "dynamic_ntk": Style("#661100", "*", DASHDOT),
    "yarn": Style("#332288", "o"),
    "yarn_paper": Style("#AA4499", "v"),
}
#: dashes of a rescaling with a fixed factor: the first, the second, ... factor of a figure
FIXED: tuple[Dash, ...] = (SOLID, LONG, TWODOT)
REFERENCE = "#666666"
#: options of every legend
LEGEND: dict[str, Any] = {
    "frameon": False,
    "fontsize": 8.5,
    "handlelength": 3.4,
    "labelspacing": 0.35,
    "borderaxespad": 0,
    "borderpad": 0,
}
#: of a comparison: better, worse, neither
WIN, LOSS, UNDECIDED = "#0072B2", "#D55E00", "#DDDDDD"
_COLORS = ("#88CCEE", "#DDCC77", "#CC6677", "#882255", "#997700", "#7777AA", "#555555")
_MARKERS = tuple("<>ph8HdX")
_DASHES = (SOLID, DASHED, DASHDOT, LONG, TWODOT)


def _invented(name: str) -> Style:
    """A stable look for a name that is not in the tables above; posbench's own share none."""
    place = _places().get(name, _hashed(name))
    place, color = divmod(place, len(_COLORS))
    dash, marker = divmod(place, len(_MARKERS))
    return Style(_COLORS[color], _MARKERS[marker], _DASHES[dash])


def _hashed(name: str) -> int:
    """A place among all combinations of a dash, a marker and a colour, which changes fastest."""
    color, marker, dash = hashlib.sha256(name.encode()).digest()[:3]
    place = dash % len(_DASHES)
    place = place * len(_MARKERS) + marker % len(_MARKERS)
    return place * len(_COLORS) + color % len(_COLORS)


@cache
def _places() -> dict[str, int]:
    """The place of every name that comes with posbench: its hash's, or the next that is free."""
    schemes = [n for n in registry.names("posenc") if n not in SCHEMES]
    rules = [f"rescale {n}" for n in registry.names("rescale") if n not in RESCALINGS]
    found: dict[str, int] = {}
    for name in reversed(schemes + rules):
        place = _hashed(name)
        while place in found.values():
            place = (place + 1) % (len(_COLORS) * len(_MARKERS) * len(_DASHES))
        found[name] = place
    return found


def scheme_style(preset: str) -> Style:
    """The look of a trained run."""
    return SCHEMES.get(preset) or _invented(preset)


def rescale_style(rescale: str, factor: str, options: str = "", rank: int = 0) -> Style:
    """The look of a rescaling: solid with a fixed factor (the `rank`-th one), dashed with `auto`.

    Variants with options are dotted. A rule without a factor keeps the dash of its own entry.
    """
    own = RESCALINGS.get(rescale) or _invented(f"rescale {rescale}")
    if options:
        return Style(own.color, own.marker, DOTTED, filled=factor != "auto")
    if factor == "auto":
        return Style(own.color, own.marker, DASHED, filled=False)
    if factor:
        return Style(own.color, own.marker, FIXED[rank % len(FIXED)])
    return own
