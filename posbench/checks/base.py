"""A check: a small named function that measures one thing and says whether it is within bounds.

A check is chosen by what the thing under check declares (properties, hooks), never by its name.
Where a property is declared absent, the check sees to it that it is: the measured number must then
be above a floor.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

#: what must be zero in exact arithmetic, in float64
TINY = 1e-9
#: what differs on purpose is above it, in float64
FLOOR = 1e-6


@dataclass(frozen=True)
class Measured:
    """A number and its bound."""

    value: float
    bound: float
    #: "<=" or ">="
    relation: str
    note: str = ""
    #: the opposite of what the check shows is wanted
    absent: bool = False

    @property
    def passed(self) -> bool:
        """Within the bound; a number that is not finite never is."""
        if not math.isfinite(self.value):
            return False
        return self.value <= self.bound if self.relation == "<=" else self.value >= self.bound


def at_most(value: float, bound: float, note: str = "") -> Measured:
    """What must be small."""
    return Measured(float(value), bound, "<=", note)


def at_least(value: float, floor: float, note: str = "") -> Measured:
    """What must be there."""
    return Measured(float(value), floor, ">=", note)


def if_declared(declared: bool, value: float, note: str = "", bound: float = TINY) -> Measured:
    """Small where a property is declared, and seen to be large where it is declared absent."""
    if declared:
        return at_most(value, bound, note)
    return absent(value, note)


def absent(value: float, note: str = "") -> Measured:
    """What a class declares not to have, measured by how far it is from having it."""
    has = value < FLOOR
    return Measured(float(value), FLOOR, ">=", "holds, so declare it" if has else note, True)


def faults(found: list[str], note: str = "") -> Measured:
    """Number of faults, which are listed; none is allowed."""
    return at_most(len(found), 0, "; ".join(found) or note)


@dataclass(frozen=True)
class Check:
    """One statement of the contract."""

    name: str
    groups: tuple[str, ...]
    #: what it shows: the first line of the function's docstring
    shows: str
    applies: Callable[[Any], bool]
    measure: Callable[[Any], Measured]


@dataclass(frozen=True)
class Result:
    """What a check found on one scheme, rescaling or position sampler."""

    group: str
    name: str
    check: str
    shows: str
    value: float
    relation: str
    bound: float
    passed: bool
    note: str
    seconds: float
    #: number of position axes
    axes: int = 1

    @property
    def label(self) -> str:
        """The name, and what it was checked on other than text."""
        return labelled(self.name, self.axes)


def labelled(name: str, axes: int) -> str:
    """A name, and the number of axes where there are several."""
    return name if axes == 1 else f"{name} on {axes} axes"


#: every check, in the order in which they run
CHECKS: list[Check] = []

Measure = Callable[[Any], Measured]


def check(*groups: str, when: Callable[[Any], bool] | None = None) -> Callable[[Measure], Measure]:
    """Add a function to the checks of config groups, for the subjects of which `when` is true."""

    def add(measure: Measure) -> Measure:
        shows = (measure.__doc__ or "").strip().split("\n", 1)[0]
        name = measure.__name__.rstrip("_")
        CHECKS.append(Check(name, groups, shows, when or (lambda subject: True), measure))
        return measure

    return add


def applicable(subject: Any) -> list[Check]:
    """The checks of a subject, in order; only the first one where it cannot be built."""
    own = [c for c in CHECKS if subject.group in c.groups]
    if subject.broken:
        return own[:1]
    return [c for c in own if _applies(c, subject)]


def _applies(one: Check, subject: Any) -> bool:
    """Whether it is for this subject; where that cannot be told, running it shows the error."""
    try:
        return one.applies(subject)
    except Exception:
        return True


@contextmanager
def _calm() -> Iterator[None]:
    """No gradients unless a check asks for them; one thread, since the tensors are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)


def run(subject: Any, one: Check) -> Result:
    """Measure; whatever a check raises is a failure with the error as its note."""
    start = time.perf_counter()
    try:
        with _calm():
            found = one.measure(subject)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        found = Measured(math.nan, 0.0, "<=", f"{type(error).__name__}: {lines[0]}")
    return Result(
        group=subject.group,
        name=subject.name,
        check=one.name,
        shows=f"not: {one.shows}" if found.absent else one.shows,
        value=found.value,
        relation=found.relation,
        bound=found.bound,
        passed=found.passed,
        note=found.note,
        seconds=time.perf_counter() - start,
        axes=1 if subject.broken else subject.axes,
    )
