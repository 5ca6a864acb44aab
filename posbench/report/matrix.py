"""Figure of who beats whom: a square per pair of schemes, at 4 and 16 times the training length."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from posbench.report import compare
from posbench.report.entries import Entry
from posbench.report.figures import save, wrapped
from posbench.report.sections import Section, sections
from posbench.report.style import LEGEND, LOSS, UNDECIDED, WIN
from posbench.report.tables import head

#: outcome -> colour, and a mark for a grey print
LOOKS = {1: (WIN, "+"), -1: (LOSS, "\u2212"), 0: (UNDECIDED, "")}
# inches
SQUARE, LETTER, GAP, MARGIN, LINE, TITLE = 0.25, 0.075, 0.35, 0.15, 0.2, 0.55


@dataclass
class _Panel:
    """The pairs of a section at one length."""

    section: Section
    length: int
    entries: list[Entry]
    found: dict[tuple[str, str], int]

    @property
    def side(self) -> float:
        return SQUARE * len(self.entries)

    @property
    def names(self) -> list[str]:
        return [e.label + ("*" if e.stamps else "") for e in self.entries]


def panels_of(section: Section, pairs: pd.DataFrame) -> list[_Panel]:
    """Panels with two entries or more."""
    made = [
        _Panel(section, n, compare.shown(section, n), compare.outcomes(section, n, pairs))
        for n in compare.lengths_of(section)
    ]
    return [panel for panel in made if len(panel.entries) > 1 and panel.found]


def matrix_figure(rows: pd.DataFrame, pairs: pd.DataFrame, path_stem: Path) -> bool:
    """Write `<path_stem>.png` and `.svg`, unless there is nothing to compare; whether written."""
    found = [panels for section in sections(rows) if (panels := panels_of(section, pairs))]
    if found:
        save(lambda: _figure(found), path_stem)
    return bool(found)


def _figure(found: list[list[_Panel]]) -> Figure:
    """One line of panels for each section."""
    longest = max(len(name) for panels in found for panel in panels for name in panel.names)
    left = MARGIN + LETTER * longest + 0.3
    named = [
        [i == 0 or p.names != panels[0].names for i, p in enumerate(panels)] for panels in found
    ]
    widths = [
        sum(panel.side + (left if name else GAP) for panel, name in zip(panels, names, strict=True))
        for panels, names in zip(found, named, strict=True)
    ]
    width = max(6.0, max(widths) + MARGIN)
    texts = [_texts(panels[0].section, width - 2 * MARGIN) for panels in found]
    sides = [max(panel.side for panel in panels) for panels in found]
    height = 0.75 + sum(
        LINE * sum(map(len, lines)) + TITLE + side + GAP
        for lines, side in zip(texts, sides, strict=True)
    )
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)

    def write(line: str, y: float, **look: Any) -> None:
        figure.text(MARGIN / width, 1 - y / height, line, va="top", ha="left", **look)

    write("Row against column: which has the lower loss", 0.12, fontsize=13, fontweight="bold")
    handles = [
        Patch(facecolor=LOOKS[sign][0], edgecolor="#888888", lw=0.6, label=label)
        for sign, label in ((1, "+ row is better"), (-1, "\u2212 row is worse"), (0, "undecided"))
    ]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(MARGIN / width, 1 - 0.42 / height),
        ncols=3,
        **LEGEND | {"handlelength": 2.0, "labelspacing": 0.5},
    )
    y = 0.7
    for panels, names, (facts, stamps), side in zip(found, named, texts, sides, strict=True):
        for line in facts:
            write(line, y, fontsize=9, color="#333333")
            y += LINE
        for line in stamps:
            write(line, y, fontsize=9, color="#B00020", fontweight="bold")
            y += LINE
        x = 0.0
        for panel, name in zip(panels, names, strict=True):
            x += left if name else GAP
            top = 1 - (y + TITLE) / height
            size = panel.side
            box = (x / width, top - size / height, size / width, size / height)
            _draw(figure.add_axes(box), panel, name)
            x += size
        y += TITLE + side + GAP
    return figure


def _texts(section: Section, inches: float) -> tuple[list[str], list[str]]:
    """What the tests rest on, with what hashes in names stand for, and stamps."""
    tested = (
        f"paired t over {section.unit()}, 5 % after Holm's correction for all pairs of a length"
    )
    facts = ", ".join(section.facts())
    told = [f"{facts}; {tested}", *section.variant_lines()]
    return wrapped(told, inches, 9), wrapped(section.stamp_lines(), inches, 9)


def _draw(ax: Axes, panel: _Panel, named: bool) -> None:
    """One matrix, rows and columns numbered."""
    names, n = panel.names, len(panel.entries)
    labels = [entry.label for entry in panel.entries]
    signs = np.array([[panel.found.get((a, b), 0) for b in labels] for a in labels])
    colors = ListedColormap([LOOKS[sign][0] for sign in (-1, 0, 1)])
    shown = np.ma.masked_where(np.eye(n, dtype=bool), signs)
    ax.pcolormesh(shown, cmap=colors, vmin=-1, vmax=1, edgecolors="white", linewidth=1)
    for i, j in np.argwhere(signs):
        mark = LOOKS[int(signs[i, j])][1]
        ax.text(j + 0.5, i + 0.53, mark, ha="center", va="center", fontsize=8, color="white")
    ax.set_ylim(n, 0)
    places = [i + 0.5 for i in range(n)]
    ax.set_xticks(places, [str(i + 1) for i in range(n)], fontsize=7.5)
    names = [f"{name}  {i}" if named else str(i) for i, name in enumerate(names, 1)]
    ax.set_yticks(places, names, fontsize=8.5)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(head(panel.section, panel.length), loc="left", fontsize=10.5, pad=6)
