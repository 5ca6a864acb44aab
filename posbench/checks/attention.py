"""Checks of one layer's attention: shapes, chunks, steps, weights, long sequences, shifts."""

import torch

from posbench.checks.base import (
    FLOOR,
    TINY,
    Measured,
    at_least,
    at_most,
    check,
    faults,
    if_declared,
)
from posbench.checks.inputs import chunks_of, difference, extents, tokens
from posbench.checks.small import HEAD, HEADS, fitting, layers_of
from posbench.checks.subjects import Encoded
from posbench.encodings.base import PositionalEncoding
from posbench.errors import UnsupportedRescale

#: types in which attention is computed somewhere
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
#: hooks that read positions
READS = frozenset({"embed", "rotate", "distance_bias", "pair_bias"})


@check("posenc", "rescale")
def shapes(subject: Encoded) -> Measured:
    """Output has v's shape and type; is finite"""
    found = []
    for dtype in TYPES:
        model = subject.model().to(dtype)
        encoding = subject.acting(model, subject.test_length)
        for own in layers_of(encoding):
            for batch, keys, rows in ((2, 13, 13), (1, 13, 5), (2, 1, 1)):
                out = own.attend(own.feed(keys, batch).to(dtype), rows)
                if out.shape != (batch, HEADS, rows, HEAD) or out.dtype != dtype:
                    found.append(f"{rows} of {keys} in {dtype}: {tuple(out.shape)}, {out.dtype}")
                elif not out.isfinite().all():
                    found.append(f"{rows} of {keys} in {dtype}: not finite")
    return faults(found)


@check("posenc", "rescale")
def chunks(subject: Encoded) -> Measured:
    """Chunks of 1, 7, 64 equal one pass"""
    worst, keys = 0.0, 71
    for layer in subject.layers:
        feed = layer.feed(keys)
        with chunks_of(4096, keys, HEADS):
            dense = layer.attend(feed)
        for consecutive in (True, False):
            for size in (1, 7, 64):
                for rows in (keys, 66):
                    with chunks_of(size, keys, HEADS):
                        part = layer.attend(feed, rows, consecutive)
                    worst = max(worst, difference(part, dense[:, :, -rows:]))
    return at_most(worst, TINY)


@check("posenc", "rescale")
def in_training(subject: Encoded) -> Measured:
    """The kernel with gradients agrees"""
    worst = 0.0
    for layer in subject.layers:
        feed = layer.feed(29, batch=2)
        without = layer.attend(feed, consecutive=True)
        with torch.enable_grad():
            kept = layer.attend(feed.but(q=feed.q.clone().requires_grad_()), consecutive=True)
        worst = max(worst, difference(kept, without))
    return at_most(worst, TINY)


@check("posenc", "rescale")
def batches(subject: Encoded) -> Measured:
    """Each sequence has its own positions"""
    worst, keys = 0.0, 21
    for layer in subject.layers:
        feed = layer.feed(keys, batch=2)
        other = layer.feed(keys, start=5, step=2).pos
        both = feed.but(pos=torch.cat((feed.pos, other)))
        together = layer.attend(both)
        for row in (0, 1):
            own = {name: t[row : row + 1] for name, t in vars(both).items()}
            worst = max(worst, difference(together[row : row + 1], layer.attend(both.but(**own))))
    return at_most(worst, TINY)


@check("posenc", "rescale")
def steps(subject: Encoded) -> Measured:
    """Query by query equals the full pass"""
    worst, keys = 0.0, 25
    for layer in subject.layers:
        feed = layer.feed(keys, batch=2)
        whole = layer.attend(feed, consecutive=True)
        for i in range(keys):
            one = layer.attend(feed.first(i + 1), 1, consecutive=True)
            worst = max(worst, difference(one, whole[:, :, i : i + 1]))
    return if_declared(not subject.encoding.depends_on_total_length, worst)


@check("posenc", "rescale")
def weights(subject: Encoded) -> Measured:
    """Weights: >= 0, sum 1, 0 on later keys"""
    worst = 0.0
    for layer in subject.layers:
        found = layer.weights(layer.feed(HEAD, batch=2))
        worst = max(
            worst,
            float((found.sum(-1) - 1).abs().max()),
            float(-found.min()),
            float(found.triu(1).abs().max()),
        )
    return at_most(worst, TINY)


@check("posenc", "rescale")
def shift(subject: Encoded) -> Measured:
    """Positions + 1, 7, 1000 change nothing

    Along every axis alone, and along all of them; so only differences count on each axis.
    """
    model, length, axes = subject.model(), 30, subject.axes
    ids, encoding = tokens(length), subject.acting(model, subject.test_length)
    ways = torch.cat((torch.eye(axes), torch.ones(1, axes))).long().unique(dim=0)
    shape = torch.tensor(extents(length, axes))
    shifts = [c * way for c in (1, 7, 1000) for way in ways]
    known = [move for move in shifts if encoding.defined_for(tuple((shape + move).tolist()))]

    def hidden(start: torch.Tensor) -> torch.Tensor:
        return subject.hidden(model, ids, start, encoding=encoding, consecutive=False)

    change = [difference(hidden(move), hidden(0 * move)) for move in known]
    return if_declared(encoding.shift_invariant, max(change), bound=TINY)


@check("posenc", when=lambda s: s.has(*READS) and not s.has("prepare"))
def positions(subject: Encoded) -> Measured:
    """Other positions, another output"""
    model, ids = subject.model(), tokens(30)
    near, far = (subject.hidden(model, ids, step=n, consecutive=False) for n in (1, 2))
    return at_least(difference(near, far), FLOOR)


@check("posenc", "rescale")
def long(subject: Encoded) -> Measured:
    """Works at 64 L, or refuses by name"""
    trained = min(subject.length, 42)
    model, target = subject.model(train_length=trained).float(), 64 * trained
    try:
        encoding = subject.acting(model, target)
    except UnsupportedRescale as error:
        return faults([], str(error))
    keys = fitting(encoding, target, subject.axes)
    if not all(out.isfinite().all() for out in _ends(encoding, keys)):
        return faults([f"not finite at {keys} tokens"])
    if keys == target:
        return faults([])
    try:
        _ends(encoding, keys + 1)
    except Exception:
        return faults([], f"refuses more than {keys} tokens")
    return faults([f"is defined for {keys} tokens, but {keys + 1} raise no error"])


def _ends(encoding: PositionalEncoding, keys: int) -> list[torch.Tensor]:
    """The stream with positions, and the last queries' output of every layer, in float32."""
    found = []
    for layer in layers_of(encoding):
        feed = layer.feed(keys).to(torch.float32)
        found += [encoding.embed(feed.x, feed.pos), layer.attend(feed, 8, consecutive=True)]
    return found
