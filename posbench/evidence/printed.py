"""What `posbench claims` prints, in 80 columns, and the file it writes."""

import csv
import io
import math
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posbench.evidence.claims import ALWAYS, MORE, NO_LESS, SAME, Claim, experiments_of
from posbench.evidence.decide import UNTESTABLE, Case, Outcome
from posbench.evidence.effect import Effect
from posbench.evidence.plan import Experiment
from posbench.evidence.select import WHERE, named

WIDTH = 80
#: heading -> width of the columns of the table
COLUMNS = {"claim": 5, "verdict": 12, "effect, or why not": 27, "n": 2, "published": 28}
#: of claims.csv
FIELDS = [
    "id", "source", "verdict", "effect", "lo", "hi", "n_seeds", "command", "unit", "detectable",
    "published", "reason",
]  # fmt: skip
#: width of the headings of one claim
MARGIN = 11


def number(x: float) -> str:
    """Three digits, without the exponent of `1e+03`."""
    return f"{x:.3g}" if not 999.5 <= abs(x) < 1e6 else f"{x:.0f}"


def measured(effect: Effect) -> str:
    """`+0.12 [0.08, 0.16] nats`."""
    if math.isnan(effect.lo) or math.isnan(effect.hi):
        return f"{number(effect.effect)} {effect.unit}"
    ends = f"[{number(effect.lo)}, {number(effect.hi)}]"
    return f"{number(effect.effect)} {ends} {effect.unit}"


def table(outcomes: Sequence[Outcome]) -> str:
    """A row for each claim, and how many have which verdict."""
    lines = _row(COLUMNS, list(COLUMNS))
    lines.append(" ".join("-" * width for width in COLUMNS.values()))
    for o in outcomes:
        effect = measured(o.effect) if o.effect else ""
        if o.reason:
            room = 3 * COLUMNS["effect, or why not"]
            effect += ("\n" if effect else "") + textwrap.shorten(
                o.reason, room, placeholder=" ..."
            )
        lines += _row(COLUMNS, [o.claim.id, o.verdict, effect, _seeds(o), o.claim.published])
    counts = Counter(o.verdict for o in outcomes)
    lines += ["", ", ".join(f"{n} {verdict}" for verdict, n in counts.items())]
    lines.append("n = seeds; positive effects are as claimed; posbench claims ID says more")
    return "\n".join(lines)


def _seeds(outcome: Outcome) -> str:
    n = outcome.effect.n_seeds if outcome.effect else None
    return "" if n is None else str(n)


def _row(columns: Mapping[str, int], cells: Sequence[str]) -> list[str]:
    """Lines of one row, every cell wrapped to the width of its column."""
    wrapped = [
        [part for line in cell.split("\n") for part in textwrap.wrap(line, width)]
        for cell, width in zip(cells, columns.values(), strict=True)
    ]
    height = max(map(len, wrapped))
    lines = []
    for i in range(height):
        parts = [own[i] if i < len(own) else "" for own in wrapped]
        padded = (part.ljust(w) for part, w in zip(parts, columns.values(), strict=True))
        lines.append(" ".join(padded).rstrip())
    return lines


def details(outcome: Outcome, experiments: Mapping[str, Experiment], seeds: int) -> str:
    """All of one claim."""
    claim = outcome.claim
    parts = [("claim", f"{claim.id}  {claim.statement}"), ("source", claim.source)]
    if not claim.untestable:
        unit = outcome.effect.unit if outcome.effect else ""
        parts += [("takes", takes(claim, unit)), ("compared", compared(claim))]
    seen = "" if claim.sure == "none" else f" [{claim.sure}]"
    parts.append(("published", claim.published + seen))
    parts.append(("verdict", ": ".join(filter(None, (outcome.verdict, outcome.reason)))))
    parts += [("measured" if not i else "", _case(c)) for i, c in enumerate(outcome.cases)]
    lines = [line for head, text in parts for line in _part(head, text)]
    if outcome.verdict != UNTESTABLE:
        names = [name for name in experiments_of([claim]) if name in experiments]
        lines += ["commands", *_commands(claim, [experiments[n] for n in names], seeds)]
    return "\n".join(lines)


def _part(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=head.ljust(MARGIN),
        subsequent_indent=" " * MARGIN,
        break_on_hyphens=False,
    ) or [head]


def takes(claim: Claim, unit: str = "") -> str:
    """What the interval, in a unit, must do for the claim to hold."""
    least = f"{number(claim.smallest)} {unit}".rstrip()
    what = {
        MORE: f"an interval above {least}",
        NO_LESS: f"an interval above -{least}",
        SAME: f"an interval between -{number(claim.smallest)} and {least}",
        ALWAYS: "a share of 1",
    }[claim.claimed]
    what += f", in each of {len(claim.every)} cases" if claim.every else ""
    what += " under " + " and ".join(named(p) for p in claim.agree) if claim.agree else ""
    return f"{what}; {claim.seeds} seeds" if experiments_of([claim]) else what


def compared(claim: Claim) -> str:
    """The check and the selections of its first case, and how many more there are."""
    part = claim.agree[0] if claim.agree else {}
    cases = claim.cases(part)
    said = "; ".join(f"{k} = {_said(v)}" for k, v in cases[0][1].items())
    more = len(cases) * max(1, len(claim.agree)) - 1
    return f"{claim.check}: {said}" + (f" (first of {more + 1} cases)" if more else "")


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        whose = value.get(WHERE, ())
        only = f" of {whose[0]}" if "preset" in value and len(whose) == 1 else ""
        return named(value) + only
    return ", ".join(map(_said, value)) if isinstance(value, list) else str(value)


def _case(case: Case) -> str:
    """One comparison with its effect."""
    label = f"{case.label}: " if case.label else ""
    if case.effect is None:
        return f"{label}{case.verdict}, {case.reason}"
    e = case.effect
    counts = [f"{n} {what}" for n, what in ((e.n_seeds, "seeds"), (e.n_docs, "documents")) if n]
    words = [measured(e), case.verdict, *counts, *filter(None, (case.reason, e.note))]
    return label + ", ".join(words)


def _commands(claim: Claim, experiments: Sequence[Experiment], seeds: int) -> Iterator[str]:
    """What shows it, and what its runs are made with."""
    yield f"  {command(claim)}"
    if experiments:
        yield f"  {command(claim)} --run"
    for one in experiments:
        numbers = map(str, range(one.count(max(seeds, claim.seeds))))
        begin = "init=RUN" if one.init else f"seed={','.join(numbers)}"
        several = "," in re.sub(r"\[.*?\]", "", " ".join([*one.train, begin]))
        words = ["posbench", "train", *map(shlex.quote, one.train), begin, *["-m"] * several]
        text = textwrap.wrap(" ".join(words), WIDTH - 6, break_on_hyphens=False)
        base = f", RUN one of {one.init}" if one.init else ""
        rate = "; of every scheme the train.lr that rates.csv has as best"
        about = f"{one.name}{base}: {one.about}{rate if one.tuned and not one.init else ''}"
        yield textwrap.fill(about, WIDTH, initial_indent="  # ", subsequent_indent="  # ")
        yield " \\\n    ".join(["  " + text[0], *text[1:]])


def command(claim: Claim) -> str:
    """Shows a claim."""
    return f"posbench claims {claim.id}"


def as_csv(outcomes: Sequence[Outcome]) -> str:
    """claims.csv: a line for each claim, numbers at full precision."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
    writer.writeheader()
    for o in outcomes:
        e = o.effect
        numbers = {"effect": e.effect, "lo": e.lo, "hi": e.hi} if e else {}
        numbers |= {"detectable": e.beyond(o.claim.smallest)} if e else {}
        writer.writerow(
            {
                "id": o.claim.id,
                "source": o.claim.source,
                "verdict": o.verdict,
                **{key: "" if math.isnan(x) else x for key, x in numbers.items()},
                "n_seeds": _seeds(o),
                "command": command(o.claim),
                "unit": e.unit if e else "",
                "published": o.claim.published,
                "reason": o.reason,
            }
        )
    return stream.getvalue()
