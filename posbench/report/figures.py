"""Two figures as PNG and SVG: perplexity against test length, and its ratio to L.

Small multiples with one y axis per section: the trained schemes, then each rotary run with its
rescalings. What explodes leaves the picture at the top and is marked there, so that the rest stays
readable. Equal input gives equal bytes.
"""

import io
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from posbench.files import write_atomic
from posbench.report.panels import (
    LONGER,
    PERPLEXITY,
    RATIO,
    Panel,
    Quantity,
    at_length,
    draw,
    gaps,
    limits_of,
    look,
    panels_of,
)
from posbench.report.sections import LONG, Section, sections
from posbench.report.style import DASHED, DOTTED, LEGEND, REFERENCE

DPI = 160
RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.linewidth": 0.8,
    "path.simplify": False,
    "svg.hashsalt": "posbench",
    "svg.fonttype": "path",
    "savefig.bbox": None,
}
# inches
LEFT, RIGHT, GAP, PANEL_H, COLUMNS = 0.72, 0.15, 0.22, 4.0, 3
PANEL_W = {1: 5.6, 2: 4.3, 3: 3.45}  # by the number of columns
LETTER, HANDLE = 0.069, 0.7  # a letter of the legend, and what comes before and after a name
LINE, HEAD, FOOT, LEGEND_LINE = 0.2, 0.52, 0.5, 0.165


def _handles(panels: list[Panel], quantity: Quantity, crop: str) -> list[Line2D]:
    """Legend entries, each name once: trained runs, then rescalings, then references."""
    seen: dict[str, Line2D] = {}
    lines = [line for panel in panels for line in panel.lines]
    for plain in (True, False):
        for entry, style, label in (line for line in lines if line[0].plain is plain):
            seen.setdefault(label, Line2D([], [], label=label, **look(style, entry.plain)))
    references = [panel.reference for panel in panels if panel.reference]
    if any(at_length(entry, -1, "crop") for entry in references):
        colors = {panel.color for panel in panels if panel.reference}
        color = colors.pop() if len(colors) == 1 else "#000000"
        seen[crop] = Line2D([], [], color=color, ls=DOTTED, lw=1.3, label=crop)
    if any(at_length(entry, -1, "ngram") for entry in references):
        seen["n-gram"] = Line2D([], [], color=REFERENCE, ls=DASHED, lw=1.3, label="n-gram")
    if any(panel.longer(quantity) for panel in panels):
        seen[LONG] = Line2D([], [], label=LONG, **LONGER)
    return list(seen.values())


def wrapped(texts: Iterable[str], inches: float, size: float) -> list[str]:
    """Lines that fit; a number stays with its percent sign."""
    letters = int(inches * 72 / size / 0.56)
    whole = (text.replace(" %", "\u00a0%") for text in texts)
    return [line for text in whole for line in textwrap.wrap(text, letters)]


def _legend_columns(handles: list[Line2D], inches: float) -> int:
    """How many columns of the longest name fit, at most three."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    return min(3, max(1, int(inches / (HANDLE + LETTER * longest))))


class _Sheet:
    """A figure that is laid out in inches from the top left corner."""

    def __init__(self, columns: int, height: float) -> None:
        self.panel = PANEL_W[columns]
        width = LEFT + columns * (self.panel + GAP) - GAP + RIGHT
        self.width, self.height, self.y = width, height, 0.12
        self.figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(self.figure)

    def text(self, line: str, **look: Any) -> None:
        top = 1 - self.y / self.height
        self.figure.text(LEFT / self.width, top, line, va="top", ha="left", **look)
        self.y += LINE * look.get("fontsize", 9) / 9

    def axes(self, column: int, y: float) -> Axes:
        left = LEFT + column * (self.panel + GAP)
        bottom = self.height - y - PANEL_H
        w, h = self.width, self.height
        return self.figure.add_axes((left / w, bottom / h, self.panel / w, PANEL_H / h))

    def legend(self, handles: list[Line2D], column: int, ncols: int) -> float:
        """Draw at the current height; returns the height it takes."""
        left = (LEFT + column * (self.panel + GAP)) / self.width
        self.figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(left, 1 - self.y / self.height),
            ncols=ncols,
            columnspacing=1.4,
            **LEGEND,
        )
        return LEGEND_LINE * -(-len(handles) // ncols)


@dataclass
class _Plan:
    """A section with everything that decides its height."""

    section: Section
    panels: list[Panel]
    limits: tuple[float, float]
    facts: list[str]
    stamps: list[str]
    legends: list[tuple[list[Line2D], int, int]]  # handles, panel column, legend columns
    note: list[str]

    @property
    def rows(self) -> int:
        return -(-len(self.panels) // COLUMNS)

    @property
    def height(self) -> float:
        legend = max((-(-len(h) // n) for h, _, n in self.legends), default=0) * LEGEND_LINE
        text = LINE * (len(self.facts) + len(self.stamps) + len(self.note))
        return text + self.rows * (HEAD + PANEL_H + FOOT) + legend + 0.3


def _plan(section: Section, panels: list[Panel], quantity: Quantity, columns: int) -> _Plan:
    limits = limits_of(section, panels, quantity)
    facts = ", ".join(section.facts())
    if quantity.bands and section.has_intervals:
        facts += f"; bands are 95 % intervals over {section.unit()}"
    width = columns * (PANEL_W[columns] + GAP)
    stamps = section.stamp_lines()
    schemes = [panel for panel in panels if panel.title == "trained schemes"]
    rescaled = panels[len(schemes) :]
    legends = []
    if schemes:
        best = schemes[0].reference
        crop = f"crop of {best.run}" if best else "crop"
        handles = _handles(schemes, quantity, crop)
        beside = columns if not rescaled else 1
        legends.append((handles, 0, _legend_columns(handles, width * beside / columns)))
    if rescaled:
        handles = _handles(rescaled, quantity, "crop of the unscaled run")
        first = 1 if schemes and columns > 1 else 0
        room = width * (columns - first) / columns
        legends.append((handles, first, _legend_columns(handles, room)))
    clipped = any(
        quantity.value(cell) > limits[1]
        for panel in panels
        for entry, _, _ in panel.lines
        for cell in entry.cells.values()
    )
    notes = [f"Triangles at the top edge: values above {limits[1]:.3g}, where the axis is cut."]
    notes = notes if clipped else []
    if ends := gaps(panels, section):
        notes.append(f"Lines end where a length is refused: {'; '.join(ends)}.")
    if any(str(h.get_label()).startswith("crop") for handles, _, _ in legends for h in handles):
        notes.append("crop: each target sees exactly the L tokens before it, without rescaling.")
    notes += section.variant_lines()
    return _Plan(
        section=section,
        panels=panels,
        limits=limits,
        facts=wrapped([facts], width, 9),
        stamps=wrapped(stamps, width, 9.5),
        legends=legends,
        note=wrapped(notes, width, 8.5),
    )


def _figure(rows: pd.DataFrame, quantity: Quantity) -> Figure:
    found = [(section, panels_of(section)) for section in sections(rows)]
    found = [(section, panels) for section, panels in found if panels]
    columns = min(COLUMNS, max((len(panels) for _, panels in found), default=1))
    plans = [_plan(section, panels, quantity, columns) for section, panels in found]
    sheet = _Sheet(columns, 0.5 + sum(plan.height for plan in plans))
    sheet.text(quantity.title, fontsize=13, fontweight="bold")
    for plan in plans:
        for line in plan.facts:
            sheet.text(line, fontsize=9, color="#333333")
        for line in plan.stamps:
            sheet.text(line, fontsize=9.5, color="#B00020", fontweight="bold")
        for i, panel in enumerate(plan.panels):
            top = sheet.y + HEAD + (i // COLUMNS) * (HEAD + PANEL_H + FOOT)
            ax = sheet.axes(i % COLUMNS, top)
            draw(ax, panel, plan.section, quantity, plan.limits)
            ax.set_xlabel("test length (tokens)" if plan.section.axes == 1 else "test shape")
            if i % COLUMNS:
                ax.tick_params(labelleft=False)
            else:
                ax.set_ylabel(quantity.ylabel)
        sheet.y += plan.rows * (HEAD + PANEL_H + FOOT)
        if plan.legends:
            sheet.y += max(sheet.legend(*legend) for legend in plan.legends)
        sheet.y += 0.05
        for line in plan.note:
            sheet.text(line, fontsize=8.5, color="#555555")
        sheet.y += 0.25
    return sheet.figure


def save(draw: Callable[[], Figure], path_stem: Path) -> None:
    """Write `<path_stem>.png` and `.svg`, without dates."""
    with matplotlib.rc_context(RC):
        figure = draw()
        for suffix, metadata in (
            ("png", {"Software": None}),
            ("svg", {"Date": None, "Creator": None}),
        ):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=suffix, dpi=DPI, metadata=metadata)
            write_atomic(path_stem.with_name(f"{path_stem.name}.{suffix}"), buffer.getvalue())


def perplexity_figure(rows: pd.DataFrame, path_stem: Path) -> None:
    """Write `<path_stem>.png` and `.svg`: perplexity per token against test length."""
    save(lambda: _figure(rows, PERPLEXITY), Path(path_stem))


def ratio_figure(rows: pd.DataFrame, path_stem: Path) -> None:
    """Write `<path_stem>.png` and `.svg`: perplexity over that of the unscaled model at L."""
    save(lambda: _figure(rows, RATIO), Path(path_stem))
