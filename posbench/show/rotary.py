"""Panels for what rotates: turns, wavelengths, and how scores fall with the distance."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from posbench.report.style import DASHED, DOTTED, REFERENCE
from posbench.show.axes import LEGEND, dress, look_of, mark_length, octaves
from posbench.show.printed import first_head
from posbench.show.subject import Subject
from posbench.show.tables import AXES, Layer

#: distances of scores
SCORES = 8192
#: of the axes of pictures and clips, in order
AXIS_COLORS = ("#0072B2", "#D55E00", "#009E73")
AXIS_MARKERS = ("o", "s", "^")


def before(found: Subject) -> list[float] | None:
    """Frequencies before a rescaling; None where there is none."""
    if found.rule is None or found.trained is None:
        return None
    before: list[float] = Layer(found, found.trained).own([])["inv_freq"]
    return before


def turns(ax: Axes, found: Subject, tables: dict[str, Any]) -> None:
    """Turns of every pair within the training length, and within the test under a rescaling.

    Under a position map, a test is as long as its largest relative position says.
    """
    frame, look, freq = found.frame, look_of(found), np.array(tables["inv_freq"])
    earlier, matrix = before(found), tables.get("relative_position")
    unscaled = freq if earlier is None else np.array(earlier)
    pairs, color = np.arange(len(freq)), look.color if earlier is None else REFERENCE

    def plot(frequencies: Any, length: int, label: str, **style: Any) -> None:
        y = np.where(frequencies > 0, frequencies * length / (2 * math.pi), np.nan)
        ax.plot(pairs, y, label=f"{label}, {length} tokens", **style)

    trained = unscaled * frame.train_length / (2 * math.pi)
    plot(unscaled, frame.train_length, "trained", color=color, lw=1, marker="o", ms=5, zorder=2)
    partial = (trained < 1) & (trained > 0)
    hollow: Any = {"marker": "o", "ms": 5, "mfc": "white", "mec": color, "zorder": 3}
    ax.plot(pairs[partial], trained[partial], ls="", **hollow)
    if earlier is not None:
        plot(unscaled, frame.test_length, "unscaled", color=REFERENCE, lw=1, ls=DOTTED)
    if matrix or (earlier is not None and (freq != unscaled).any()):
        largest = max(row[j] for i, row in enumerate(matrix) for j in range(i + 1)) if matrix else 0
        length = math.ceil(largest) + 1 if matrix else frame.test_length
        style = {"color": look.color, "lw": 1.4, "marker": look.marker, "ms": 4.5}
        plot(freq, length, found.named.label, **style)
    ax.axhline(1, color="#B00020", lw=0.9, ls=DASHED, zorder=1)
    ax.set_yscale("log")
    ax.legend(**LEGEND)
    title = f"turns by pair: {(trained >= 1).sum()} of {len(pairs)} turn at least once in L"
    frozen = int((trained == 0).sum())
    dress(ax, title + (f", {frozen} never" if frozen else ""), "pair", "full turns")


def wavelengths(ax: Axes, found: Subject, freq: list[float]) -> None:
    frame, look = found.frame, look_of(found)
    pairs = np.arange(len(freq))
    with np.errstate(divide="ignore"):
        trained = 2 * math.pi / np.array(before(found))
        after = 2 * math.pi / np.array(freq)
    ax.plot(pairs, trained, color=REFERENCE, marker="o", ms=4.5, mfc="white", lw=1, label="trained")
    ax.plot(pairs, after, color=look.color, marker=look.marker, ms=4.5, lw=1.4,
            label=found.named.label)  # fmt: skip
    for length, name in ((frame.train_length, "L"), (frame.test_length, "T")):
        ax.axhline(length, color="#999999", lw=0.9, zorder=1)
        ax.annotate(f"{name} = {length}", (0, length), xycoords=("axes fraction", "data"),
                    xytext=(3, 2), textcoords="offset points", fontsize=8,
                    color="#555555")  # fmt: skip
    ax.set_yscale("log")
    ax.legend(**LEGEND, loc="lower right")
    dress(ax, "wavelength by pair", "pair", "tokens a turn")


def decay(ax: Axes, found: Subject, tables: dict[str, Any]) -> None:
    """Score of equal contents by distance, with the position map where there is one."""
    frame, look = found.frame, look_of(found)
    assert found.encoding is not None and found.trained is not None
    if found.on_a_grid:
        _decay_by_axis(ax, found)
        return
    distances = list(range(min(frame.test_length, SCORES)))
    used: Sequence[float] = distances
    if "relative_position" in tables:
        used = [tables["relative_position"][-1][-1 - d] for d in distances]
    row = Layer(found, found.encoding).similarity(used).double().numpy()
    seen = int(np.isfinite(row).sum())  # a window ends it
    ax.plot(distances[:seen], row[:seen], color=look.color, lw=0.7, alpha=0.3)
    if found.rule is not None:
        plain = Layer(found, found.trained).similarity(distances).double().numpy()
        ax.plot(distances, _smooth(plain), color=REFERENCE, lw=1.2, ls=DASHED, label="unscaled")
    ax.plot(distances[:seen], _smooth(row[:seen]), color=look.color, lw=1.6,
            label=found.named.label)  # fmt: skip
    ax.axhline(0, color="#999999", lw=0.8, zorder=1)
    if found.rule is not None:
        ax.legend(**LEGEND)
    octaves(ax, max(2, distances[-1]))
    if frame.train_length < distances[-1]:
        mark_length(ax, frame.train_length)
    title = "score of a key like the query (bold: local mean)"
    dress(ax, title, "distance, query minus key", "share of distance 0")


def _decay_by_axis(ax: Axes, found: Subject) -> None:
    """The same along each axis of a picture or clip, the other coordinates equal."""
    assert found.encoding is not None
    layer, frame = Layer(found, found.encoding), found.frame
    longest = 0
    for axis, name in enumerate(AXES[len(frame.shape)]):
        distances = list(range(min(frame.test_shape[axis], SCORES)))
        row = layer.similarity(distances, axis).double().numpy()
        # the first ones broad, so that equal lines are all seen
        ax.plot(distances, row, color=AXIS_COLORS[axis], lw=(3.2, 2.0, 0.9)[axis], label=name)
        longest = max(longest, len(distances) - 1)
        if frame.shape[axis] < len(distances):
            ax.axvline(frame.shape[axis], color=AXIS_COLORS[axis], lw=0.9, ls=DOTTED, zorder=1)
    ax.axhline(0, color="#999999", lw=0.8, zorder=1)
    ax.legend(**LEGEND)
    octaves(ax, max(2, longest))
    title = "score of a key like the query (dotted: training)"
    dress(ax, title, "distance along one axis", "share of distance 0")


def axis_map(ax: Axes, found: Subject, table: dict[str, Any]) -> None:
    """Wavelength of every pair along the axes it turns with; of head 0 where heads differ."""
    assert found.trained is not None
    rows, pairs = np.array(first_head(table)), np.arange(len(first_head(table)))
    several = isinstance(table["values"][0][0], list)
    with np.errstate(divide="ignore"):
        waves = np.where(rows == 0, np.nan, 2 * math.pi / np.abs(rows))
        if found.rule is not None:
            earlier = np.abs(first_head(Layer(found, found.trained).axis_map()))
            trained = np.where(earlier == 0, np.nan, 2 * math.pi / earlier)
            hollow: Any = {"ls": "", "marker": "o", "ms": 4.5, "mfc": "white", "mec": REFERENCE}
            ax.plot(pairs, np.nanmin(trained, axis=1, initial=math.inf), label="trained", **hollow)
    for axis, (name, extent) in enumerate(zip(table["axes"], table["extents"], strict=True)):
        look: Any = {"color": AXIS_COLORS[axis], "marker": AXIS_MARKERS[axis], "ms": 4.5}
        ax.plot(pairs, waves[:, axis], ls="" if several else "-", lw=1, label=name, **look)
        # extents that are equal are dashed in turn
        dashes = (4 * axis, (4, 4 * (len(table["axes"]) - 1)))
        ax.axhline(extent, color=AXIS_COLORS[axis], lw=1, ls=dashes, zorder=1)
    still = int(np.isnan(waves).all(1).sum())
    ax.set_yscale("log")
    ax.set_xlim(-0.5, len(pairs) - 0.5)
    ax.legend(**LEGEND)
    title = "axis map" + (" of head 0" if several else "")
    title += f", {still} of {len(pairs)} pairs do not turn" if still else ""
    dress(ax, title, "pair (dashed: extent in training)", "tokens a turn")


def directions(ax: Axes, found: Subject, table: dict[str, Any]) -> None:
    """Frequencies of every head along the last two axes."""
    values = np.array(table["values"], dtype=float)
    colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(values)))
    for head, color in zip(values, colors, strict=True):
        ax.plot(head[:, -1], head[:, -2], ls="", marker="o", ms=3.5, color=color)
    most = 1.08 * np.abs(values[..., -2:]).max()
    ax.set_xlim(-most, most)
    ax.set_ylim(-most, most)
    ax.axhline(0, color="#999999", lw=0.8, zorder=1)
    ax.axvline(0, color="#999999", lw=0.8, zorder=1)
    ax.set_aspect("equal")
    title = f"directions of the pairs of all {len(values)} heads"
    dress(ax, title, f"radians a {table['axes'][-1]}", f"radians a {table['axes'][-2]}")


def _smooth(values: Any) -> Any:
    """Mean over the distances within a fifth of each."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low = index - index // 5
    high = np.minimum(index + index // 5, len(values) - 1)
    return (total[high + 1] - total[low]) / (high + 1 - low)
