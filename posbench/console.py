"""What a person sees while work goes on: a progress bar on a terminal, plain lines elsewhere.

Everything here goes to stderr; results go to stdout, from posbench.commands.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posbench.settings import RunConfig
    from posbench.train import Progress

#: seconds between two plain lines
QUIET = 15.0


def leading() -> bool:
    """Whether this process speaks: the first of a distributed run."""
    return os.environ.get("RANK", "0") == "0"


def note(text: str) -> None:
    """One line on stderr."""
    if leading():
        print(text, file=sys.stderr, flush=True)


def error(text: str) -> None:
    """An error, in one or two lines on stderr."""
    note(f"posbench: error: {text}")


def _bar(columns: list[Any]) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        *columns,
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
    )


@contextmanager
def training(
    config: "RunConfig", folder: Path, alone: bool
) -> Iterator[Callable[["Progress"], None]]:
    """Display of one training run; yields the function that the loop reports to.

    Runs that share the terminal with others (not `alone`) get plain lines.
    """
    title = folder.name
    note(f"train {folder}")
    if not (alone and leading() and sys.stderr.isatty()):
        yield _plain_lines(title)
        return
    from rich.progress import TextColumn

    columns = [
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[rate]:,.0f} tok/s"),
    ]
    with _bar(columns) as bar:
        task = bar.add_task(config.preset, total=config.train.steps, loss=float("nan"), rate=0.0)
        yield lambda p: bar.update(task, completed=p.step, loss=p.loss, rate=p.tokens_per_second)


def _plain_lines(title: str) -> Callable[["Progress"], None]:
    last = time.monotonic()

    def show(p: "Progress") -> None:
        nonlocal last
        if p.step < p.steps and time.monotonic() - last < QUIET:
            return
        last = time.monotonic()
        val = "" if p.val_loss is None else f"  val {p.val_loss:.4f}"
        speed = f"{p.tokens_per_second:,.0f} tok/s"
        note(f"  {title}  step {p.step}/{p.steps}  loss {p.loss:.4f}{val}  {speed}")

    return show


def _plain_counts(title: str, total: int) -> Callable[[str], None]:
    last, begun = time.monotonic(), 0

    def show(item: str) -> None:
        nonlocal last, begun
        begun += 1
        if time.monotonic() - last >= QUIET:
            last = time.monotonic()
            note(f"  {title}  {begun}/{total}  {item}")

    return show


@contextmanager
def steps(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Display of a counted piece of work; yields the function that is told each item's name."""
    if not sys.stderr.isatty():
        note(f"{title}: {total} passes")
        yield _plain_counts(title, total)
        return
    from rich.progress import MofNCompleteColumn, TextColumn

    with _bar([MofNCompleteColumn(), TextColumn("{task.fields[item]}")]) as bar:
        task = bar.add_task(title, total=total, item="")
        yield lambda item: bar.update(task, advance=1, item=item)
