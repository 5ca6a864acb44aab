"""The ledger of published claims, read from data: conf/evidence/claims.yaml.

An entry says what is claimed, which selections of which experiments are compared by which check,
and what it takes:

    claimed    holds                              contradicted
    more       the interval is above `smallest`   it is below
    no less    above -`smallest`                  below
    same       between -`smallest` and it         beyond one of the two
    always     the share is 1                     it is not

Anything else is undecided. Intervals are at 95 %. `every`: one case for each of its parts, all of
which must hold, each at 95 %; one that is contradicted is enough to contradict, at a level at which
all hold together (Bonferroni). `agree`: the same again under each of its parts, and
without the same word under all of them it is undecided. A part joins the selections of the check
(see posbench.evidence.select), which have `in`, the experiments of the entry, and `where`, what
they have in common.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from posbench import registry
from posbench.errors import ConfigError
from posbench.evidence import checks, choices, facts
from posbench.evidence.effect import Effect
from posbench.evidence.select import WHERE, named

CHECKS: dict[str, Callable[..., Effect]] = {
    f.__name__: f
    for f in (
        *(checks.difference, checks.contrast, checks.value, checks.ratio),
        *(checks.ordering, checks.best, checks.jump),
        *(choices.argmin, choices.best_of_each, choices.agreement),
        *(facts.identical, facts.refused, facts.step_time, facts.steps_until),
    )
}
MORE, NO_LESS, SAME, ALWAYS = "more", "no less", "same", "always"
CLAIMED = (MORE, NO_LESS, SAME, ALWAYS)
#: how sure the published numbers are
SURE = ("read", "second hand", "abstract only", "none")
#: an argument that holds parts of selections, not whole ones
OVER = "over"


@dataclass(frozen=True)
class Claim:
    """An entry of the ledger."""

    id: str
    source: str
    statement: str
    published: str
    sure: str
    #: why it cannot be decided here; the rest is empty then
    untestable: str = ""
    experiments: tuple[str, ...] = ()
    check: str = ""
    arguments: Mapping[str, Any] | None = None
    #: what all its selections have in common
    where: Mapping[str, Any] | None = None
    every: tuple[Mapping[str, Any], ...] = ()
    agree: tuple[Mapping[str, Any], ...] = ()
    claimed: str = MORE
    #: smallest effect of interest, in the unit of the check
    smallest: float = 0.0
    seeds: int = 3

    @property
    def bound(self) -> float:
        """What an effect must lie above, unless it is claimed to be none."""
        return self.smallest if self.claimed == MORE else -self.smallest

    def cases(self, part: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """(what tells it apart, arguments of the check) of every case under a part of `agree`."""
        return [
            (named({**part, **own}) if part or own else "", self._filled({**part, **own}))
            for own in self.every or ({},)
        ]

    def _filled(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with whole selections."""
        common = {WHERE: list(self.experiments), **(self.where or {}), **more}

        def whole(value: Any) -> Any:
            if isinstance(value, dict):
                return {**common, **value}
            return [whole(one) for one in value] if isinstance(value, list) else value

        own = self.arguments or {}
        return {key: value if key == OVER else whole(value) for key, value in own.items()}


def load(path: Path | None = None, experiments: Collection[str] | None = None) -> list[Claim]:
    """The claims in their order; ConfigError, which names the entry, where one is not sound.

    Experiments that a claim names must be among `experiments`, if those are given.
    """
    import yaml

    path = path or registry.conf_root() / "evidence" / "claims.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
    if not isinstance(content, list):
        raise ConfigError(f"{path}: a list of claims is needed")
    found: list[Claim] = []
    for i, entry in enumerate(content):
        name = entry.get("id", f"entry {i}") if isinstance(entry, dict) else f"entry {i}"
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}: {name} is no mapping")
        claim = _claim(entry, f"{path}: {name}", experiments)
        if claim.id in (one.id for one in found):
            raise ConfigError(f"{path}: {name} is there twice")
        found.append(claim)
    return found


def _claim(entry: dict[str, Any], where: str, experiments: Collection[str] | None) -> Claim:
    """One entry, checked."""
    known = [f.name for f in fields(Claim)]
    for key in entry:
        if key not in known:
            raise ConfigError(f"{where}: {key} is unknown; known: {', '.join(known)}")
    needed = ["id", "source", "statement", "published", "sure"]
    needed += [] if entry.get("untestable") else ["experiments", "check", "arguments"]
    needed += ["smallest"] if entry.get("check") and entry.get("claimed") != ALWAYS else []
    for key in needed:
        if key not in entry:
            raise ConfigError(f"{where}: {key} must be given")
    lists = {key: tuple(entry.get(key) or ()) for key in ("experiments", "every", "agree")}
    claim = Claim(**{**entry, **lists})
    for key, value, allowed in (
        ("claimed", claim.claimed, CLAIMED),
        ("sure", claim.sure, SURE),
        ("check", claim.check or next(iter(CHECKS)), CHECKS),
    ):
        if value not in allowed:
            raise ConfigError(f"{where}: {key}={value}: must be one of {', '.join(allowed)}")
    if claim.check:
        try:
            inspect.signature(CHECKS[claim.check]).bind(None, **(claim.arguments or {}))
        except TypeError as error:
            raise ConfigError(f"{where}: check {claim.check}: {error}") from None
    for name in _named(claim):
        if experiments is not None and name not in experiments:
            raise ConfigError(f"{where}: experiment {name} is none of {', '.join(experiments)}")
    return claim


def _named(claim: Claim) -> Iterator[str]:
    """Names of the experiments that a claim reads, `in` of its selections included."""
    yield from claim.experiments
    parts = [claim.where or {}, *claim.every, *claim.agree, *_selections(claim.arguments)]
    for one in parts:
        yield from one.get(WHERE, ())


def _selections(value: Any) -> Iterator[Mapping[str, Any]]:
    """All mappings within the arguments of a check."""
    if isinstance(value, Mapping):
        yield value
        for one in value.values():
            yield from _selections(one)
    elif isinstance(value, list):
        for one in value:
            yield from _selections(one)


def experiments_of(claims: Sequence[Claim]) -> list[str]:
    """The experiments that claims read, each once."""
    return list(dict.fromkeys(name for claim in claims for name in _named(claim)))


def chosen(claims: Sequence[Claim], ids: Sequence[str]) -> list[Claim]:
    """The claims of these ids, all without any; `S05` is S05a and S05b too."""
    found: list[Claim] = []
    for wanted in ids:
        own = [one for one in claims if wanted in (one.id, one.id.rstrip("abcdefgh"))]
        if not own:
            ids_ = [one.id for one in claims]
            meant = [one for one in ids_ if one.lower() == wanted.lower()]
            hint = f" (did you mean {meant[0]}?)" if meant else ""
            raise ConfigError(f"claim {wanted}{hint} is none of {', '.join(ids_)}")
        found += own
    return list({one.id: one for one in found}.values()) if ids else list(claims)
