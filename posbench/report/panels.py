"""What a panel of a figure shows: its lines, its axes, and what left it at the top."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from posbench.report.names import style_of
from posbench.report.sections import Cell, Entry, Section, factor_key
from posbench.report.style import (
    DASHDOT,
    DASHED,
    DOTTED,
    REFERENCE,
    Style,
    rescale_style,
)
from posbench.report.tables import exp, ratio_of

#: the y axis reaches a tenth above eight values in ten, within these multiples of the lowest
CAPS = (3.0, 20.0)
LARGEST = 1e300  # what matplotlib is given for an overflow
#: the run that was trained longer
LONGER: dict[str, Any] = {"color": REFERENCE, "ls": DASHDOT, "lw": 1.3, "marker": ".", "ms": 6}


@dataclass(frozen=True)
class Quantity:
    """What the y axis shows."""

    title: str
    ylabel: str
    value: Callable[[Cell], float]
    of_nats: Callable[[Cell, float], float]  # a reference in the same unit
    bands: bool
    unit_line: bool = False


PERPLEXITY = Quantity(
    title="Perplexity against test length",
    ylabel="perplexity per token",
    value=lambda cell: exp(cell.nll),
    of_nats=lambda cell, nats: exp(nats),
    bands=True,
)
RATIO = Quantity(
    title="Perplexity relative to the training length",
    ylabel="perplexity / perplexity at L",
    value=ratio_of,
    of_nats=lambda cell, nats: exp(nats - cell.base),
    bands=False,
    unit_line=True,
)


@dataclass
class Panel:
    title: str
    lines: list[tuple[Entry, Style, str]]
    reference: Entry | None  # the run whose crop and n-gram lines are drawn
    color: str = "#000000"  # of its crop

    def longer(self, quantity: Quantity) -> list[list[tuple[int, float]]]:
        """Curves of the runs that were trained longer, each once."""
        shown: dict[Any, list[tuple[int, float]]] = {}
        for entry, _, _ in self.lines:
            curve = [
                (length, y)
                for length, cell in entry.longer().items()
                if (y := quantity.of_nats(entry.cells[length], cell.nll)) == y
            ]
            shown.setdefault(tuple((x, round(y, 4)) for x, y in curve), curve)
        return [curve for curve in shown.values() if curve]


def _length_label(section: Section, length: int) -> str:
    if section.axes > 1:
        return section.shapes.get(length, "")
    thousands = length / 1024
    return f"{thousands:g}k" if length >= 1024 and (thousands * 4).is_integer() else f"{length:g}"


def at_length(entry: Entry, length: int, field: str) -> tuple[Cell, float] | None:
    """A cell of the entry and its field: at `length` if known, else at the first that has it."""
    cells = [entry.cells[length]] if length in entry.cells else []
    for cell in [*cells, *entry.cells.values()]:
        value = float(getattr(cell, field))
        if value == value:
            return cell, value
    return None


def gaps(panels: list[Panel], section: Section) -> list[str]:
    """Where lines have to end, in words: `learned (unsupported from 256)`."""
    words = {
        "unsupported_length": "unsupported",
        "unsupported_rescale": "unsupported",
        "unsupported_protocol": "not for this protocol",
        "nonfinite": "not finite",
        "out_of_memory": "out of memory",
    }
    found: dict[str, list[str]] = {}
    for panel in panels:
        for entry, _, _ in panel.lines:
            seen = set()
            for length, cell in sorted(entry.cells.items()):
                word = words.get(cell.status, cell.status)
                if cell.status == "ok" or word in seen:
                    continue
                seen.add(word)
                names = found.setdefault(f"{word} from {_length_label(section, length)}", [])
                name = entry.run if entry.plain else f"{entry.run} {entry.rule}"
                if name not in names:
                    names.append(name)
    texts = []
    for what, names in found.items():
        more = f" and {len(names) - 4} more" if len(names) > 5 else ""
        texts.append(f"{', '.join(names[: 4 if more else 5])}{more} ({what})")
    return texts


def panels_of(section: Section) -> list[Panel]:
    entries = [entry for entry in section.entries if not entry.unsupported]
    plain = [entry for entry in entries if entry.plain]
    panels = []
    if plain:
        at_l = [
            (cell.nll, i)
            for i, entry in enumerate(plain)
            if (cell := entry.cells.get(section.train_len)) and cell.nll == cell.nll
        ]
        lines = [(e, style_of(e.preset, e.run, section.variants), e.run) for e in plain]
        best = plain[min(at_l)[1]] if at_l else None
        color = style_of(best.preset, best.run, section.variants).color if best else "#000000"
        panels.append(Panel("trained schemes", lines, best, color))
    fixed = [e.factor for e in entries if e.factor and e.factor != "auto"]
    ranks = {factor: i for i, factor in enumerate(sorted(set(fixed), key=factor_key))}
    for run_id in dict.fromkeys(entry.run_id for entry in entries if not entry.plain):
        own = [entry for entry in entries if entry.run_id == run_id]
        lines = []
        for e in own:
            if e.plain:
                lines.append((e, style_of(e.preset, e.run, section.variants), f"{e.run}, unscaled"))
            else:
                style = rescale_style(e.rescale, e.factor, e.options, ranks.get(e.factor, 0))
                lines.append((e, style, e.rule))
        color = style_of(own[0].preset, own[0].run, section.variants).color
        panels.append(Panel(f"{own[0].run}, rescaled", lines, own[0], color))
    return panels


def limits_of(section: Section, panels: list[Panel], quantity: Quantity) -> tuple[float, float]:
    """y limits that hold the usual values with their bands, and the references.

    What explodes lies above; a band is followed to twice, or half, of the values at most.
    """
    cells = [
        (value, cell)
        for panel in panels
        for entry, _, _ in panel.lines
        for cell in entry.cells.values()
        if math.isfinite(value := quantity.value(cell))
    ]
    if not cells:
        return 0.9, 2.0
    values = sorted(value for value, _ in cells)
    usual = 1.1 * values[math.ceil(0.8 * len(values)) - 1]
    cap = min(max(usual, CAPS[0] * values[0]), CAPS[1] * values[0])
    if values[-1] <= 1.2 * cap:  # what is hardly above is shown too
        cap = values[-1]
    low, high = values[0], min(values[-1], cap)
    if quantity.bands:
        bands = [c for v, c in cells if v <= cap and math.isfinite(c.hi)]
        high = max([high, *(min(exp(c.hi), 2 * high) for c in bands)])
        low = min([low, *(max(exp(c.lo), low / 2) for c in bands)])
    for panel in panels:
        for field in ("crop", "ngram"):
            if panel.reference and (found := at_length(panel.reference, section.train_len, field)):
                reference = quantity.of_nats(*found)
                low = min(low, reference)
                high = max(high, reference if reference < 3 * cap else high)
        for curve in panel.longer(quantity):
            low = min(low, *(y for _, y in curve), high)
    margin = max(high / low, 1.05) ** 0.06
    return low / margin, high * margin


def _y_ticks(low: float, high: float) -> list[float]:
    """Round numbers, spaced as a log axis wants them, or evenly where the range is short."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for steps in ((1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if 4 <= len(ticks) <= 8:
            return ticks
    even = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in even if low <= tick <= high]


def _x_ticks(lengths: list[int]) -> list[int]:
    """The test lengths, less those that would print over a neighbour."""
    if len(lengths) < 2:
        return lengths
    least = math.log(lengths[-1] / lengths[0]) / 11
    kept = [lengths[0]]
    for length in lengths[1:]:
        if math.log(length / kept[-1]) >= least:
            kept.append(length)
    return kept


def draw(
    ax: Axes, panel: Panel, section: Section, quantity: Quantity, limits: tuple[float, float]
) -> None:
    """One panel: references, bands, lines, and triangles for what left at the top."""
    low, high = limits
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.axvline(section.train_len, color="#999999", lw=0.9, zorder=1)
    if quantity.unit_line:
        ax.axhline(1, color="#999999", lw=0.9, zorder=1)
    if panel.reference:
        references: tuple[tuple[str, dict[str, Any]], ...] = (
            ("ngram", {"color": REFERENCE, "ls": DASHED, "lw": 1.3}),
            ("crop", {"color": panel.color, "ls": DOTTED, "lw": 1.3}),
        )
        for field, looks in references:
            if found := at_length(panel.reference, section.train_len, field):
                ax.axhline(quantity.of_nats(*found), zorder=2, **looks)
    for curve in panel.longer(quantity):
        ax.plot([x for x, _ in curve], [y for _, y in curve], zorder=3, **LONGER)
    gone: dict[int, list[Style]] = {}
    for rank, (entry, style, _) in enumerate(panel.lines):
        cells = sorted(entry.cells.items())
        x = [length for length, _ in cells]
        y = [min(quantity.value(cell), LARGEST) for _, cell in cells]
        if quantity.bands and section.has_intervals:
            lo, hi = ([min(exp(v), LARGEST) for v in ends] for ends in _ends(cells))
            alpha = 0.14 if len(panel.lines) < 9 else 0.06
            ax.fill_between(x, lo, hi, color=style.color, alpha=alpha, lw=0, zorder=2)
        ax.plot(x, y, zorder=4 + rank / 100, **look(style, thick=entry.plain))
        for length, value in zip(x, y, strict=True):
            if value > high:
                gone.setdefault(length, []).append(style)
    edge = high / (high / low) ** 0.025
    for length, styles in gone.items():
        for i, style in enumerate(styles):
            shift = 2.0 ** (0.22 * (i - (len(styles) - 1) / 2)) if len(styles) < 6 else 1.0
            ax.plot(length * shift, edge, marker="^", ms=7, color=style.color, mec="white", mew=0.6)
    ax.set_ylim(low, high)
    ax.set_xlim(section.lengths[0] / 2**0.35, section.lengths[-1] * 2**0.35)
    for axis, ticks in ((ax.xaxis, _x_ticks(section.lengths)), (ax.yaxis, _y_ticks(low, high))):
        axis.set_major_locator(FixedLocator(list(ticks)))
        axis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: _length_label(section, round(value)))
    )
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    ax.grid(axis="y", color="#DDDDDD", lw=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(panel.title, loc="left", fontsize=10.5, pad=18)
    ax.annotate(
        f"L = {section.train_shape}",
        (section.train_len, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8.5,
        color="#555555",
    )


def _ends(cells: list[tuple[int, Cell]]) -> tuple[list[float], list[float]]:
    return [cell.lo for _, cell in cells], [cell.hi for _, cell in cells]


def look(style: Style, thick: bool) -> dict[str, Any]:
    return {
        "color": style.color,
        "ls": style.dash,
        "lw": 2.0 if thick else 1.4,
        "marker": style.marker,
        "ms": 6.5 if style.marker in "*PX" else 5,
        "mfc": style.color if style.filled else "white",
        "mec": style.color,
        "mew": 1.0,
    }
