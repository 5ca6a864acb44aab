"""The table for a terminal: perplexity, its ratio to L, the order of rescalings, notes."""

import math
import textwrap
from collections.abc import Callable, Iterable

import pandas as pd

from posbench.evaluate.protocols import REPEAT
from posbench.evaluate.verdicts import USES
from posbench.report import tasks
from posbench.report.names import SHORT
from posbench.report.orders import order_lines
from posbench.report.sections import Cell, Entry, Section, sections

#: status of a row without numbers -> its word in the table
REFUSALS = {
    "unsupported_length": "len",
    "unsupported_rescale": "resc",
    "unsupported_protocol": "prot",
    "nonfinite": "nan",
    "out_of_memory": "oom",
}
MISSING = "-"
#: the rescaling that must not come out as `uses`
CONTROL = "window"
CELL_WIDTH = 9  # the narrowest cell that holds a value and its half width
CEILING = 690.0  # exp() above this is not a useful number

#: a name, its continuation, an entry
Line = tuple[str, str, Entry]


def exp(nats: float) -> float:
    """exp() that never overflows: inf above e^690."""
    return math.inf if nats > CEILING else math.exp(nats)


def _scientific(value: float, digits: int) -> str:
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def plain(value: float, scale: float) -> str:
    """The value with the decimals that a number as large as `scale` deserves."""
    if math.isinf(value):
        return ">1e300"
    if scale >= 9999.5:
        return _scientific(value, 1)
    return f"{value:.{2 if scale < 9.995 else 1 if scale < 99.95 else 0}f}"


def _half(value: float, scale: float) -> str:
    """A half width beside a number as large as `scale`."""
    if math.isinf(value):
        return ">1e300"
    if scale >= 9999.5 or value >= 9999.5:
        return _scientific(value, 0)
    text = plain(value, scale)
    if value and float(text) == 0 and scale < 99.95:
        text = f"{value:.2f}"  # a narrow interval is not an interval of nothing
    return text[1:] if text.startswith("0.") and len(text) == 4 else text


def value_cell(cell: Cell, width: int) -> str:
    """`18.6 ±0.4`, in the most precise form that fits."""
    if cell.status != "ok":
        return REFUSALS.get(cell.status, cell.status)[:width]
    value = exp(cell.nll)
    half = (exp(cell.hi) - exp(cell.lo)) / 2 if cell.hi <= CEILING else math.nan
    forms = []
    if math.isfinite(half):
        text, spread = plain(value, value), _half(half, value)
        short = f"{half:.0f}" if half < 9999.5 else _scientific(half, 0)
        forms = [f"{text} ±{spread}", f"{text}±{spread}", f"{text} ±{short}", f"{text}±{short}"]
        if value >= 9999.5:
            forms += [f"{_scientific(value, 0)}±{spread}"]
    forms += [plain(value, value), _scientific(value, 0) if math.isfinite(value) else ">1e300"]
    return next((form for form in forms if len(form) <= width), forms[-1][:width])


def ratio_of(cell: Cell) -> float:
    """Perplexity over that of the unscaled model at L on the same targets; nan if unknown."""
    if math.isnan(cell.nll) or math.isnan(cell.base):
        return math.nan
    return exp(cell.nll - cell.base)


def ratio_cell(cell: Cell, width: int = 99) -> str:
    if cell.status != "ok":
        return REFUSALS.get(cell.status, cell.status)[:width]
    ratio = ratio_of(cell)
    if math.isnan(ratio):
        return MISSING
    return f"{ratio:.2f}" if ratio < 999.5 else plain(ratio, max(ratio, 9999.5))


def repeat_cell(cell: Cell, width: int = 99) -> str:
    """`+0.31 ±0.04`, or without the half width where there is no room."""
    if cell.status != "ok":
        return REFUSALS.get(cell.status, cell.status)[:width]
    gain, low, high = cell.repeat
    if math.isnan(gain):
        return MISSING
    forms = [f"{gain:+.2f}"]
    if not math.isnan(high - low):
        half = f"±{(high - low) / 2:.2f}"
        forms = [f"{gain:+.2f} {half}", f"{gain:+.2f}{half}", *forms]
    return next((form for form in forms if len(form) <= width), forms[-1][:width])


def accuracy_cell(cell: Cell, width: int = 99) -> str:
    return _percent(cell, cell.accuracy, width, tasks.spread(cell))


def exact_cell(cell: Cell, width: int = 99) -> str:
    return _percent(cell, cell.exact, width, tasks.solved(cell))


def _percent(cell: Cell, share: float, width: int, beside: str) -> str:
    """`87.1 31-98`: a mean in %, and what stands beside it if it fits."""
    if cell.status != "ok":
        return REFUSALS.get(cell.status, cell.status)[:width]
    if math.isnan(share):
        return MISSING
    forms = f"{100 * share:.1f} {beside}".rstrip(), f"{100 * share:.1f}"
    return next((form for form in forms if len(form) <= width), forms[1])


def head(section: Section, length: int, width: int = 99) -> str:
    """`256 2x`, `32x32 4x`"""
    multiple, name = f"{length / section.train_len:.3g}x", section.shapes[length]
    text = f"{name} {multiple}"
    if len(text) > width and length % 1024 == 0 and section.axes == 1:
        text = f"{length // 1024}k {multiple}"
    return text if len(text) <= width else name


def ngram_line(section: Section) -> str:
    """The reference line under the perplexities; empty when it was not computed."""
    known = {
        length: exp(cell.ngram)
        for entry in section.entries
        for length, cell in entry.cells.items()
        if cell.ngram == cell.ngram
    }
    if not known:
        return ""
    texts = {length: plain(value, value) for length, value in sorted(known.items())}
    if len(set(texts.values())) == 1:
        each = next(iter(texts.values()))
    else:
        each = ", ".join(f"{text} at {length}" for length, text in texts.items())
    return f"n-gram reference: perplexity {each} per token (same targets)"


def _unsupported(section: Section) -> list[str]:
    """One line for all runs that know the same rescalings not at all."""
    rules: dict[str, list[str]] = {}
    for entry in section.entries:
        if entry.unsupported:
            rules.setdefault(entry.run, []).append(entry.rule)
    runs: dict[tuple[str, ...], list[str]] = {}
    for run, found in rules.items():
        runs.setdefault(tuple(found), []).append(run)
    return [
        f"unsupported_rescale: {', '.join(found)} (of {', '.join(names)})"
        for found, names in runs.items()
    ]


def notes_of(section: Section, shown: Iterable[str]) -> list[str]:
    """Footnotes: stamps, short words, a control that failed, options that follow L, and the like.

    Of a probe first what its numbers are.
    """
    notes = [f"* {line}" for line in section.stamp_lines()]
    words = set(shown)
    legend = [f"{word} = {status}" for status, word in REFUSALS.items() if word in words]
    if MISSING in words:
        legend.append(f"{MISSING} = not evaluated")
    tied = dict.fromkeys(f"{e.run}: {e.tied}" for e in section.entries if e.tied)
    cells = [cell for entry in section.entries for cell in entry.cells.values()]
    of_probe = tasks.notes(cells) if section.keys["protocol"] == tasks.PROTOCOL else []
    if section.keys["protocol"] == REPEAT:
        of_probe = ["gain: loss without the earlier copy less that with it, nats per token"]
    notes += [", ".join(legend)] if legend else []
    notes += [*_failed_control(section), *section.variant_lines()]
    return [*of_probe, *notes, *tied, *_unsupported(section)]


def _failed_control(section: Section) -> list[str]:
    """Said where attention to the last L keys alone counts as using more of them."""
    failed = [
        entry.label
        for entry in section.entries
        if (entry.rescale, entry.options) == (CONTROL, "")
        and any(cell.verdict == USES for cell in entry.cells.values())
    ]
    what = (
        "uses more than the L keys a layer sees; look at what they add up to before `uses` counts"
    )
    return [f"control: {', '.join(failed)} {what}"] if failed else []


def lines_of(section: Section) -> list[Line]:
    """(name, its continuation, entry): runs, with their rescalings indented below."""
    lines = []
    last = None
    for entry in section.entries:
        if entry.unsupported:
            continue
        star = "*" if entry.stamps else ""
        if entry.run_id != last and not entry.plain:
            heading = Entry(entry.run_id, entry.run, entry.preset, "none", "", "")
            lines.append((entry.run, "", heading))
        last = entry.run_id
        name = entry.label if entry.plain else f"  {entry.rule}"
        rest = ""
        if len(name + star) > SHORT and entry.options and not entry.plain:
            name, rest = f"  {entry.rule.removesuffix(entry.options).rstrip()}", entry.options
        lines.append((name + star, rest, entry))
    return lines


def reference_lines(section: Section) -> list[Line]:
    """The runs that were trained longer: losses without a ratio."""
    return [(entry.run, "", entry) for entry in section.longer]


def title_of(section: Section, short: bool) -> str:
    unit = f"over {section.unit()}"
    kind = "± is the 95 % half width" if short else "brackets are 95 % intervals"
    intervals = f"{kind} {unit}" if section.has_intervals else "no intervals (one unit)"
    return f"{', '.join(section.facts())}; {intervals}"


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Lines that fit; a number stays with its percent sign."""
    whole = text.replace(" %", "\u00a0%")
    lines = textwrap.wrap(whole, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def _terminal_section(section: Section, width: int) -> list[str]:
    lines = lines_of(section)
    every = [*lines, *reference_lines(section)]
    name_width = max([len("perplexity"), *(min(len(name), SHORT) for name, _, _ in every)])
    most = max(1, (width - name_width) // (CELL_WIDTH + 1))
    n_parts = -(-len(section.lengths) // most)
    per_part = -(-len(section.lengths) // n_parts)
    pitch = min(13, max(CELL_WIDTH + 1, (width - name_width) // per_part))
    shown: list[str] = []

    def block(
        title: str, lengths: list[int], draw: Callable[[Cell, int], str], lines: list[Line] = lines
    ) -> list[str]:
        heads = [head(section, length, pitch - 1).rjust(pitch) for length in lengths]
        out = [title.ljust(name_width) + "".join(heads)]
        for name, rest, entry in lines:
            cells = [entry.cells.get(length) for length in lengths]
            if not entry.cells:
                out.append(name[:name_width])
                continue
            texts = [MISSING if cell is None else draw(cell, pitch - 1) for cell in cells]
            shown.extend(texts)
            if len(name) > name_width:
                _, space, tail = name.rpartition(" ")  # what tells equal names apart
                tail = (space + tail)[-name_width // 2 :]
                name = name[: name_width - 1 - len(tail)] + "~" + tail
            out.append(name.ljust(name_width) + "".join(text.rjust(pitch) for text in texts))
            if rest:
                out.append(f"    {rest}"[:width])
        return [line.rstrip() for line in out]

    def parts(lengths: list[int]) -> list[list[int]]:
        return [lengths[i : i + per_part] for i in range(0, len(lengths), per_part)]

    out = [*_wrap(title_of(section, short=True), width), ""]
    probes = {
        tasks.PROTOCOL: (("accuracy %", accuracy_cell), ("exact %", exact_cell)),
        REPEAT: (("gain, nats", repeat_cell),),
    }
    for title, draw in probes.get(section.keys["protocol"], ()):
        for part in parts(section.lengths):
            out += [*block(title, part, draw), ""]
    for part in parts(section.lengths):
        out += [*block("perplexity", part, value_cell, every), ""]
    if reference := ngram_line(section):
        out[-1:] = [*_wrap(reference, width, "  "), ""]
    for part in parts(section.ratio_lengths):
        out += [*block(f"ratio to {section.train_shape}", part, ratio_cell), ""]
    if orders := order_lines(section):
        out += [*_wrap(orders[0], width), *orders[1:], ""]
    for note in notes_of(section, shown):
        out += _wrap(note, width, "  ")
    return out


def terminal_table(rows: pd.DataFrame, width: int = 80) -> str:
    """Perplexities, then ratios to L, no line longer than `width`; one section per protocol etc."""
    parts = ["\n".join(_terminal_section(s, width)).rstrip() for s in sections(rows)]
    return "\n\n".join(parts) + "\n"
