"""Results as lines of a terminal, 80 columns wide, and as JSON."""

import math
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable
from typing import Any

from posbench import registry
from posbench.checks.base import Result

WIDTH = 80
#: columns before what a check shows
INDENT = 39
GREEN, RED, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[0m"


def coloured() -> bool:
    """Colour on a terminal, unless NO_COLOR or a dumb terminal asks for none."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def show(
    results: Iterable[Result], write: Callable[[str], None], colour: bool = False
) -> list[Result]:
    """Write a heading for every subject, a line for every check as it ends, and the summary."""
    start, done = time.monotonic(), []
    before: tuple[str, str] | None = None
    for result in results:
        own = result.group, result.label
        if own != before:
            write(f"{result.label} ({registry.KINDS[result.group]})")
        before = own
        done.append(result)
        write(line(result, colour))
    write("")
    write(summary(done, time.monotonic() - start))
    return done


def line(result: Result, colour: bool) -> str:
    """One line a check; a note follows, indented, where there is one."""
    word, shade = ("ok  ", GREEN) if result.passed else ("FAIL", RED)
    word = f"{shade}{word}{PLAIN}" if colour else word
    numbers = f"{number(result.value):>7} {result.relation} {number(result.bound):<5}"
    shown = textwrap.shorten(result.shows, WIDTH - INDENT, placeholder=" ...")
    lines = [f"  {word} {result.check:<13} {numbers}  {shown}"]
    if result.note:
        lines += textwrap.wrap(
            result.note, WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 9
        )
    return "\n".join(lines)


def number(value: float) -> str:
    """Three digits at most."""
    return f"{value:.2g}" if value and math.isfinite(value) else f"{value:g}"


def summary(results: list[Result], seconds: float) -> str:
    """The last line: how many, and which failed."""
    things = len({(r.group, r.name) for r in results})
    failed = [r for r in results if not r.passed]
    of = f"{len(results)} checks of {things} name{'' if things == 1 else 's'} in {seconds:.0f} s"
    if not failed:
        return f"{of}: all ok"
    listed = ", ".join(f"{r.label}: {r.check}" for r in failed)
    return "\n".join(textwrap.wrap(f"{of}: {len(failed)} failed ({listed})", WIDTH))


def plain(result: Result) -> dict[str, Any]:
    """A result as JSON has it: what is no number is null."""
    found = dict(vars(result))
    found["value"] = result.value if math.isfinite(result.value) else None
    return found
