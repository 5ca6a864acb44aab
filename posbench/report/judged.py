"""Tables of the Markdown report about what lengths are good for.

Verdicts with the gain in units of b and the share of the headroom, longest lengths, who beats whom.
"""

import math

import pandas as pd
from tabulate import tabulate

from posbench.evaluate.verdicts import longest_within
from posbench.report import compare
from posbench.report.entries import Cell, Entry
from posbench.report.sections import Section
from posbench.report.tables import MISSING, REFUSALS, head

WORDS = {1: "win", -1: "loss", 0: "-"}


def pipe(heads: list[str], body: list[list[str]]) -> str:
    """A table in GitHub's Markdown, the first column to the left."""
    align = ["left", *["right"] * (len(heads) - 1)]
    return tabulate(body, heads, tablefmt="pipe", colalign=align, disable_numparse=True)


def name_of(entry: Entry) -> str:
    """Its label, with the star of a stamp."""
    return f"{entry.label} \\*" if entry.stamps else entry.label


def verdict_table(section: Section) -> str:
    """One line an entry, one column a length past L; empty where nothing has a verdict."""
    lengths = [length for length in section.lengths if length > section.train_len]
    if not any(cell.verdict for cell in section.cells):
        return ""
    body = [
        [name_of(entry), *(_verdict(entry.cells.get(length)) for length in lengths)]
        for entry in section.entries
        if not entry.unsupported
    ]
    heads = ["verdict, gain in b", *(head(section, length) for length in lengths)]
    facts = [
        "gain in b: loss of the crop to L less this loss, in units of what context is worth inside "
        "L (loss after 16 tokens less that of the crop)",
        "%: share of the headroom, that is of what the run trained longer gains over the crop; "
        "holds without a % does not say that there was anything to gain",
    ]
    return "\n\n".join([pipe(heads, body), "\n".join(f"- {fact}" for fact in facts)])


def _verdict(cell: Cell | None) -> str:
    """`uses +0.12 [+0.08, +0.16], 45 % [30, 60]`"""
    if cell is None:
        return MISSING
    if cell.status != "ok":
        return REFUSALS.get(cell.status, cell.status)
    if not cell.verdict:
        return "no verdict"
    if cell.explodes:
        return cell.verdict
    value, low, high = cell.gain_b
    text = f"{cell.verdict} {value:+.2f} [{low:+.2f}, {high:+.2f}]"
    share, *ends = (100 * part for part in cell.share)
    if math.isnan(share):
        return text
    inside = ", ".join(f"{end:.0f}" for end in ends)
    return f"{text}, {share:.0f} %" + ("" if math.isnan(ends[0]) else f" [{inside}]")


def within(section: Section) -> pd.DataFrame:
    """`longest_within` of the section's entries, named as in `entry_key`."""
    rows = [
        {
            "run_id": entry.run_id,
            "rescale": entry.rescale,
            "factor": entry.factor,
            "options": entry.options,
            "train_len": section.train_len,
            "test_len": length,
            "nll": cell.nll,
            "crop_nll": cell.crop,
        }
        for entry in section.entries
        if not entry.unsupported
        for length, cell in entry.cells.items()
    ]
    return longest_within(pd.DataFrame(rows)) if rows else pd.DataFrame()


def within_table(section: Section) -> str:
    """How far each entry stays within 1 % and 5 % of the crop loss; empty without a crop."""
    found = within(section)
    if found.empty:
        return ""
    margins = [name for name in found if str(name).startswith("within_")]
    names = {entry_key(entry): name_of(entry) for entry in section.entries}
    body = []
    for row in found.to_dict("records"):
        key = tuple(row[name] for name in ("run_id", "rescale", "factor", "options"))
        cells = [MISSING if row[name] is None else head(section, row[name]) for name in margins]
        body.append([names[key], *cells, head(section, row["longest"])])
    titles = [str(name).replace("within_", "within ").replace("%", " %") for name in margins]
    return pipe(["longest length with a loss", *titles, "tested"], body)


def entry_key(entry: Entry) -> tuple[str, ...]:
    return entry.run_id, entry.rescale, entry.factor, entry.options


def matrices(section: Section, pairs: pd.DataFrame) -> str:
    """Who beats whom at 4 L and 16 L; empty where fewer than two entries were compared."""
    parts = []
    for length in compare.lengths_of(section):
        entries = compare.shown(section, length)
        found = compare.outcomes(section, length, pairs)
        if len(entries) < 2 or not found:
            continue
        body = [
            [f"{i} {name_of(row)}", *(WORDS[found.get((row.label, c.label), 0)] for c in entries)]
            for i, row in enumerate(entries, 1)
        ]
        for i, line in enumerate(body, 1):
            line[i] = ""
        heads = [
            f"row against column at {head(section, length)}",
            *(str(i + 1) for i in range(len(entries))),
        ]
        parts.append(pipe(heads, body))
    if not parts:
        return ""
    note = (
        f"- win: lower loss, paired over {section.unit()}, 5 % "
        "after Holm's correction for all pairs of the length; -: undecided"
    )
    return "\n\n".join([*parts, note])
