"""What a figure of `posbench show` has in it: one function for each kind of table."""

from collections.abc import Callable
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from posbench.report.style import scheme_style
from posbench.show.axes import LEGEND, dress, lines, look_of, mark_length, octaves
from posbench.show.rotary import axis_map, before, decay, directions, turns, wavelengths
from posbench.show.subject import Subject, spread
from posbench.show.tables import Layer

Panel = Callable[[Axes], None]
#: a bias below it leaves a weight of nothing
LOWEST = -20.0
#: a weight below it is left out
WEIGHT = 1e-9
#: positions of an embedding, and tokens of a row of weights
POSITIONS, TOKENS = 128, 64
#: distances of a bias that are all drawn
DENSE = 8192


def panels(found: Subject, tables: dict[str, Any]) -> list[Panel]:
    """The panels that fit what is shown; at least one."""
    if found.encoding is None:
        return [lambda ax: _sampled(ax, found, tables["positions"])]
    layer, made = Layer(found, found.encoding), []
    freq, scale = tables.get("inv_freq"), tables.get("logit_scale")
    if "relative_position" in tables:
        made.append(lambda ax: _map(ax, found, tables["relative_position"]))
    if "axis_map" in tables:
        made.append(lambda ax: axis_map(ax, found, tables["axis_map"]))
        if isinstance(tables["axis_map"]["values"][0][0], list):
            made.append(lambda ax: directions(ax, found, tables["axis_map"]))
        made.append(lambda ax: decay(ax, found, tables))
    elif freq:
        made.append(lambda ax: turns(ax, found, tables))
        if before(found) not in (None, freq):
            made.append(lambda ax: wavelengths(ax, found, freq))
        made.append(lambda ax: decay(ax, found, tables))
    if "bias" in tables:
        made.append(lambda ax: _bias(ax, found, layer, tables["bias"].get("query")))
        if "query" in tables["bias"] and not found.encoding.shift_invariant:
            made.append(lambda ax: _bias_by_query(ax, found, layer))
    if scale and constant(scale) is None:
        made.append(lambda ax: _scale(ax, found, scale))
    if "embedding" in tables:
        made.append(lambda ax: _embedding(ax, found, layer))
    if "weights" in tables or not made:
        made.append(lambda ax: _weights(ax, found, layer))
    return made


def constant(scale: dict[str, Any]) -> float | None:
    """The factor on the scores, where it is the same for every query."""
    values = scale["values"]
    same = isinstance(values[0], float) and min(values) == max(values)
    return values[0] if same and len(values) > 1 else None


def _bias(ax: Axes, found: Subject, layer: Layer, query: int | None) -> None:
    distances = spread((query or found.frame.test_length - 1) + 1, DENSE, 48)
    rows = layer.bias(distances, None if query is None else [query])["values"]
    lines(ax, distances, rows, look_of(found).color)
    values = np.array(rows, dtype=float)
    low, high = np.nanmin(values), np.nanmax(values)
    title = "bias by distance" if query is None else f"bias by distance, query at {query}"
    if low < LOWEST < high:
        ax.set_ylim(LOWEST, high + 0.05 * (high - LOWEST))
        title += f" (cut at {LOWEST:g})"
    octaves(ax, max(distances[-1], 2))
    if found.frame.train_length < distances[-1]:
        mark_length(ax, found.frame.train_length)
    dress(ax, title, "distance, query minus key", "added to the scores")


def _bias_by_query(ax: Axes, found: Subject, layer: Layer) -> None:
    """Head 0 for queries at a quarter of L, L and the end of the test."""
    frame = found.frame
    queries = sorted({frame.train_length // 4, frame.train_length - 1, frame.test_length - 1})
    colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.8, len(queries)))
    for query, color in zip(queries, colors, strict=True):
        distances = spread(query + 1, 256, 8)
        row = layer.bias(distances, [query])["values"][0]
        ax.plot(distances, row, color=color, lw=1.6, label=f"query at {query}")
    ax.legend(**LEGEND)
    octaves(ax, max(2, queries[-1]))
    dress(ax, "bias by distance, head 0", "distance, query minus key", "added to the scores")


def _scale(ax: Axes, found: Subject, scale: dict[str, Any]) -> None:
    rows = scale["values"]
    lines(
        ax, scale["positions"], rows if isinstance(rows[0], list) else [rows], look_of(found).color
    )
    octaves(ax, max(2, scale["positions"][-1]))
    if found.frame.train_length < scale["positions"][-1]:
        mark_length(ax, found.frame.train_length)
    dress(ax, "factor on q . k", "position of the query", "factor")


def _embedding(ax: Axes, found: Subject, layer: Layer) -> None:
    """Positions by channels."""
    last = min(POSITIONS, found.max_length or POSITIONS)
    values = np.array(layer.embedding(list(range(last)))["values"], dtype=float)
    most = np.abs(values).max() or 1.0
    shown = ax.imshow(
        values, aspect="auto", origin="lower", cmap="RdBu_r", vmin=-most, vmax=most,
        interpolation="nearest",
    )  # fmt: skip
    ax.figure.colorbar(shown, ax=ax, shrink=0.9)
    dress(ax, "added to the token stream", "channel", "position")
    ax.grid(False)


def _sampled(ax: Axes, found: Subject, table: dict[str, list[float]]) -> None:
    color = scheme_style(found.named.label).color
    for (what, positions), look in zip(table.items(), _SAMPLED, strict=True):
        label = f"{what}, {len(positions)} tokens"
        ax.plot(positions, color=color, label=label, solid_capstyle="butt", **look)
    ax.legend(**LEGEND)
    dress(ax, f"positions drawn with seed {found.frame.seed}", "token", "position")


#: a broad line for training, a thin one for the test
_SAMPLED: tuple[dict[str, Any], ...] = ({"lw": 6, "alpha": 0.35}, {"lw": 1.6})


def _map(ax: Axes, found: Subject, matrix: list[list[float]]) -> None:
    """Relative position by query and key; red where training had none so large."""
    values = np.array(matrix, dtype=float)
    hidden = np.triu(np.ones_like(values, dtype=bool), 1)
    seen = found.frame.train_length - 1
    cmap = matplotlib.colormaps["viridis"].with_extremes(over="#B00020", bad="white")
    shown = ax.imshow(np.ma.masked_array(values, hidden), cmap=cmap, vmin=0, vmax=seen,
                      interpolation="nearest")  # fmt: skip
    largest = values[~hidden].max()
    ax.figure.colorbar(shown, ax=ax, shrink=0.9, extend="max" if largest > seen else "neither")
    dress(ax, f"relative position, largest {largest:g}, L = {seen + 1}", "key", "query")
    ax.grid(False)


def _weights(ax: Axes, found: Subject, layer: Layer) -> None:
    """The last query's weights by distance."""
    length = min(TOKENS, found.frame.test_length, found.max_length or TOKENS)
    rows = layer.weights(length)[:, -1].flip(-1).double().numpy()
    shown = np.where(rows > WEIGHT, rows, np.nan)
    lines(ax, range(length), shown, look_of(found).color)
    kept = shown[shown > 0]
    if kept.size and kept.min() < 0.1 * kept.max():
        ax.set_yscale("log")
    else:
        ax.set_ylim(0, 1.4 * kept.max(initial=1 / length))
    title = f"weights of the last of {length} tokens"
    dress(ax, title, "distance, query minus key", "weight where all q . k are 0")
