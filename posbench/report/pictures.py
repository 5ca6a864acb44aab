"""What breaks, drawn: held-out pictures or clips, the loss of every pixel, and continuations.

A row per scheme; side by side the training shape and the largest one. A figure shows one region and
the first seed of a scheme: an example beside the table's averages.
"""

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps, patheffects, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from posbench import grid
from posbench.evaluate.pictures import FILE, Pictures, Shown, read
from posbench.files import write_atomic
from posbench.grid import Shape
from posbench.report.collect import Collected
from posbench.report.figures import DPI, RC
from posbench.report.sections import SAMPLES, Section, sections

NAME = "pictures"
REASONS = {
    "": "not among what this run was measured on",
    "unsupported_length": "this scheme has no positions for this shape",
    "out_of_memory": "needs more memory than it was allowed",
    "nonfinite": "no draw: its probabilities are not finite",
}
#: frames of a clip that are shown, in two rows
FRAMES = 4
NO_LOSS, FRAME = "#B8B8B8", "#56B4E9"
# inches
LABEL, PANEL, NEAR, APART, EDGE = 1.05, 1.16, 0.09, 0.3, 0.2
ROW, LINE, HEADS, BAR = PANEL + 0.24, 0.19, 0.44, 0.75


@dataclass
class Group:
    """What one figure shows: the runs on one corpus and training shape, in the report's order."""

    data: str
    train: Shape
    sections: list[Section] = field(default_factory=list)
    #: name in the tables -> pictures of the first seed; None = none were kept
    runs: dict[str, Pictures | None] = field(default_factory=dict)

    @property
    def kept(self) -> list[Pictures]:
        return [pictures for pictures in self.runs.values() if pictures]

    @property
    def shapes(self) -> list[Shape]:
        """The training shape and the largest one."""
        found = {self.train, *(shape for pictures in self.kept for shape in pictures.shapes)}
        return list(dict.fromkeys([self.train, max(found, key=lambda n: (grid.count(n), n))]))


def gathered(collected: Collected, run_dirs: Sequence[Path]) -> list[Group]:
    """The pictures behind a report; none for text. RunError for a damaged file."""
    rows = collected.rows[["run_id", "eval_id"]].drop_duplicates()
    evaluations = list(rows.itertuples(index=False, name=None))
    files = {file.parent.name: file for run in run_dirs for file in run.glob(f"evals/*/{FILE}")}
    groups: dict[tuple[str, ...], Group] = {}
    for section in sections(collected.pooled):
        if section.axes == 1:
            continue
        key = tuple(str(section.keys[name]) for name in ("data", "tokenizer", "train_shape"))
        shape = tuple(map(int, section.train_shape.split("x")))
        group = groups.setdefault(key, Group(key[0], shape))
        group.sections.append(section)
        for run, run_id in {entry.run: f"{entry.run_id}+" for entry in section.entries}.items():
            first = [name for seed, name in evaluations if run_id.startswith(f"{seed}+")]
            found = [read(files[name], section.axes) for name in first if name in files]
            group.runs[run] = max(found, key=_largest, default=None)
    return [group for group in groups.values() if group.kept]


def _largest(pictures: Pictures) -> int:
    return max(map(grid.count, pictures.shapes), default=0)


def write_pictures(groups: Sequence[Group], out: Path) -> list[str]:
    """Write `pictures.png`, or one file per group where there are several; returns their names.

    Equal input gives equal bytes.
    """
    names = []
    for number, group in enumerate(groups, start=1):
        mark = f"-{group.data}-{grid.text(group.train)}" if len(groups) > 1 else ""
        name = f"{NAME}{mark}.png"
        if name in names:
            name = f"{NAME}{mark}-{number}.png"
        with rc_context(RC):
            buffer = io.BytesIO()
            figure(group).savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
        write_atomic(out / name, buffer.getvalue())
        names.append(name)
    return names


class _Sheet:
    """A figure that is laid out in inches from the top left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(self.figure)

    def text(self, x: float, y: float, line: str, **look: Any) -> None:
        look = {"va": "top", "ha": "left"} | look
        self.figure.text(x / self.width, 1 - y / self.height, line, **look)

    def axes(self, x: float, y: float, width: float, height: float = PANEL) -> Axes:
        w, h = self.width, self.height
        ax = self.figure.add_axes((x / w, 1 - (y + height) / h, width / w, height / h))
        ax.set_xticks([])
        ax.set_yticks([])
        return ax


def figure(group: Group) -> Figure:
    """The figure of a group."""
    shapes, levels = group.shapes, group.kept[0].levels
    block = 3 * PANEL + 2 * NEAR
    inner = len(shapes) * (block + APART) - APART
    above, below = _above(group, LABEL + inner), _below(group, LABEL + inner)
    top = 0.15 + 0.3 + LINE * len(above) + 0.08
    height = top + HEADS + ROW * len(group.runs) + BAR + LINE * len(below) + 0.1
    sheet = _Sheet(EDGE + LABEL + inner + EDGE, height)
    what = SAMPLES[len(group.train)]
    sheet.text(EDGE, 0.15, f"Held-out {what}s, pixel by pixel", fontsize=13, fontweight="bold")
    for i, (line, look) in enumerate(above):
        sheet.text(EDGE, 0.45 + LINE * i, line, **look)
    norm = Normalize(0, _ceiling(group))
    for number, shape in enumerate(shapes):
        left = EDGE + LABEL + number * (block + APART)
        title = f"{grid.text(shape)}, {'the largest' if number else 'as in training'}"
        sheet.text(left, top, title, fontsize=9.5, fontweight="bold")
        for column, name in enumerate(_columns(shape, group.kept[0].scored)):
            middle = left + column * (PANEL + NEAR) + PANEL / 2
            sheet.text(middle, top + 0.2, name, fontsize=8, color="#333333", ha="center")
        for i, pictures in enumerate(group.runs.values()):
            y = top + HEADS + ROW * i
            shown = pictures.shapes.get(shape, "") if pictures else ""
            if isinstance(shown, str):
                _refusal(sheet.axes(left, y, block), shown, 44)
                continue
            assert pictures
            axes = [sheet.axes(left + c * (PANEL + NEAR), y, PANEL) for c in range(3)]
            _draw(axes, shown, pictures, norm)
    for i, name in enumerate(group.runs):
        middle = top + HEADS + ROW * i + PANEL / 2
        label = "\n".join(textwrap.wrap(name.replace("_", "_ "), 13)).replace("_ ", "_")
        sheet.text(EDGE, middle, label, fontsize=9, fontweight="bold", va="center")
    bottom = top + HEADS + ROW * len(group.runs)
    ax = sheet.axes(EDGE + LABEL, bottom + 0.1, min(inner, 2.2 * block), 0.13)
    bar = Colorbar(ax, cmap=_loss_map(), norm=norm, orientation="horizontal", extend="max")
    bar.set_label(f"nats per pixel; {math.log(levels):.2f} = a guess among {levels} levels")
    for i, line in enumerate(below):
        y = bottom + BAR + LINE * i
        sheet.text(EDGE, y, line, fontsize=8.5, color="#555555")
    return sheet.figure


def _columns(shape: Shape, scored: Shape) -> tuple[str, str, str]:
    """Headings of the three panels of a shape."""
    if len(shape) == 2:
        whole = shape == _corner(shape, scored)
        return "picture", "loss", "continued" if whole else "corner, continued"
    frames = " ".join(str(i + 1) for i in _frames(shape))
    return f"frames {frames}", "their loss", "last, continued"


def _corner(shape: Shape, scored: Shape) -> Shape:
    """Extents of what is shown of a continued picture: the scored rows, and as many above them."""
    return min(shape[0], 2 * scored[0]), scored[1]


def _above(group: Group, inches: float) -> list[tuple[str, dict[str, Any]]]:
    """What the figure rests on, and its stamps: lines and their looks."""
    first = group.kept[0]
    seeds = any(section.counts("n_seeds") not in ("", "1") for section in group.sections)
    tier = ", ".join(dict.fromkeys(str(s.keys["tier"]) for s in group.sections))
    facts = f"tier {tier}, {group.data} {first.levels} levels, L = {grid.text(group.train)}, "
    n = len(first.samples)
    facts += f"one region, of {first.samples[0]}" + (f", which varies most of {n}" if n > 1 else "")
    facts += "; the first seed of each" if seeds else ""
    stamps = dict.fromkeys(line for s in group.sections for line in s.stamp_lines())
    red = {"fontsize": 9.5, "color": "#B00020", "fontweight": "bold"}
    lines = [(line, {"fontsize": 9, "color": "#333333"}) for line in _wrapped(facts, inches, 9)]
    return lines + [(line, red) for stamp in stamps for line in _wrapped(stamp, inches, 9.5)]


def _below(group: Group, inches: float) -> list[str]:
    """What the panels mean."""
    what = "what is framed" if len(group.train) == 2 else "the last frame"
    notes = (
        "Loss: of each pixel, given all before it in raster order; the first has none.",
        "Blue frame: the pixels that the table is about, the same at every shape; the number is "
        "their mean loss here.",
        f"Continued: {what} is drawn from the model pixel by pixel, given all before it, with the "
        "same random numbers in every row.",
    )
    return [line for note in notes for line in _wrapped(note, inches, 8.5)]


def _wrapped(text: str, inches: float, size: float) -> list[str]:
    return textwrap.wrap(text, int(inches * 72 / size / 0.56))


def _ceiling(group: Group) -> float:
    """Top of the colours: 99 pixels in a hundred are below."""
    shapes = (pictures.shapes.get(n) for pictures in group.kept for n in group.shapes)
    nats = [shown.nats[0].ravel() for shown in shapes if isinstance(shown, Shown)]
    finite = np.concatenate(nats or [np.zeros(0)])
    finite = finite[np.isfinite(finite)]
    return max(1.0, float(np.quantile(finite, 0.99))) if len(finite) else 1.0


def _loss_map() -> Any:
    """Light for a small loss, dark for a large one, also in a grey print."""
    return colormaps["magma_r"].with_extremes(bad=NO_LOSS)


def _frames(shape: Shape) -> list[int]:
    """Frames of a clip that are shown: the first, the last, and some evenly between."""
    return sorted({round(i) for i in np.linspace(0, shape[0] - 1, FRAMES)})


def _flat(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """A picture as it is; of a clip some frames, two in a row, the last at the lower right."""
    if values.ndim == 2:
        return values.astype(np.float64)
    chosen = _frames(values.shape)
    rows, columns = values.shape[1:]
    down = -(-len(chosen) // 2)
    sheet = np.full((down * (rows + 1) - 1, 2 * (columns + 1) - 1), np.nan)
    for place, frame in enumerate(chosen, start=2 * down - len(chosen)):
        y, x = place // 2 * (rows + 1), place % 2 * (columns + 1)
        sheet[y : y + rows, x : x + columns] = values[frame]
    return sheet


def _draw(axes: list[Axes], shown: Shown, pictures: Pictures, norm: Normalize) -> None:
    """The region, its loss, and how the model goes on with it."""
    grey: Any = {"cmap": colormaps["gray"].with_extremes(bad=NO_LOSS)}
    grey |= {"vmin": 0, "vmax": pictures.levels - 1}
    loss: Any = {"cmap": _loss_map(), "norm": norm}
    levels, nats = shown.levels[0], shown.nats[0]
    picture, heat, drawn = axes
    picture.imshow(_flat(levels), interpolation="nearest", **grey)
    heat.imshow(_flat(nats), interpolation="nearest", **loss)
    part = nats[tuple(slice(-n, None) for n in pictures.scored)]
    heat.set_xlabel(f"{part.mean():.2f}", fontsize=8, labelpad=2)
    _frame(heat, pictures.scored)
    if len(shown.sampled):
        last = shown.sampled[0, -1] if levels.ndim == 3 else shown.sampled[0]
        rows, columns = _corner(last.shape, pictures.scored[-2:])
        drawn.imshow(last[-rows:, -columns:], interpolation="nearest", **grey)
        _frame(drawn, pictures.scored)
    else:
        _refusal(drawn, "nonfinite", 14)


def _frame(ax: Axes, scored: Shape) -> None:
    """Frame the scored part, which ends at the lower right corner."""
    rows, columns = scored[-2:]
    right, bottom = ax.get_xlim()[1], ax.get_ylim()[0]
    around = patheffects.withStroke(linewidth=2.4, foreground="black")
    box = Rectangle((right - columns, bottom - rows), columns, rows, fill=False, clip_on=False)
    box.set(edgecolor=FRAME, linewidth=1.2, path_effects=[around], zorder=5)
    ax.add_patch(box)


def _refusal(ax: Axes, status: str, letters: int) -> None:
    """A grey panel that says why there is no picture."""
    words = textwrap.fill(REASONS.get(status, status.replace("_", " ")), letters)
    ax.set_facecolor("#E4E4E4")
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", fontsize=8.5)
