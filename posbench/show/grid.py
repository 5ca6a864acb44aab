"""Tables of text that fit a terminal, long ones by some of their rows and columns."""

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

WIDTH = 80
ROWS = 14


def short(value: Any, digits: int = 6) -> str:
    """A number in a few digits."""
    if value is None:
        return "-"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def full(value: Any) -> str:
    """A number as Python reads it back."""
    return "-" if value is None else repr(value)


def even(count: int, most: int) -> list[int]:
    """At most `most` of the indices below `count`, evenly spaced, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def doubling(values: Sequence[int], most: int = ROWS + 2) -> list[int]:
    """Indices of the values 0, 1, 2, 4, ... and of the last one; of all, or some, where few are."""
    if len(values) <= most:
        return list(range(len(values)))
    last = len(values) - 1
    found = [i for i, v in enumerate(values) if v & (v - 1) == 0 or i == last]
    return found if 4 <= len(found) <= most else even(len(values), most)


def grid(
    title: str,
    corner: str,
    rows: Sequence[Any],
    columns: Sequence[Any],
    cell: Callable[[int, int], str],
    kept: Sequence[int] | None = None,
    align: str = ">",
) -> str:
    """A table with a title; `cell(row, column)` gives its entries, `kept` the rows to show."""
    picked = list(kept) if kept is not None else even(len(rows), ROWS)
    heads = [str(c) for c in columns]
    labels = [corner, *(str(rows[i]) for i in picked)]
    first = max(map(len, labels))
    shown = list(range(len(heads)))
    widths = [max(len(heads[j]), *(len(cell(i, j)) for i in picked)) for j in shown]
    most = len(shown)
    while most > 1 and 2 + first + sum(2 + widths[j] for j in shown) > WIDTH:
        most -= 1
        shown = even(len(heads), most) if most > 1 else [0]
    if len(picked) < len(rows) or len(shown) < len(heads):
        parts = [(len(picked), len(rows), "rows"), (len(shown), len(heads), "columns")]
        some = " and ".join(f"{n} of {m} {what}" for n, m, what in parts if n < m)
        title = f"{title}: {some}, all with --json"
    lines = textwrap.wrap(title, WIDTH)
    rows_of_cells = [[heads[j] for j in shown]]
    rows_of_cells += [[cell(i, j) for j in shown] for i in picked]
    for label, entries in zip(labels, rows_of_cells, strict=True):
        padded = [f"{e:{align}{widths[j]}}" for j, e in zip(shown, entries, strict=True)]
        lines.append("  ".join(["", f"{label:{align}{first}}", *padded]))
    return "\n".join(line.rstrip() for line in lines)


def wrapped(lead: str, text: str) -> str:
    """A line of text behind its lead, wrapped under itself."""
    indent = " " * len(lead)
    return "\n".join(textwrap.wrap(text, WIDTH, initial_indent=lead, subsequent_indent=indent))
