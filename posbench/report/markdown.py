"""The table as Markdown: whole intervals, the crop reference and bits per byte."""

import math

import pandas as pd
from tabulate import tabulate

from posbench.report.orders import order_lines
from posbench.report.sections import Cell, Entry, Section, sections
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
    title_of,
)


def _full(cell: Cell | None) -> str:
    """`18.6 [18.2, 19.0]`"""
    if cell is None:
        return MISSING
    if cell.status != "ok":
        return REFUSALS.get(cell.status, cell.status)
    value = exp(cell.nll)
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


def _markdown_section(section: Section) -> str:
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
    for name, rest, entry in lines:
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
        based = [entry.cells.get(length) for length in section.ratio_lengths]
        ratios.append([label] + [MISSING if c is None else ratio_cell(c) for c in based])

    def pipe(title: str, head: list[str], body: list[list[str]]) -> str:
        align = ["left", *["right"] * len(head)]
        return tabulate(
            body, [title, *head], tablefmt="pipe", colalign=align, disable_numparse=True
        )

    base = f"ratio to L = {section.train_shape}"
    parts = [f"**{title_of(section, short=False)}**"]
    if values:
        parts += [pipe("perplexity", [*heads, "crop", "bits per byte at L"], values)]
        parts += [pipe(base, ratio_heads, ratios)] if ratio_heads else []
    facts = [ngram_line(section)] if ngram_line(section) else []
    facts.append(
        "crop: perplexity of the unscaled model with exactly the L tokens before each target"
    )
    facts += [note.replace("* ", "\\* ", 1) for note in notes_of(section, shown)]
    parts.append("\n".join(f"- {fact}" for fact in facts))
    if orders := order_lines(section):
        parts.append("\n".join(["```text", *orders, "```"]))
    return "\n\n".join(parts)


def markdown_table(rows: pd.DataFrame) -> str:
    """As `terminal_table`, with whole intervals, the crop reference and bits per byte, in GitHub's
    Markdown.
    """
    return "\n\n".join(_markdown_section(section) for section in sections(rows)) + "\n"
