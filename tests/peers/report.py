"""The tables of `make peers`, as Markdown and for a terminal of 80 columns."""

import textwrap
from dataclasses import dataclass, field

from peers.compare import Finding, Inputs, spelled
from peers.contract import ROUNDING, Checked

WIDTH = 80
HEAD = """\
# Peers on the same bench

Written by `make peers`: what other libraries ship, called through their own code, beside posbench
and beside an oracle that uses neither. A row is one call over a grid of inputs from small to large;
it says nothing about inputs outside that grid.

"largest" is the largest difference between peer and posbench in any entry, relative to the larger
number unless it says "abs."; a row differs when that is above its tolerance. "right" names who is
within the tolerance of the oracle at every input.
"""
CONTRACT = f"""
## The contract

`posbench check` over the files of `tests/peers/schemes/`, which wrap a peer's code as a scheme of
posbench, and say how: the checks that posbench's own schemes must pass, in float64. "float32"
counts those that fail by no more than {ROUNDING:g}, the size of rounding in float32.
"""


@dataclass(frozen=True)
class Outcome:
    """What one peer's run gave: findings, or the reason why there are none; the same of checks."""

    name: str
    version: str
    findings: list[Finding] = field(default_factory=list)
    reason: str = ""
    checks: list[Checked] = field(default_factory=list)
    unchecked: str = ""

    @property
    def peer(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def schemes(self) -> dict[str, list[Checked]]:
        """The checks of every scheme, by its name."""
        names = dict.fromkeys(c.name for c in self.checks)
        return {name: [c for c in self.checks if c.name == name] for name in names}


def rows(outcomes: list[Outcome]) -> list[tuple[Outcome, Finding]]:
    """Every finding, by scheme; a peer that did not run is one row."""
    found = []
    for outcome in outcomes:
        absent = Finding("(all)", "", "", "not run", outcome.reason)
        found += [(outcome, f) for f in (outcome.findings if not outcome.reason else [absent])]
    return sorted(found, key=lambda row: (row[1].scheme, row[0].name, row[1].part))


def wrong(outcomes: list[Outcome]) -> list[Finding]:
    """Findings in which posbench is off the oracle, or gave no number."""
    found = [f for _, f in rows(outcomes)]
    return [f for f in found if f.posbench_off > f.tolerance or f.reason.startswith("posbench at")]


def number(x: float) -> str:
    return f"{x:.6g}"


def largest(finding: Finding) -> str:
    """The largest difference, or nothing where none was measured."""
    if not finding.inputs:
        return ""
    return f"{finding.largest:.2g}" + ("" if finding.relative else " abs.")


def where(inputs: Inputs) -> str:
    """Inputs as text; a long list is given by its ends."""
    short = {
        key: f"{value[0]}..{value[-1]}" if isinstance(value, list) and len(value) > 4 else value
        for key, value in inputs.items()
    }
    return spelled(short)


def sentence(outcome: Outcome, finding: Finding) -> str:
    """What the smallest input showed, and nothing else."""
    s = finding.smallest
    assert s is not None
    return (
        f"At {where(s.inputs)}, {s.entry} is {number(s.peer)} in {outcome.peer} and "
        f"{number(s.posbench)} in posbench; {number(s.oracle)} by {finding.rule}."
    )


def extent(finding: Finding) -> str:
    """How far the difference goes over the grid."""
    kind = "relative" if finding.relative else "absolute"
    return (
        f"Largest difference over {finding.inputs} inputs: {finding.largest:.3g} ({kind}), at "
        f"{where(finding.largest_at)}; from the oracle, the peer is off by at most "
        f"{finding.peer_off:.2g} and posbench by {finding.posbench_off:.2g}."
    )


def failed(checks: list[Checked]) -> list[Checked]:
    """Those that fail by more than rounding."""
    return [c for c in checks if c.verdict == "fail"]


def measured(c: Checked) -> str:
    """`0.31, must be <= 1e-09 (note)`."""
    note = f" ({c.note})" if c.note else ""
    return f"{c.value:.2g}, must be {c.relation} {c.bound:g}{note}"


def table(head: list[str], body: list[list[str]]) -> list[str]:
    """Lines of a Markdown table."""
    cells = [head, ["---"] * len(head), *body]
    return ["| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in cells]


def markdown(outcomes: list[Outcome]) -> str:
    """The whole file."""
    body = []
    for outcome, f in rows(outcomes):
        at = where(f.smallest.inputs) if f.smallest else f.reason
        right, count = (f.right, str(f.inputs)) if f.inputs else ("", "")
        body.append([f.scheme, outcome.peer, f.part, f.result, count, largest(f), at, right])
    head = ["scheme", "peer", "called", "result", "inputs", "largest", "smallest input", "right"]
    lines = [HEAD, *table(head, body)]
    differing = [(outcome, f) for outcome, f in rows(outcomes) if f.smallest]
    if differing:
        lines += ["", "## Where they differ"]
    for outcome, f in differing:
        text = f"**{f.scheme}**, {outcome.peer}, `{f.part}`: {sentence(outcome, f)} {extent(f)}"
        lines += ["", textwrap.fill(text, 100, break_on_hyphens=False)]
    return "\n".join([*lines, *contract(outcomes)]) + "\n"


def contract(outcomes: list[Outcome]) -> list[str]:
    """Lines on the checks; none where no check ran."""
    body, notes = [], []
    for outcome in outcomes:
        if outcome.unchecked:
            body.append(["(all)", outcome.peer, "", "", "", f"not run: {outcome.unchecked}"])
        for name, checks in outcome.schemes.items():
            verdicts = [c.verdict for c in checks]
            counts = [str(verdicts.count(v)) for v in ("pass", "float32")]
            names = ", ".join(c.check for c in failed(checks))
            body.append([name, outcome.peer, str(len(checks)), *counts, names])
            for c in failed(checks):
                text = f"- `{name}`, {c.check} ({c.shows}): {measured(c)}"
                notes += textwrap.wrap(text, 100, subsequent_indent="  ", break_on_hyphens=False)
    if not body:
        return []
    head = ["scheme", "peer", "checks", "pass", "float32", "fail"]
    return [CONTRACT, *table(head, body), "", *notes] if notes else [CONTRACT, *table(head, body)]


def terminal(outcomes: list[Outcome]) -> str:
    """The same rows in 80 columns, peer by peer, then the disagreements."""
    lines = []
    for outcome in outcomes:
        lines += [outcome.peer]
        for _, f in rows([outcome]):
            right = f.right if f.inputs else ""
            line = f"  {f.result:7} {f.scheme:12} {largest(f):9} {right:8} {f.part}"
            lines.append(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…")
            lines += indented(f.reason, "    ")
        for name, checks in outcome.schemes.items():
            failing = ", ".join(f"{c.check} {c.value:.2g}" for c in failed(checks))
            passing = f"{sum(c.verdict != 'fail' for c in checks)} of {len(checks)} pass"
            lines += indented(f"check {name}: {passing}{failing and f'; fail: {failing}'}")
        lines += indented(outcome.unchecked and f"check: not run: {outcome.unchecked}")
    for outcome, f in rows(outcomes):
        if f.smallest:
            lines += ["", *indented(f"{f.scheme}, {f.part}: {sentence(outcome, f)}", "")]
    return "\n".join(lines)


def indented(text: str, by: str = "  ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=by, subsequent_indent=by + "  ")
