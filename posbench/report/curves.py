"""Small multiples of curves with bands over seeds, as PNG and SVG. Equal input, equal bytes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from posbench.report.figures import save, wrapped
from posbench.report.panels import look
from posbench.report.style import DASHED, LEGEND, REFERENCE, Style

# inches
COLUMNS, WIDTH, HEIGHT = 3, 4.6, 3.1
LEFT, RIGHT, HEAD, FOOT, ENTRY, LINE = 0.75, 0.15, 0.62, 0.55, 0.17, 0.2


@dataclass(frozen=True)
class Curve:
    """Median or mean of the seeds at every x, and what they reach from and to [n]."""

    label: str
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass
class Panel:
    """Curves that share axes; `levels` are horizontal and `marks` vertical lines by their name.

    `xlabel` is in the place of the axis' own.
    """

    title: str
    facts: str
    curves: list[Curve]
    levels: dict[str, float] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)
    xlabel: str = ""


@dataclass(frozen=True)
class Axis:
    """What the axes show; whether x begins at 0, `limits` of y."""

    xlabel: str
    ylabel: str
    logarithmic: bool = False
    limits: tuple[float, float] | None = None
    from_zero: bool = False


def over_seeds(frame: pd.DataFrame, x: str, y: str, middle: str = "median") -> pd.DataFrame:
    """A row per seed and x -> columns x, y, low, high; what is not finite is left out."""
    known = frame.astype({y: "float64"})
    known = known[np.isfinite(known[y])]
    found = known.groupby(x, sort=True)[y].agg([middle, "min", "max"]).reset_index()
    return found.set_axis(["x", "y", "low", "high"], axis=1)


def curve(label: str, style: Style, found: pd.DataFrame) -> Curve:
    """The curve of what `over_seeds` gives."""
    return Curve(label, style, *(found[name].tolist() for name in ("x", "y", "low", "high")))


def draw(
    path_stem: Path,
    title: str,
    panels: list[Panel],
    axis: Axis,
    notes: Sequence[str] = (),
    columns: int = COLUMNS,
) -> None:
    """Write `<path_stem>.png` and `.svg`, `columns` panels in a row; nothing without panels."""
    if not panels:
        return
    save(lambda: _figure(title, panels, axis, notes, columns), path_stem)


def _figure(
    title: str, panels: list[Panel], axis: Axis, notes: Sequence[str], columns: int
) -> Figure:
    columns = min(columns, len(panels))
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    legends = [ENTRY * max(len(p.curves) + len(p.levels) for p in row) for row in rows]
    width = columns * (LEFT + WIDTH + RIGHT)
    lines = wrapped(notes, width - LEFT, 8.5)
    height = 0.5 + sum(legends) + len(rows) * (HEAD + HEIGHT + FOOT) + LINE * len(lines) + 0.15
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)

    def text(x: float, y: float, line: str, size: float, weight: str = "normal") -> None:
        figure.text(x / width, 1 - y / height, line, va="top", fontsize=size, fontweight=weight)

    text(LEFT, 0.12, title, 13, "bold")
    top = 0.5
    for row, legend in zip(rows, legends, strict=True):
        for i, panel in enumerate(row):
            left = LEFT + i * (LEFT + WIDTH + RIGHT)
            text(left, top, panel.title, 10.5, "bold")
            text(left, top + 0.22, panel.facts, 8.5)
            bottom = height - top - HEAD - HEIGHT
            place = left / width, bottom / height, WIDTH / width, HEIGHT / height
            _panel(figure.add_axes(place), panel, axis)
        top += HEAD + HEIGHT + FOOT + legend
    for line in lines:
        text(LEFT, top, line, 8.5)
        top += LINE
    return figure


def _panel(ax: Axes, panel: Panel, axis: Axis) -> None:
    """One panel, its legend below."""
    for name, x in panel.marks.items():
        ax.axvline(x, color="#999999", lw=0.9, zorder=1)
        ax.annotate(
            name,
            (x, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color="#555555",
        )
    for one in panel.curves:
        ax.fill_between(one.x, one.low, one.high, color=one.style.color, alpha=0.13, lw=0, zorder=2)
        ax.plot(one.x, one.y, label=one.label, zorder=4, **look(one.style, thick=False))
    for i, (name, y) in enumerate(panel.levels.items()):
        dash = (DASHED, (0, (1.2, 1.4)))[i % 2]
        ax.axhline(y, color=REFERENCE, ls=dash, lw=1.3, zorder=3, label=name)
    if axis.logarithmic:
        ax.set_xscale("log", base=2)
        ticks = sorted({x for one in panel.curves for x in one.x})
        ax.xaxis.set_major_locator(FixedLocator(_spaced(ticks)))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    if axis.from_zero:
        ax.set_xlim(left=0)
        ax.xaxis.set_major_locator(MaxNLocator(6))
    if axis.limits:
        ax.set_ylim(*axis.limits)
    ax.set_xlabel(panel.xlabel or axis.xlabel)
    ax.set_ylabel(axis.ylabel)
    ax.grid(axis="y", color="#DDDDDD", lw=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper left", bbox_to_anchor=(0, -FOOT / HEIGHT), **LEGEND)


def _spaced(ticks: Sequence[float]) -> list[float]:
    """The values, less those that would print over a neighbour."""
    kept = list(ticks[:1])
    for tick in ticks[1:]:
        if math.log(tick / kept[-1]) >= math.log(ticks[-1] / ticks[0]) / 9:
            kept.append(tick)
    return kept
