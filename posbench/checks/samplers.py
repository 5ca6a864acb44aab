"""Checks of position samplers: what they draw, and from what alone."""

import copy

import torch
from torch import Tensor

from posbench.checks.base import TINY, Measured, at_least, at_most, check, faults
from posbench.checks.inputs import VOCABULARY, difference, tokens
from posbench.checks.small import decoder
from posbench.checks.subjects import Sampler
from posbench.encodings.base import Context, PositionalEncoding
from posbench.positions.base import PositionSampler

BATCH = 3


def _fitting(subject: Sampler, length: int) -> int:
    return min(length, subject.build().max_length or length)


def _draws(subject: Sampler) -> list[tuple[str, int, Tensor]]:
    """(what, length, positions) of training steps and of tests at several lengths."""
    made = subject.build()
    found = [
        (
            f"seed {seed}, step {step}",
            subject.length,
            made.training(BATCH, subject.length, seed, step),
        )
        for seed in range(3)
        for step in range(20)
    ]
    for length in (1, subject.length // 2, subject.length, 4 * subject.length):
        length = _fitting(subject, length)
        found += [(f"test draw {n}", length, made.testing(length, n)) for n in range(10)]
    return found


@check("positions")
def shape(subject: Sampler) -> Measured:
    """Whole numbers [batch or 1, T, 1]"""
    found = []
    for what, length, pos in _draws(subject):
        batches = (1, BATCH) if what.startswith("seed") else (1,)
        if pos.ndim != 3 or pos.shape[0] not in batches or pos.shape[1:] != (length, 1):
            found.append(f"{what}: shape {tuple(pos.shape)}")
        elif pos.dtype != torch.int64:
            found.append(f"{what}: {pos.dtype}")
        elif pos.min() < 0:
            found.append(f"{what}: {int(pos.min())}")
    return faults(found[:3])


@check("positions")
def ascending(subject: Sampler) -> Measured:
    """Positions rise from token to token"""
    least = min(float(p.diff(dim=1).min()) for _, length, p in _draws(subject) if length > 1)
    return at_least(least, 1)


@check("positions")
def span(subject: Sampler) -> Measured:
    """Every position is below the span"""
    made = subject.build()
    over = [float(pos.max()) - made.span(length) + 1 for _, length, pos in _draws(subject)]
    return at_most(max(over), 0, f"span({subject.length}) = {made.span(subject.length)}")


@check("positions")
def consecutive(subject: Sampler) -> Measured:
    """Neighbours differ by 1 iff it says so"""
    gap = max(float(p.diff(dim=1).max()) for _, length, p in _draws(subject) if length > 1)
    if subject.cls.consecutive:
        return at_most(gap, 1)
    return Measured(gap, 2, ">=", absent=True)


@check("positions")
def seeds(subject: Sampler) -> Measured:
    """Training: by seed and step alone"""
    made, length, worst = subject.build(), subject.length, 0.0
    for seed, step in ((0, 0), (0, 7), (5, 7)):
        first = made.training(BATCH, length, seed, step)
        torch.manual_seed(seed + 1)
        made.training(BATCH, length, seed + 1, step)
        made.testing(length)
        worst = max(worst, difference(made.training(BATCH, length, seed, step), first))
        worst = max(worst, difference(subject.build().training(BATCH, length, seed, step), first))
    return at_most(worst, 0)


@check("positions")
def global_rng(subject: Sampler) -> Measured:
    """Torch's own generator is left alone"""
    made = subject.build()
    before = torch.random.get_rng_state()
    made.training(BATCH, subject.length, 0, 0)
    made.testing(subject.length)
    return at_most(difference(torch.random.get_rng_state(), before), 0)


@check("positions")
def varied(subject: Sampler) -> Measured:
    """Random draws differ, fixed ones do not"""
    made, length = subject.build(), subject.length
    steps = [made.training(BATCH, length, 0, step) for step in range(20)]
    seeds = [made.training(BATCH, length, seed, 0) for seed in range(20)]
    random = max(difference(p, steps[0]) for p in steps) > 0
    if not random:
        return at_most(max(difference(p, seeds[0]) for p in seeds), 0, "draws nothing at random")
    if steps[0].shape[0] == BATCH:
        within = max(float((p - p[:1]).abs().max()) for p in steps)
        return at_least(within, 1, "one draw for each sequence")
    return at_least(max(difference(p, seeds[0]) for p in seeds), 1, "one draw for the whole batch")


@check("positions")
def draws(subject: Sampler) -> Measured:
    """Test draws differ iff it says so"""
    made, length = subject.build(), _fitting(subject, 2 * subject.length)
    first = made.testing(length, 0)
    change = max(difference(made.testing(length, n), first) for n in range(10))
    again = difference(made.testing(length, 0), first)
    if again:
        return at_most(again, 0, "the same draw twice gives two results")
    if made.random_test:
        return at_least(change, 1, f"{length} tokens")
    return at_most(change, 0, f"{length} tokens")


@check("positions")
def order(subject: Sampler) -> Measured:
    """Lengths leave no trace, in any order"""
    lengths = [_fitting(subject, n * subject.length) for n in (1, 2, 4)]
    fresh = {n: subject.build().testing(n, 1) for n in lengths}
    made, worst = subject.build(), 0.0
    for sequence in (lengths, lengths[::-1], lengths[1:] + lengths[:1]):
        worst = max([worst, *(difference(made.testing(n, 1), fresh[n]) for n in sequence)])
    return at_most(worst, 0)


@check("positions")
def long(subject: Sampler) -> Measured:
    """Works at 64 L, or refuses by name"""
    made, target = subject.build(), 64 * subject.length
    known = made.max_length
    if known is None or known >= target:
        pos = made.testing(target)
        return faults([] if pos.shape[1] == target else [f"gives {pos.shape[1]} of {target}"])
    try:
        made.testing(known + 1)
    except Exception:
        return faults([], f"refuses more than {known} tokens: max_length")
    return faults([f"max_length = {known}, but {known + 1} tokens raise no error"])


class Witness(PositionalEncoding):
    """Records the positions that its layers are given."""

    name = "witness"

    def __init__(self, config: object, geometry: object):
        super().__init__(config, geometry)  # type: ignore[arg-type]
        self.seen: list[tuple[Tensor, Tensor]] = []

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        self.seen.append((q_pos, k_pos))
        return q_BHTK, k_BHTK


@check("positions")
def one_draw(subject: Sampler) -> Measured:
    """Queries and keys have one draw"""
    model = decoder("none", subject.length)
    witness = Witness(None, model.posenc.geometry)
    model.posenc, model.sampler = witness, subject.build()
    length = _fitting(subject, 2 * subject.length)
    model.hidden(tokens(length), scored_S=torch.arange(length - 3, length))
    drawn = subject.build().testing(length)
    worst = max(
        max(difference(q, drawn[:, -q.shape[1] :]), difference(k, drawn)) for q, k in witness.seen
    )
    return at_most(worst, 0)


@check("positions")
def causal(subject: Sampler) -> Measured:
    """RoPE on it sees no later token"""
    model = decoder("rope", subject.length)
    model.sampler = subject.build()
    ids = tokens(_fitting(subject, 2 * subject.length))
    other = ids.clone()
    other[:, 21:] = (other[:, 21:] + 1) % VOCABULARY
    a, b = model.hidden(ids), model.hidden(other)
    return at_most(difference(a[:, :21], b[:, :21]), 1e-12)


@check("positions")
def scored(subject: Sampler) -> Measured:
    """Last positions alone: the same numbers"""
    model = decoder("rope", subject.length)
    model.sampler = subject.build()
    ids = tokens(_fitting(subject, 2 * subject.length))
    last = torch.arange(ids.shape[1] - 5, ids.shape[1])
    return at_most(difference(model.hidden(ids, scored_S=last), model.hidden(ids)[:, -5:]), TINY)


@check("positions")
def copied(subject: Sampler) -> Measured:
    """A copy draws the same"""
    made: PositionSampler = subject.build()
    other = copy.deepcopy(made)
    draws = [s.training(BATCH, subject.length, 2, 3) for s in (made, other)]
    return at_most(difference(*draws), 0)
