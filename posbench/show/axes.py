"""Axes, lines and legends that the panels of `posbench show` share."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from posbench.report.style import Style, rescale_style, scheme_style
from posbench.show.subject import Subject

LEGEND: Any = {"fontsize": 8, "frameon": True, "framealpha": 0.8, "edgecolor": "none"}
#: heads that a legend names
HEADS = 12


def look_of(found: Subject) -> Style:
    """The colour and marker of the subject in every figure."""
    if found.rule is not None:
        return rescale_style(found.named.name, "")
    return scheme_style(found.named.label)


def octaves(ax: Axes, last: float) -> None:
    """An x axis of powers of two, with 0 on it."""
    ax.set_xscale("symlog", base=2, linthresh=1, linscale=0.6)
    ax.set_xlim(0, last)
    powers = range(int(math.log2(last)) + 1)
    step = -(-len(powers) // 7)
    ax.xaxis.set_major_locator(FixedLocator([0, *(2**p for p in powers[::step])]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def mark_length(ax: Axes, length: int) -> None:
    """The training length, on the x axis."""
    ax.axvline(length, color="#999999", lw=0.9, zorder=1)
    ax.annotate(
        f"L = {length}",
        (length, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8,
        color="#555555",
    )


def dress(ax: Axes, title: str, xlabel: str, ylabel: str) -> None:
    ax.set_title(title, loc="left", fontsize=10, pad=14)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.grid(axis="y", color="#DDDDDD", lw=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def lines(ax: Axes, x: Sequence[float], rows: Any, color: str) -> None:
    """A line for every head, from dark to light; one where all heads agree."""
    values = np.array(rows, dtype=float)
    if np.array_equal(values, np.broadcast_to(values[:1], values.shape), equal_nan=True):
        ax.plot(x, values[0], color=color, lw=1.8)
        return
    colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(values)))
    for head, row in enumerate(values):
        ax.plot(x, row, color=colors[head], lw=1.4, label=f"head {head}")
    handles = ax.lines[:] if len(values) <= HEADS else [ax.lines[0], ax.lines[len(values) - 1]]
    below: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 4}
    ax.legend(handles=handles, **LEGEND, **below, handlelength=1.4, columnspacing=1.2)
