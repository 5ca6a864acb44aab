"""A result beside an earlier one: ratios, and which of them are more than noise.

The rule for times. A ratio is the median of all quotients new / old, its 95 % interval that of the
rank test of Mann and Whitney (see `statistics.between`). It is formed twice: of the seconds as they
are, and of the seconds over the median of the yardstick, which tells whether the machine as a whole
was slower. `faster` and `slower` need both intervals on one side of 1, and both ratios at least 3 %
from 1; on another machine the second decides alone. Else it is noise: also where a side has fewer
than four samples. Peak memory is read once: a change below 5 % or 8 MiB is noise.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from posbench.bench.result import BYTES, Measurement, Result
from posbench.bench.statistics import Ratio, between
from posbench.errors import ConfigError
from posbench.settings import flat

FASTER, SLOWER, LESS, MORE, NOISE = "faster", "slower", "less", "more", "noise"
#: smallest change of a time and of memory that is one, and the same in bytes
SHIFT, MEMORY, BYTES_MORE = 0.03, 0.05, 8 * 2**20
#: what makes two machines two
MACHINE = ("cpu", "cores", "gpu")
#: what else may explain a change
VERSIONS = ("posbench", "sources", "torch", "python", "matrix_products")


@dataclass
class Change:
    """One measurement in both results; `normalised` is None where it has no yardstick."""

    name: str
    raw: Ratio
    normalised: Ratio | None
    verdict: str


@dataclass
class Comparison:
    """All measurements of two results; remarks are lines for the reader."""

    changes: list[Change]
    only_new: list[str]
    only_old: list[str]
    remarks: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """For JSON, which knows no NaN: an interval that there is not is null."""
        found = asdict(self)
        for change in found["changes"]:
            for key in ("raw", "normalised"):
                if change[key]:
                    change[key] = {k: v if v == v else None for k, v in change[key].items()}
        return found


def check(new: dict[str, dict[str, Any]], old: Result, where: str) -> None:
    """ConfigError unless parts that both results have were measured with the same settings."""
    for part, own in new.items():
        theirs = old.settings.get(part)
        if theirs is None:
            continue
        before, now = flat(theirs), flat(own)
        differing = [
            f"{key} was {before.get(key)}, is {now.get(key)}"
            for key in {**now, **before}
            if before.get(key) != now.get(key)
        ]
        if differing:
            rest = f", and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise ConfigError(
                f"{where}: its {part} measurements have other settings: "
                f"{'; '.join(differing[:3])}{rest}; give the same overrides or leave the part out"
            )
    if not new.keys() & old.settings.keys():
        raise ConfigError(f"{where}: holds {', '.join(old.settings)}, none of what is measured")


def compare(new: Result, old: Result) -> Comparison:
    """What changed from the old result to the new one."""
    before = {m.name: m for m in old.measurements}
    names = {m.name for m in new.measurements}
    elsewhere = any(new.environment.get(k) != old.environment.get(k) for k in MACHINE)
    parts = new.settings.keys() & old.settings.keys()
    changes = [
        _change(m, new, before[m.name], old, elsewhere)
        for m in new.measurements
        if m.name in before
    ]
    remarks = [
        f"{key}: was {old.environment.get(key)}, is {new.environment.get(key)}"
        for key in (*MACHINE, *VERSIONS)
        if new.environment.get(key) != old.environment.get(key)
    ]
    for one in new.measurements:
        now, then = (m.facts.get("threads") if m else None for m in (one, before.get(one.name)))
        if then is not None and now != then:
            remarks.append(f"{one.name}: {now} threads, and {then} before")
    if elsewhere:
        remarks.append("another machine: only ratios to the yardstick decide")
    return Comparison(
        changes,
        [m.name for m in new.measurements if m.name not in before],
        [n for n in before if n not in names and _part(n) in parts],
        remarks,
    )


def _part(name: str) -> str:
    """The part of a bench that a measurement belongs to."""
    first = name.partition("/")[0]
    return "eval" if first == "memory" else first


def _change(
    new: Measurement, in_new: Result, old: Measurement, in_old: Result, elsewhere: bool
) -> Change:
    raw = between(new.samples, old.samples)
    if new.unit == BYTES:
        much = abs(new.median - old.median) >= BYTES_MORE
        word = _word(raw.value, MEMORY, LESS, MORE) if much else NOISE
        return Change(new.name, raw, None, word)
    yardsticks = in_new.get(new.yardstick), in_old.get(old.yardstick)
    if yardsticks[0] is None or yardsticks[1] is None:
        return Change(new.name, raw, None, verdict([raw]))
    normalised = between(_over(new.samples, yardsticks[0]), _over(old.samples, yardsticks[1]))
    deciding = [normalised] if elsewhere else [raw, normalised]
    return Change(new.name, raw, normalised, verdict(deciding))


def _over(samples: Sequence[float], yardstick: Measurement) -> list[float]:
    """Samples in medians of the yardstick."""
    return [a / yardstick.median for a in samples]


def verdict(ratios: Sequence[Ratio]) -> str:
    """`faster` or `slower` where every interval and ratio says so, else `noise`."""
    words = {_word(r.value, SHIFT, FASTER, SLOWER) if r.side else NOISE for r in ratios}
    return words.pop() if len(words) == 1 else NOISE


def _word(ratio: float, least: float, down: str, up: str) -> str:
    """Which way a ratio lies from 1, unless it is nearer than `least`."""
    if 1 / (1 + least) < ratio < 1 + least:
        return NOISE
    return down if ratio < 1 else up
