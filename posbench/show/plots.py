"""A figure of what a scheme, rescaling or sampler does, as PNG, SVG or PDF."""

import io
import textwrap
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from posbench import grid
from posbench.errors import ConfigError
from posbench.files import require_writable, write_atomic
from posbench.report.figures import DPI, RC
from posbench.show.panels import panels
from posbench.show.subject import Subject

#: suffix -> what keeps dates out of the file, so that equal input gives equal bytes
FORMATS: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
#: inches of a panel, and of a line of the head
WIDTH, HEIGHT, LINE = 4.6, 3.4, 0.19


def check_path(path: Path) -> None:
    """Refuse a name that no figure can be written to."""
    if path.suffix[1:].lower() not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise ConfigError(f"--plot={path}: must end in one of {known}")
    if path.is_dir():
        raise ConfigError(f"--plot={path}: a folder of that name is in the way")
    require_writable(f"--plot={path}", path)


@torch.no_grad()
def plot(found: Subject, facts: dict[str, Any], path: Path) -> None:
    """Write the figure."""
    check_path(path)
    suffix = path.suffix[1:].lower()
    with matplotlib.rc_context(RC | {"path.simplify": True}):
        figure = _figure(found, facts)
        figure.draw_without_rendering()  # the room for tick labels depends on the panels' sizes
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, dpi=DPI, metadata=FORMATS[suffix])
    write_atomic(path, buffer.getvalue())


def _figure(found: Subject, facts: dict[str, Any]) -> Figure:
    made = panels(found, facts["tables"])
    columns = min(2, len(made))
    rows = -(-len(made) // columns)
    about = [x for x in (facts["family"], facts["paper"]) if x]
    frame = found.frame
    if found.sampler is None:
        about += [f"{frame.heads} heads of {frame.head_dim}"]
    of_shape = [f"{grid.text(frame.shape)} in training", f"{grid.text(frame.test_shape)} in test"]
    about += of_shape if frame.shape else [f"L = {frame.train_length}", f"T = {frame.test_length}"]
    if facts["tables"].get("rotation_scale", 1.0) != 1.0:
        about += [f"cos and sin times {facts['tables']['rotation_scale']:.6g}"]
    if found.encoding is not None and any(True for _ in found.encoding.parameters()):
        about += [f"initial values of seed {frame.seed}"]
    whole = ", ".join(x.replace(" ", "\u00a0") for x in about)
    head = [line.replace("\u00a0", " ") for line in textwrap.wrap(whole, 68 * columns)]
    width = WIDTH * columns
    height = rows * HEIGHT + LINE * (len(head) + 2)
    top = 1 - LINE * (len(head) + 1.6) / height
    below = ConstrainedLayoutEngine(rect=(0.01, 0.01, 0.98, top - 0.01), wspace=0.06, hspace=0.06)
    figure = Figure(figsize=(width, height), facecolor="white", layout=below)
    FigureCanvasAgg(figure)
    place = 0.12 / width, 1 - 0.08 / height
    figure.text(*place, found.named.label, fontsize=13, fontweight="bold", va="top")
    lines = "\n".join(head)
    figure.text(place[0], place[1] - 0.27 / height, lines, fontsize=9, color="#333333", va="top")
    spec = figure.add_gridspec(rows, columns)
    for i, draw in enumerate(made):
        row, column = divmod(i, columns)
        last = i == len(made) - 1  # has what is left of its row
        draw(figure.add_subplot(spec[row, column:] if last else spec[row, column]))
    return figure
