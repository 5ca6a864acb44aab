"""Checks that a result depends on nothing but its inputs: no state, no leak between sequences."""

import copy
import itertools

import torch
from torch import Tensor

from posbench.checks.base import TINY, Measured, at_least, at_most, check, if_declared
from posbench.checks.inputs import difference, tokens
from posbench.checks.subjects import Encoded, Rule, Scheme
from posbench.model import Decoder


def _lengths(subject: Encoded) -> list[int]:
    """Below, at and beyond the training length, as far as it is defined."""
    wanted = (subject.length // 2 + 3, subject.length, subject.length + 29)
    return sorted({subject.fitting(n) for n in wanted})


def _single(subject: Encoded) -> Decoder:
    """A new model in float32, as in evaluation."""
    return subject.model().float()


@check("posenc", "rescale")
def twice(subject: Encoded) -> Measured:
    """Called twice, it gives the same bits"""
    model, ids = _single(subject), tokens(subject.fitting(subject.length))
    return at_most(difference(subject.hidden(model, ids), subject.hidden(model, ids)), 0)


@check("posenc", "rescale")
def order(subject: Encoded) -> Measured:
    """Lengths leave no trace, in any order"""
    untouched, lengths = _single(subject), _lengths(subject)

    def measured(model: Decoder, length: int) -> Tensor:
        return subject.hidden(model, tokens(length))

    fresh = {n: measured(copy.deepcopy(untouched), n) for n in lengths}
    used, worst, note = copy.deepcopy(untouched), 0.0, ""
    for sequence in (lengths, lengths[::-1], lengths[1:] + lengths[:1]):
        for before, n in itertools.pairwise([0, *sequence]):
            change = difference(measured(used, n), fresh[n])
            if change > worst:
                worst, note = change, f"at {n} tokens after {before or 'other orders'}"
    return at_most(worst, 0, note)


@check("posenc", "rescale")
def undisturbed(subject: Encoded) -> Measured:
    """Nor do other positions, types, training"""
    model, ids = _single(subject), tokens(24)
    before = subject.hidden(model, ids)
    subject.hidden(model, ids, start=5)
    subject.hidden(copy.deepcopy(model).double(), ids)
    with torch.enable_grad():
        subject.hidden(model, ids[:, :11]).sum().backward()
    return at_most(difference(subject.hidden(model, ids), before), 0)


@check("posenc", "rescale")
def prefix(subject: Encoded) -> Measured:
    """Appended tokens change nothing before"""
    model, ids = subject.model(), tokens(subject.fitting(subject.test_length))
    whole = subject.hidden(model, ids)
    worst = 0.0
    for n in (1, 13, ids.shape[1] - 1):
        worst = max(worst, difference(subject.hidden(model, ids[:, :n]), whole[:, :n]))
    return if_declared(not subject.depends_on_total_length, worst)


@check("posenc", "rescale", when=lambda s: not s.depends_on_total_length)
def apart(subject: Encoded) -> Measured:
    """Two models in one process do not mix

    Tables shared by a class would come from the model that asked first: here another one for each
    of two lengths, which then disagree.
    """
    one, other = subject.model(), subject.model(seed=3, train_length=2 * subject.length)
    lengths = subject.fitting(33), subject.fitting(39)
    subject.hidden(other, tokens(lengths[0]))
    outs = [subject.hidden(one, tokens(n)) for n in lengths]
    subject.hidden(other, tokens(lengths[1]))
    return at_most(difference(outs[0], outs[1][:, : lengths[0]]), TINY)


@check("posenc", "rescale")
def batch(subject: Encoded) -> Measured:
    """Sequences of a batch do not meet"""
    model, ids = subject.model(), tokens(24, batch=3)
    together = subject.hidden(model, ids)
    alone = torch.cat([subject.hidden(model, one[None]) for one in ids])
    return at_most(difference(alone, together), TINY)


@check("posenc")
def reload(subject: Scheme) -> Measured:
    """A state dict holds all that is learned"""
    first, second, ids = subject.model(), subject.model(seed=5), tokens(24)
    second.load_state_dict(first.state_dict())
    return at_most(difference(subject.hidden(second, ids), subject.hidden(first, ids)), 0)


@check("posenc")
def train_length(subject: Scheme) -> Measured:
    """Follows the training length iff declared"""
    one, two = (subject.model(train_length=n * subject.length) for n in (1, 2))
    sizes = [[p.shape for p in m.posenc.parameters()] for m in (one, two)]
    limits = [m.posenc.max_length for m in (one, two)]
    ids = tokens(subject.fitting(2 * subject.length), batch=1)
    change = float(sizes[0] != sizes[1] or limits[0] != limits[1])
    if not change:
        change = difference(subject.hidden(one, ids), subject.hidden(two, ids))
    if one.posenc.needs_train_length:
        tied = "; ".join(f"{t.option} = {t.used} (paper {t.paper})" for t in one.posenc.tied())
        return at_least(change, 1e-6, tied or "declares no tied option")
    return at_most(change, 0, "tied() lists options" if one.posenc.tied() else "")


@check("rescale")
def trained(subject: Rule) -> Measured:
    """Leaves the trained encoding as it was"""
    model, ids = _single(subject), tokens(subject.test_length)
    before = subject.hidden(model, ids, encoding=model.posenc)
    acting = subject.acting(model, ids.shape[1])
    subject.hidden(model, ids, encoding=acting)
    return at_most(difference(subject.hidden(model, ids, encoding=model.posenc), before), 0)
