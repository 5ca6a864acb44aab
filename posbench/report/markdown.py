"""The table as Markdown: whole intervals, the crop reference and bits per byte."""

import math

import pandas as pd

from posbench.report import accuracy, tasks
from posbench.report.judged import matrices, pipe, verdict_table, within_table
from posbench.report.orders import order_lines
from posbench.report.sections import LONG, Cell, Entry, Section, sections
from posbench.report.tables import (
    MISSING,
    REFUSALS,
    exp,
    head,
    lines_of,
    ngram_line,
    notes_of,
    plain,
    ratio_cell,
    reference_lines,
    title_of,
)


def _full(cell: Cell | None) -> str:
    """`18.6 [18.2, 19.0]`; of what explodes the median, since a mean says nothing there."""
    if cell is None:
        return MISSING
    if cell.status != "ok":
        return REFUSALS.get(cell.status, cell.status)
    value = exp(cell.nll)
    if cell.explodes and cell.median == cell.median:
        middle = exp(cell.median)
        return f"{plain(middle, middle)} (median)"
    text = plain(value, value)
    if math.isnan(cell.lo) or math.isnan(cell.hi):
        return text
    low, high = exp(cell.lo), exp(cell.hi)
    decimals = min(value, 99.0)  # the ends keep the decimals of the value
    ends = [plain(end, end if end >= 9999.5 or value >= 99.95 else decimals) for end in (low, high)]
    return f"{text} [{ends[0]}, {ends[1]}]"


def _at_length(entry: Entry, train_len: int, name: str) -> float:
    """A field at L, else at the first length that has it."""
    own = entry.cells.get(train_len)
    cells = ([own] if own else []) + (list(entry.cells.values()) if name == "crop" else [])
    return next((v for cell in cells if (v := getattr(cell, name)) == v), math.nan)


def _markdown_section(section: Section, pairs: pd.DataFrame | None) -> str:
    lines = lines_of(section)
    heads = [head(section, length) for length in section.lengths]
    ratio_heads = [head(section, length) for length in section.ratio_lengths]
    shown: list[str] = []

    def name_of(name: str, rest: str) -> str:
        inner = name.lstrip()
        indent = "&nbsp;&nbsp;" if inner != name else ""
        star = "*" if inner.endswith("*") else ""
        label = f"{inner.removesuffix('*')} {rest}".strip()
        return f"{indent}{label}{' ' + chr(92) + '*' if star else ''}"

    values, ratios = [], []
    for name, rest, entry in [*lines, *reference_lines(section)]:
        label = name_of(name, rest)
        cells = [entry.cells.get(length) for length in section.lengths]
        if not entry.cells:
            values.append([label] + [""] * (len(cells) + 2))
            ratios.append([label] + [""] * len(section.ratio_lengths))
            continue
        texts = [_full(cell) for cell in cells]
        shown += texts
        crop = exp(_at_length(entry, section.train_len, "crop"))
        bpb = _at_length(entry, section.train_len, "bpb")
        extra = ["" if crop != crop else plain(crop, crop), "" if bpb != bpb else f"{bpb:.3f}"]
        values.append([label, *texts, *extra])
        if entry.preset == LONG:  # another run, without a loss at L
            continue
        based = [entry.cells.get(length) for length in section.ratio_lengths]
        ratios.append([label] + [MISSING if c is None else ratio_cell(c) for c in based])

    base = f"ratio to L = {section.train_shape}"
    parts = [f"**{title_of(section, short=False)}**"]
    if values:
        parts.append(pipe(["perplexity", *heads, "crop", "bits per byte at L"], values))
        parts += [pipe([base, *ratio_heads], ratios)] if ratio_heads else []
    facts = [ngram_line(section)] if ngram_line(section) else []
    facts.append(
        "crop: perplexity of the unscaled model with exactly the L tokens before each target"
    )
    if any(text.endswith("(median)") for text in shown):
        facts.append(f"(median): of what explodes, over {section.unit()}; a mean says little there")
    facts += [note.replace("* ", "\\* ", 1) for note in notes_of(section, shown)]
    parts.append("\n".join(f"- {fact}" for fact in facts))
    parts += [verdict_table(section), within_table(section)]
    parts.append(matrices(section, pairs) if pairs is not None else "")
    if orders := order_lines(section):
        parts.append("\n".join(["```text", *orders, "```"]))
    return "\n\n".join(part for part in parts if part)


def _any_section(section: Section, pairs: pd.DataFrame | None) -> str:
    of_task = section.keys["protocol"] == tasks.PROTOCOL
    return accuracy.markdown(section) if of_task else _markdown_section(section, pairs)


def markdown_table(rows: pd.DataFrame, pairs: pd.DataFrame | None = None) -> str:
    """The pooled rows in GitHub's Markdown.

    As `terminal_table`, with whole intervals, the crop reference, bits per byte, verdicts, longest
    lengths and, with the `pairs` of `compare.compared`, who beats whom.
    """
    return "\n\n".join(_any_section(section, pairs) for section in sections(rows)) + "\n"
