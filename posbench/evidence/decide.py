"""What the evidence says of a claim: one word, an effect with its interval, and why."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from posbench.data.targets import DOCUMENTS
from posbench.evidence.claims import ALWAYS, CHECKS, SAME, Claim
from posbench.evidence.effect import EVEN, Effect, NotYet, together
from posbench.evidence.select import Source

HOLDS, CONTRADICTED, UNDECIDED = "holds", "contradicted", "undecided"
UNTESTABLE = "not testable here"
#: the tier of runs that may decide
TIER = "evidence"


@dataclass(frozen=True)
class Case:
    """One comparison: what tells it apart, its word, why, and its effect if there is one."""

    label: str
    verdict: str
    reason: str = ""
    effect: Effect | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a claim. `effect` is that of the case that decides, `cases` are all."""

    claim: Claim
    verdict: str
    reason: str = ""
    effect: Effect | None = None
    cases: tuple[Case, ...] = ()


def decide(claim: Claim, source: Source, seeds: int = 0) -> Outcome:
    """What the evidence says of a claim; `seeds` may ask for more of them than the claim does."""
    if claim.untestable:
        return Outcome(claim, UNTESTABLE, claim.untestable)
    claim = replace(claim, seeds=max(claim.seeds, seeds))
    sides = [_under(claim, source, part) for part in claim.agree or ({},)]
    cases = tuple(case for own in sides for case in own)
    deciding = [_deciding(claim, own) for own in sides]
    words = list(dict.fromkeys(case.verdict for case in deciding))
    if len(words) == 1:
        shown = next((case for case in deciding if case.effect), deciding[0])
        return Outcome(claim, words[0], shown.reason, shown.effect, cases)
    lines = [f"{case.label}: {_said(case)}" for case in deciding]
    shown = next((case for case in deciding if case.verdict == UNDECIDED), deciding[0])
    return Outcome(claim, UNDECIDED, "; ".join(lines), shown.effect, cases)


def _said(case: Case) -> str:
    """The word of a case and, in brackets, why it has no other."""
    return case.verdict + (f" ({case.reason})" if case.reason else "")


def _under(claim: Claim, source: Source, part: Mapping[str, Any]) -> list[Case]:
    """The cases of a claim under one part of `agree`.

    All have to hold, each at 95 %; any of them may contradict, at a level for all. What is shown is
    the interval at 95 %.
    """
    cases = claim.cases(part)
    each = together(EVEN, len(cases))[1]
    found = []
    for label, arguments in cases:
        check = partial(CHECKS[claim.check], source, **arguments)
        try:
            case = _case(claim, label, check(levels=EVEN))
            if case.verdict == CONTRADICTED and len(cases) > 1:
                strict = check(levels=(each, each))
                if word(claim, strict) != CONTRADICTED:
                    reason = f"[{strict.lo:.3g}, {strict.hi:.3g}] at the level for all cases"
                    case = replace(case, verdict=UNDECIDED, reason=f"{reason} straddles")
        except NotYet as reason:
            case = Case(label, UNDECIDED, str(reason))
        found.append(case)
    return found


def _deciding(claim: Claim, cases: list[Case]) -> Case:
    """The case that stands for all: one that is contradicted, else one that is undecided.

    Where all hold, the one that holds by the least.
    """
    for word in (CONTRADICTED, UNDECIDED):
        own = [case for case in cases if case.verdict == word]
        if own:
            return own[0]
    return min(cases, key=lambda case: margin(claim, case.effect) if case.effect else math.inf)


def _case(claim: Claim, label: str, effect: Effect) -> Case:
    """The word for a measured effect, and why it is undecided where it is."""
    reason = obstacle(claim, effect)
    verdict = UNDECIDED if reason else word(claim, effect)
    if verdict == UNDECIDED and not reason:
        reason = "the interval straddles"
        if not math.isfinite(effect.hi - effect.lo):
            reason = "the interval has an open end"
        elif math.isfinite(effect.detectable):
            least = effect.beyond(claim.smallest)
            reason = f"an effect of {least:.2g} {effect.unit} would have been detected"
    return Case(label, verdict, reason, effect)


def obstacle(claim: Claim, effect: Effect) -> str:
    """Why an effect decides nothing, if so: seeds, gate, rate, tier, documents, or interval."""
    if effect.n_seeds is not None and effect.n_seeds < claim.seeds:
        return f"{effect.n_seeds} of {claim.seeds} seeds"
    if claim.claimed == ALWAYS:
        return ""
    if effect.lost:
        return ", ".join(effect.lost)
    if effect.below:
        return f"does not pass the gate: {', '.join(effect.below)}"
    if effect.untuned:
        return f"not at a learning rate that the grid chose: {', '.join(effect.untuned)}"
    if other := [tier for tier in effect.tiers if tier != TIER]:
        return f"tier {', '.join(other)}"
    if effect.n_docs is not None and effect.n_docs < DOCUMENTS:
        return f"{effect.n_docs} documents, {DOCUMENTS} are needed"
    return "no interval" if math.isnan(effect.lo) or math.isnan(effect.hi) else ""


def margin(claim: Claim, effect: Effect) -> float:
    """How far within what is claimed the whole interval lies; negative where a part does not."""
    if claim.claimed == ALWAYS:
        return effect.effect - 1
    if claim.claimed == SAME:
        return claim.smallest - max(-effect.lo, effect.hi)
    return effect.lo - claim.bound


def word(claim: Claim, effect: Effect) -> str:
    """The verdict on a sound effect; see the top of the file."""
    if claim.claimed == ALWAYS:
        return HOLDS if effect.effect == 1 else CONTRADICTED
    if margin(claim, effect) > 0:
        return HOLDS
    if claim.claimed == SAME:
        beyond = effect.lo > claim.smallest or effect.hi < -claim.smallest
    else:
        beyond = effect.hi < claim.bound
    return CONTRADICTED if beyond else UNDECIDED
