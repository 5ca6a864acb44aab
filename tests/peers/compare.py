"""Compares a peer, posbench and an oracle over a grid of inputs, smallest input first.

Plain numbers only, so that this file runs in every environment and in the tests without a peer.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: label of an entry -> number, e.g. {"slope of head 2": 0.0625}
Values = dict[str, float]
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Probe:
    """One thing a peer ships, the same from posbench, and what is right by an independent rule."""

    #: posbench's name of the scheme
    scheme: str
    #: what of the peer was called
    part: str
    #: inputs from small to large; the first that shows a difference is reported
    grid: list[Inputs]
    peer: Callable[..., Values]
    ours: Callable[..., Values]
    oracle: Callable[..., Values]
    #: what the oracle is, to stand after "by"
    rule: str
    tolerance: float = 1e-5
    #: differences are relative to the larger of two numbers
    relative: bool = True


@dataclass(frozen=True)
class Shown:
    """The entry that differs most at one input."""

    inputs: Inputs
    entry: str
    peer: float
    posbench: float
    oracle: float


@dataclass(frozen=True)
class Finding:
    """What a run of a probe showed."""

    scheme: str
    part: str
    rule: str
    #: agrees, differs or not run
    result: str
    #: why it was not run, in one line
    reason: str = ""
    inputs: int = 0
    tolerance: float = 0.0
    relative: bool = True
    #: largest difference between peer and posbench, and where
    largest: float = 0.0
    largest_at: Inputs = field(default_factory=dict)
    #: the smallest input at which they differ
    smallest: Shown | None = None
    #: largest difference to the oracle
    peer_off: float = 0.0
    posbench_off: float = 0.0

    @property
    def right(self) -> str:
        """Who is within the tolerance of the oracle at every input."""
        peer, ours = (x <= self.tolerance for x in (self.peer_off, self.posbench_off))
        return {(1, 1): "both", (1, 0): "peer", (0, 1): "posbench"}.get((peer, ours), "neither")


def grid(**axes: Iterable[Any]) -> list[Inputs]:
    """Every combination; the axis named first counts most for what is small."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def named(label: str, numbers: Iterable[float]) -> Values:
    """Numbers under `label 0`, `label 1`, ..."""
    return {f"{label} {i}": float(x) for i, x in enumerate(numbers)}


def at_distances(label: str, distances: Iterable[int], numbers: Iterable[float]) -> Values:
    """Numbers under `label of distance n`."""
    pairs = zip(distances, numbers, strict=True)
    return {f"{label} of distance {n}": float(x) for n, x in pairs}


def at_position(label: str, position: int, numbers: Iterable[float]) -> Values:
    """Numbers under `label at position m of pair p`."""
    return named(f"{label} at position {position} of pair", numbers)


def difference(a: float, b: float, relative: bool) -> float:
    """How far two numbers are apart; infinite where one of them is no number."""
    if a == b:
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / (max(abs(a), abs(b)) if relative else 1.0)


def furthest(a: Mapping[str, float], b: Mapping[str, float], relative: bool) -> tuple[float, str]:
    """The largest difference and its label; an entry that one side lacks is infinitely far."""
    worst = (0.0, next(iter(a), ""))
    for label in [*a, *(x for x in b if x not in a)]:
        apart = difference(a.get(label, math.nan), b.get(label, math.nan), relative)
        if apart > worst[0]:
            worst = (apart, label)
    return worst


def run(probe: Probe) -> Finding:
    """Evaluates the whole grid. What a peer, posbench or the oracle raises ends the probe."""
    about = {"scheme": probe.scheme, "part": probe.part, "rule": probe.rule}
    largest, largest_at, smallest = -1.0, {}, None
    off = {"peer": 0.0, "posbench": 0.0}
    for inputs in probe.grid:
        side, values = "", {}
        try:
            for side, call in (
                ("peer", probe.peer),
                ("posbench", probe.ours),
                ("oracle", probe.oracle),
            ):
                values[side] = call(**inputs)
        except Exception as error:
            reason = f"{side} at {spelled(inputs)}: {one_line(error)}"
            return Finding(**about, result="not run", reason=reason)
        apart, label = furthest(values["peer"], values["posbench"], probe.relative)
        for side in off:
            off[side] = max(off[side], furthest(values[side], values["oracle"], probe.relative)[0])
        if apart > largest:
            largest, largest_at = apart, inputs
        if apart > probe.tolerance and smallest is None:
            three = (values[side].get(label, math.nan) for side in ("peer", "posbench", "oracle"))
            smallest = Shown(inputs, label, *three)
    return Finding(
        **about,
        result="agrees" if smallest is None else "differs",
        inputs=len(probe.grid),
        tolerance=probe.tolerance,
        relative=probe.relative,
        largest=max(largest, 0.0),
        largest_at=largest_at,
        smallest=smallest,
        peer_off=off["peer"],
        posbench_off=off["posbench"],
    )


def spelled(inputs: Inputs) -> str:
    """`heads=3, head_dim=4`."""
    return ", ".join(f"{key}={value}" for key, value in inputs.items())


def one_line(error: BaseException) -> str:
    """Kind and first line of an exception."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
