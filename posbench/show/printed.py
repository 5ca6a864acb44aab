"""The tables of numbers, as text."""

import math
from collections.abc import Callable
from typing import Any

import torch

from posbench import grid as posbench_grid
from posbench.show.grid import doubling, even, full, grid, short, wrapped
from posbench.show.subject import Subject
from posbench.show.tables import Layer


def printed(found: Subject, tables: dict[str, Any]) -> list[str]:
    """One block of text for every table."""
    tables = dict(tables)
    blocks = []
    if "axis_map" in tables:
        scale = tables.pop("rotation_scale", 1.0)
        tables.pop("inv_freq", None)
        blocks.append(_axis_map(found, tables.pop("axis_map"), scale))
    if "inv_freq" in tables:
        blocks.append(_pairs(found, tables.pop("inv_freq"), tables.pop("rotation_scale", 1.0)))
    known: dict[str, Callable[[Any], str]] = {
        "slopes": lambda t: grid(
            "slopes", "head", range(len(t)), ["slope"], lambda i, j: full(t[i])
        ),
        "buckets": lambda t: _buckets(found, t),
        "bias": lambda t: _bias(found, t),
        "logit_scale": lambda t: _scale(found, t),
        "embedding": lambda t: _embedding(found, t),
        "rotation": _rotation,
        "relative_position": _relative,
        "weights": _weights,
        "positions": _positions,
    }
    for name, table in tables.items():
        blocks.append(known[name](table) if name in known else _any(name, table))
    return blocks


#: distances that are looked through for the first one of a bucket
EVERY = 1 << 20


def _start(found: Subject) -> str:
    """What the numbers of a learned or contextual scheme are."""
    assert found.encoding is not None
    said = []
    if any(True for _ in found.encoding.parameters()):
        said.append(f"initial values of seed {found.frame.seed}")
    if "prepare" in found.encoding.hooks:
        said.append("a stream of zeros")
    return f" ({', '.join(said)})" if said else ""


def _pairs(found: Subject, freq: list[float], scale: float) -> str:
    """Frequencies, wavelengths, turns within the training length, and what a rescaling changed."""
    length = found.frame.train_length
    heads = ["inv_freq", "wavelength", f"turns in {length}"]
    before = None
    if found.rule is not None and found.trained is not None:
        before = Layer(found, found.trained).own([])["inv_freq"]
        heads += ["trained", "ratio"]

    def cell(i: int, j: int) -> str:
        theta = freq[i]
        turns = length * theta / (2 * math.pi)
        row: list[Any] = [full(theta), 2 * math.pi / theta if theta else math.inf, turns]
        if before is not None:
            row += [before[i], theta / before[i] if before[i] else 1.0]
        return row[j] if j == 0 else f"{row[j]:.5g}"

    as_shown = "" if before is None else " as rescaled"
    turning = sum(length * theta / (2 * math.pi) >= 1 for theta in freq)
    title = (
        f"rotary pairs ({turning} of {len(freq)} turn at least once in {length} tokens{as_shown}; "
        f"factor on cos and sin {full(scale)})"
    )
    return grid(title, "pair", range(len(freq)), heads, cell)


def _axis_map(found: Subject, table: dict[str, Any], scale: float) -> str:
    """What every pair turns with: an axis, its wavelength, and its turns within the extent.

    Where pairs turn with several axes, of head 0: the frequency along each.
    """
    assert found.trained is not None
    rows, axes, extents = first_head(table), table["axes"], table["extents"]
    earlier = first_head(Layer(found, found.trained).axis_map()) if found.rule else rows
    single = all(sum(map(bool, row)) <= 1 for row in rows)
    heads = ["axis", "inv_freq"] if single else [f"along {axis}" for axis in axes]
    heads += ["wavelength", "extent", "turns"] if single else ["wavelength", "turns"]
    heads += ["trained", "ratio"] if found.rule else []

    def cell(i: int, j: int) -> str:
        row, size = rows[i], math.hypot(*rows[i])
        turns = sum(abs(f) * n for f, n in zip(row, extents, strict=True)) / (2 * math.pi)
        wave = 2 * math.pi / size if size else math.inf
        if single:
            axis = next((a for a, f in enumerate(row) if f), None)
            known: list[Any] = ["-", "-"] if axis is None else [axes[axis], str(extents[axis])]
            shown = [known[0], size, wave, known[1], turns]
        else:
            shown = [*row, wave, turns]
        before = math.hypot(*earlier[i])
        shown += [before, size / before if before else 1.0]
        return shown[j] if isinstance(shown[j], str) else f"{shown[j]:.5g}"

    size = posbench_grid.text(tuple(extents))
    of_head = "" if single else f" of head 0 in layer {found.frame.layer}{_start(found)}"
    title = (
        f"axis map{of_head}: what turns each pair, wavelengths in tokens along it, and full turns "
        f"within {size} ({' x '.join(axes)}; factor on cos and sin {full(scale)})"
    )
    return grid(title, "pair", range(len(rows)), heads, cell)


def first_head(table: dict[str, Any]) -> list[list[float]]:
    """Frequency of every pair along each axis; of head 0 where heads differ."""
    values = table["values"]
    rows: list[list[float]] = values[0] if isinstance(values[0][0], list) else values
    return rows


def _buckets(found: Subject, buckets: list[int]) -> str:
    """The first of the distances in every bucket that is asked for."""
    assert found.encoding is not None
    every = range(min(max(found.distances) + 1, EVERY))
    shown = found.encoding.own_tables(torch.tensor(every)).get("buckets", [])
    first: dict[int, int] = {}
    for distance, bucket in enumerate(shown):
        if bucket in buckets:
            first.setdefault(bucket, distance)
    return wrapped("bucket:first distance ", " ".join(f"{b}:{d}" for b, d in first.items()))


def _bias(found: Subject, bias: dict[str, Any]) -> str:
    distances, values = bias["distances"], bias["values"]
    query = f" of the query at {bias['query']}" if "query" in bias else ""
    title = f"bias{query} by distance and head{_start(found)}"
    heads = [f"head {h}" for h in range(len(values))]
    return grid(
        title,
        "distance",
        distances,
        heads,
        lambda i, j: short(values[j][i], 4),
        doubling(distances),
    )


def _scale(found: Subject, scale: dict[str, Any]) -> str:
    positions, values = scale["positions"], scale["values"]
    by_head = isinstance(values[0], list)
    rows = values if by_head else [values]
    if all(v == rows[0][0] for row in rows for v in row):
        return wrapped("factor on q . k: ", f"{full(rows[0][0])} at every position{_start(found)}")
    heads = [f"head {h}" for h in range(len(rows))] if by_head else ["factor"]
    cell = short if by_head else full
    title = f"factor on q . k by position{_start(found)}"
    return grid(
        title, "position", positions, heads, lambda i, j: cell(rows[j][i]), doubling(positions)
    )


def _embedding(found: Subject, table: dict[str, Any]) -> str:
    positions, values = table["positions"], table["values"]
    title = f"embedding by position and channel{_start(found)}"
    channels = range(len(values[0]))
    return grid(
        title,
        "position",
        positions,
        channels,
        lambda i, j: short(values[i][j], 4),
        doubling(positions),
    )


def _rotation(table: dict[str, Any]) -> str:
    """cos and sin together, for every pair."""

    def cell(i: int, j: int) -> str:
        return f"{short(table['cos'][i][j], 4)} {short(table['sin'][i][j], 4)}"

    heads = [f"pair {p}" for p in range(len(table["cos"][0]))]
    return grid("cos and sin by position", "position", table["positions"], heads, cell)


def _relative(matrix: list[list[Any]]) -> str:
    return _square("relative position by query and key", matrix, list(range(len(matrix))))


def _weights(table: dict[str, Any]) -> str:
    title = "weights of head 0 by query and key, where all q . k are 0"
    return _square(title, table["values"][0], table["positions"])


def _square(title: str, rows: list[list[Any]], positions: list[int]) -> str:
    """Queries by keys, keys after the query left out."""

    def cell(i: int, j: int) -> str:
        return f"{rows[i][j]:.3g}" if j <= i else ""

    return grid(title, "query", positions, positions, cell, even(len(rows), 16))


def _positions(table: dict[str, list[Any]]) -> str:
    lines = []
    for what, values in table.items():
        some = [str(v) for v in values[:8]]
        if len(values) > 16:
            some.append("...")
        some += [str(v) for v in (values[-4:] if len(values) > 16 else values[8:])]
        lines.append(wrapped(f"  {what:<5} ", f"{' '.join(some)} ({len(values)} tokens)"))
    return "\n".join(["positions, all with --json", *lines])


def _any(name: str, values: Any) -> str:
    """A table that only its scheme knows."""
    if not isinstance(values, list):
        return wrapped(f"{name}: ", full(values) if not isinstance(values, dict) else "see --json")
    if any(isinstance(v, list | dict) for v in values):
        return f"{name}: see --json"
    return grid(name, "", range(len(values)), [name], lambda i, j: full(values[i]))
