"""Checks of special cases: the one thing that a class equals another in, and what accepts what."""

from contextlib import suppress

import torch
from torch import Tensor

from posbench import registry
from posbench.checks.base import FLOOR, TINY, Measured, at_most, check, faults
from posbench.checks.inputs import VOCABULARY, chunks_of, difference, tokens
from posbench.checks.small import HEAD, HEADS
from posbench.checks.subjects import Encoded, Rule, Scheme, subject
from posbench.encodings.base import PositionalEncoding
from posbench.errors import UnsupportedRescale
from posbench.rescale.base import Ladder, Rescale


@check("posenc", "rescale", when=lambda s: bool(s.cases))
def reductions(given: Encoded) -> Measured:
    """Equals others in its special cases"""
    worst, notes = 0.0, []
    for case in given.cases:
        change = given.distance_to(case)
        worst = max(worst, change)
        wrong = "" if change <= TINY else f": {change:.2g} apart"
        notes.append(f"{case.equals} at {case.case}{wrong}")
    return at_most(worst, TINY, "; ".join(notes))


class Halved(Rescale):
    """Every frequency divided by 2; known to no registry. Keeps the size of the ladder it saw."""

    name = "halved"
    by_place = False
    size = HEAD

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        self.size = ladder.dim
        return ladder.inv_freq / 2


def refusal(rule: Rescale, encoding: PositionalEncoding, error: UnsupportedRescale) -> list[str]:
    """What a refusal fails to name: the rescaling and the scheme, or parts of them."""
    text = str(error)
    schemes = [str(p.name) for p in encoding.modules() if isinstance(p, PositionalEncoding)]
    names = {"rescaling": [rule.name, *registry.names("rescale")], "scheme": schemes}
    return [
        f"{text!r} names no {k}" for k, known in names.items() if not any(map(text.count, known))
    ]


@check("posenc")
def rescaling(given: Scheme) -> Measured:
    """Takes new frequencies, or refuses"""
    model, rule = given.model(), Halved(Halved.Config(factor=2))
    ids = tokens(24)
    before = given.hidden(model, ids)
    try:
        longer = given.grown(model.posenc, 2 * given.length)
        changed = rule.applied(longer, given.length, 2 * given.length)
    except UnsupportedRescale as error:
        return faults(refusal(rule, model.posenc, error), "refused: not rotary")
    found = ["the trained encoding itself comes back"] if changed is model.posenc else []
    if difference(given.hidden(model, ids, encoding=changed), before) < FLOOR:
        found.append("half the frequencies change nothing")
    if difference(given.hidden(model, ids), before) > 0:
        found.append("the trained encoding changed")
    return faults(found)


@check("rescale")
def accepts(given: Rule) -> Measured:
    """Works on some schemes, refuses others

    On those it accepts, outputs are finite, causal, the same in chunks, and the trained scheme is
    left as it was; the others are refused by name.
    """
    found, accepted = [], []
    others = [v for name in registry.names("posenc") for v in subject("posenc", name).variants]
    for other in others:
        if other.broken:
            continue
        try:
            found += [f"{other.label}: {fault}" for fault in _on(given, other)]
            accepted.append(other.label)
        except UnsupportedRescale as error:
            found += refusal(given.make(), other.encoding, error)
        except Exception as error:
            found.append(f"{other.label}: {type(error).__name__}: {error}")
    return faults(found, "accepts " + ", ".join(accepted))


def _on(given: Rule, other: Scheme) -> list[str]:
    """What is wrong with a scheme under a rescaling."""
    model, ids = other.model(), tokens(other.fitting(160), batch=1)
    trained, longer = model.posenc, other.grown(model.posenc, 2 * other.length)
    probe, lengths = Halved(Halved.Config(factor=2)), (other.length, 2 * other.length)
    with suppress(UnsupportedRescale):
        probe.applied(longer, *lengths)
    encoding = given.make(dim=probe.size).applied(longer, *lengths)
    later = (torch.arange(ids.shape[1]) > 120) * ids.new_ones(())
    before = other.hidden(model, ids[:, :40], encoding=trained)
    ids = torch.cat((ids, (ids + later) % VOCABULARY))
    out, changed = other.hidden(model, ids, encoding=encoding)
    with chunks_of(64, ids.shape[1], 2 * HEADS):
        parts = other.hidden(model, ids, encoding=encoding)
    after = other.hidden(model, ids[:1, :40], encoding=trained)
    bad = {
        "not finite": not out.isfinite().all(),
        "sees later tokens": difference(changed[:121], out[:121]) > 1e-12,
        "differs in chunks": difference(parts[0], out) > TINY,
        "the trained encoding changed": difference(after, before) > 0,
    }
    return [fault for fault, there in bad.items() if there]
