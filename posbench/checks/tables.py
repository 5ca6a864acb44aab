"""Checks of biases and rotations as functions of positions, and of the tables a scheme shows."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from posbench.checks.base import (
    TINY,
    Measured,
    absent,
    at_most,
    check,
    faults,
    if_declared,
)
from posbench.checks.inputs import Layer, difference
from posbench.checks.small import HEAD, layers_of, nudge
from posbench.checks.subjects import Encoded, Scheme

#: positions at which rotations are looked at
AT = (0, 1, 5, 1000)
#: hooks that give a bias of positions
BIASES = frozenset({"distance_bias", "pair_bias"})


def _turns(layer: Layer) -> bool:
    """Whether `rotate` gives a rotation that depends on positions alone."""
    encoding = layer.encoding
    return "rotate" in layer.hooks and "prepare" not in layer.hooks and encoding.norm_preserving


def _turning(subject: Encoded) -> list[Layer]:
    return [layer for layer in subject.layers if _turns(layer)]


def _having(subject: Encoded, hook: str) -> list[Layer]:
    return [layer for layer in subject.layers if hook in layer.hooks]


def _places(layer: Layer, *at: int) -> Tensor:
    """Positions [1, N, A], the same on every axis."""
    return torch.tensor(at)[None, :, None].repeat(1, 1, layer.axes)


def _line(layer: Layer, distance: Tensor, axis: int) -> Tensor:
    """Positions [1, N, A] at distances [N] from the origin along an axis."""
    return F.one_hot(torch.tensor(axis), layer.axes) * distance[None, :, None]


def _along(layer: Layer, distance: Tensor, axis: int = 0) -> Tensor:
    """Bias [H, N] of queries that are so far from their key along an axis."""
    ctx = layer.context(layer.feed(3))
    if "distance_bias" in layer.hooks:
        return layer.encoding.distance_bias(distance, ctx)
    query, key = _line(layer, distance, axis), _line(layer, distance[:1] * 0, axis)
    return layer.encoding.pair_bias(query, key, ctx)[0, :, :, 0]


@check("posenc", "rescale", when=lambda s: s.has("rotate"))
def norm(subject: Encoded) -> Measured:
    """Turning keeps norms"""
    worst, declared = 0.0, True
    for layer in _having(subject, "rotate"):
        feed = layer.feed(17, start=3)
        ctx = layer.context(feed)
        both = layer.encoding.rotate(feed.q, feed.k, feed.pos, feed.pos, ctx)
        change = [
            difference(y.norm(dim=-1), x.norm(dim=-1))
            for x, y in zip((feed.q, feed.k), both, strict=True)
        ]
        worst, declared = max(worst, *change), declared and layer.encoding.norm_preserving
    return if_declared(declared, worst)


@check("posenc", "rescale", when=lambda s: s.has("rotate") and s.encoding.shift_invariant)
def identity(subject: Encoded) -> Measured:
    """At i = j turning leaves q . k alone"""
    worst = 0.0
    for layer in _having(subject, "rotate"):
        feed = layer.feed(17, start=3)
        q, k = layer.encoding.rotate(feed.q, feed.k, feed.pos, feed.pos, layer.context(feed))
        if q.shape == feed.q.shape:
            worst = max(worst, difference((q * k).sum(-1), (feed.q * feed.k).sum(-1)))
    return at_most(worst, TINY)


@check("posenc", "rescale", when=lambda s: bool(_turning(s)))
def layout(subject: Encoded) -> Measured:
    """Channels turn in pairs, as complex ones"""
    worst = 0.0
    for layer in _turning(subject):
        pos = _places(layer, 3)
        for head, image in enumerate(layer.turned(pos)[0]):
            pairs = _pairs(image)
            a, b = (torch.tensor(side, dtype=torch.long) for side in zip(*pairs, strict=True))
            angle = torch.atan2(image[a, b], image[a, a])
            feed = layer.feed(1)
            x = feed.q[0, head, 0]
            z = torch.complex(x[a], x[b]) * torch.polar(torch.ones_like(angle), angle)
            expected = x.clone()
            expected[a], expected[b] = z.real, z.imag
            q, _ = layer.encoding.rotate(feed.q, feed.k, pos, pos, layer.context(feed))
            worst = max(worst, difference(q[0, head, 0], expected))
    return at_most(worst, TINY)


def _pairs(image: Tensor) -> list[tuple[int, int]]:
    """Channels that turn into each other: each with the one that it gives most to."""
    others = image.abs().fill_diagonal_(0.0)
    partner = others.argmax(-1).tolist()
    turning = (others.amax(-1) > 0).tolist()
    return [(a, b) for a, b in enumerate(partner) if turning[a] and a < b] or [(0, 1)]


@check(
    "posenc",
    "rescale",
    when=lambda s: any("inv_freq" in y.encoding.own_tables(torch.arange(2)) for y in _turning(s)),
)
def frequencies(subject: Encoded) -> Measured:
    """Position m turns by m * inv_freq as shown

    Where `axis_of` is shown, too: a pair turns with that axis alone, with none where it is -1.
    """
    worst = 0.0
    for layer in _turning(subject):
        table = layer.encoding.own_tables(torch.arange(2))
        if "inv_freq" not in table:
            continue
        theta = torch.tensor(table["inv_freq"], dtype=torch.float64)
        ways = [(_places(layer, *AT), theta > -1)]
        if "axis_of" in table:
            at, axis_of = torch.tensor(AT), torch.tensor(table["axis_of"])
            ways = [(_line(layer, at, axis), axis_of == axis) for axis in range(layer.axes)]
        for pos, turning in ways:
            own = (theta * turning).expand(layer.encoding.geometry.n_heads, -1)
            worst = max(worst, _misturned(layer.turned(pos), own))
    return at_most(worst, 1e-7)


def _misturned(images: Tensor, theta_HP: Tensor) -> float:
    """How far turns [AT, H, K, K] are from those by AT * theta."""
    worst = 0.0
    for place, heads in zip(AT, images, strict=True):
        for own, image in zip(theta_HP, heads, strict=True):
            cosines = torch.ones(HEAD, dtype=torch.float64)
            cosines[: 2 * len(own)] = (place * own).cos().repeat(2)
            found = torch.linalg.eigvals(image).real
            worst = max(worst, difference(found.sort()[0], cosines.sort()[0]))
    return worst


@check("posenc", when=lambda s: s.has("distance_bias"))
def pointwise(subject: Scheme) -> Measured:
    """A distance's bias stands on its own"""
    worst = 0.0
    for layer in _having(subject, "distance_bias"):
        distance = torch.arange(300)
        ctx = layer.context(layer.feed(3))
        whole = layer.encoding.distance_bias(distance, ctx)
        some = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:57]
        for part in (distance[:20], distance[40:41], some):
            worst = max(worst, difference(layer.encoding.distance_bias(part, ctx), whole[:, part]))
    return at_most(worst, 0)


@check(
    "posenc", when=lambda s: s.has("distance_bias", "pair_bias") and not s.has("prepare", "embed")
)
def of_distance(subject: Scheme) -> Measured:
    """q = k = 0: weights follow the distance

    With several axes: the distance along each of them.
    """
    worst, declared = 0.0, subject.encoding.shift_invariant
    for layer in subject.layers:
        feed = layer.feed(HEAD, start=60)
        none = torch.zeros_like(feed.q)
        found = layer.weights(feed.but(q=none, k=none)).log()
        bias = found - found.diagonal(dim1=-2, dim2=-1)[..., None]
        apart = feed.pos[0, :, None] - feed.pos[0]
        kinds = apart.flatten(0, 1).unique(dim=0, return_inverse=True)[1].view(HEAD, HEAD)
        for kind in kinds.unique():
            equal = bias[..., (kinds == kind).tril()]
            if equal.numel():
                worst = max(worst, float((equal - equal[..., :1]).abs().max()))
        if "distance_bias" in layer.hooks and "pair_bias" not in layer.hooks:
            shown = layer.encoding.distance_bias(torch.arange(HEAD), layer.context(feed))
            worst = max(worst, difference(bias[0, :, -1].flip(-1), shown - shown[:, :1]))
            declared = True
    return if_declared(declared, worst)


@check("posenc", when=lambda s: s.has("distance_bias", "key_bias", "pair_bias"))
def monotone(subject: Scheme) -> Measured:
    """Biases never rise with the distance

    Whatever the parameters. Where that is not declared, a distance bias is seen to rise somewhere.
    """
    rise = -math.inf
    for seed in range(3):
        model = subject.model(seed=seed)
        nudge(model.posenc, 1.0, seed)
        for layer in layers_of(model.posenc):
            rise = max([rise, *(float(bias.max()) for bias in _rises(layer, 8 * subject.length))])
    if subject.encoding.monotone:
        return at_most(rise, 0)
    if not subject.has("distance_bias"):
        return faults([], f"not declared; the largest rise is {rise:.2g}")
    return absent(rise)


def _rises(layer: Layer, longest: int) -> list[Tensor]:
    """By how much biases rise from a distance to the next, hook by hook."""
    feed = layer.feed(48)
    ctx, at = layer.context(feed), feed.pos
    found = []
    if "distance_bias" in layer.hooks:
        found.append(layer.encoding.distance_bias(torch.arange(longest), ctx).diff(dim=-1))
    if "key_bias" in layer.hooks:
        found.append(-layer.encoding.key_bias(at, ctx).diff(dim=-1))
    for axis in range(layer.axes if "pair_bias" in layer.hooks else 0):
        line = _line(layer, torch.arange(at.shape[1]), axis)
        rise = -layer.encoding.pair_bias(line, line, layer.context(feed)).diff(dim=-1)
        later = torch.ones(rise.shape[-2:]).triu().bool()
        found.append(rise.masked_fill(later, -math.inf))
    return found


@check("posenc", when=lambda s: s.has("distance_bias", "pair_bias") and not s.has("prepare"))
def per_layer(subject: Scheme) -> Measured:
    """Layers share the bias iff it says so"""
    change, declared = 0.0, False
    for hook in ("distance_bias", "pair_bias"):
        for layer in _having(subject, hook):
            encoding, pos = layer.encoding, layer.feed(40).pos
            declared = declared or encoding.per_layer
            at = (torch.arange(40),) if hook == "distance_bias" else (pos, pos)
            both = [Layer(encoding, n) for n in range(encoding.geometry.n_layers)]
            biases = [getattr(encoding, hook)(*at, y.context(y.feed(3))) for y in both]
            change = max([change, *(difference(b, biases[0]) for b in biases)])
    return if_declared(not declared, change, bound=0)


@check(
    "posenc",
    when=lambda s: any("buckets" in y.encoding.own_tables(torch.arange(2)) for y in s.layers),
)
def buckets(subject: Scheme) -> Measured:
    """Buckets count distances from 0

    The bucket is seen in the bias, with every parameter's entries set to their row numbers.
    """
    found = []
    model = subject.model()
    distance = torch.arange(4 * subject.length)
    for own in layers_of(model.posenc):
        encoding = own.encoding
        shown = encoding.own_tables(distance).get("buckets")
        if shown is None:
            continue
        for parameter in encoding.parameters():
            rows = torch.arange(parameter.shape[0], dtype=parameter.dtype)
            parameter.copy_(rows.view(-1, *[1] * (parameter.ndim - 1)).expand_as(parameter))
        table = torch.tensor(shown)
        if own.hooks & BIASES:
            seen = _along(own, distance)[0].round().long()
            wrong = (seen != table).nonzero().flatten().tolist()
            found += [f"shows bucket {table[n]} for {n}, uses {seen[n]}" for n in wrong[:3]]
            table = seen
        ends = (table.diff() != 1).nonzero().flatten().tolist()
        exact = ends[0] if ends else len(table)
        if table[0] != 0:
            found.append(f"distance 0 has bucket {table[0]}")
        if 2 * exact < int(table.max()):
            found.append(f"only {exact} of {int(table.max()) + 1} buckets hold one distance")
        fall = (table.diff() < 0).nonzero().flatten().tolist()
        found += [f"the bucket of {n + 1} is below that of {n}" for n in fall[:3]]
    return faults(found)


@check(
    "posenc",
    when=lambda s: any("slopes" in y.encoding.own_tables(torch.arange(2)) for y in s.layers),
)
def slopes(subject: Scheme) -> Measured:
    """Bias of n is -n times the slope shown"""
    worst = 0.0
    for layer in subject.layers:
        shown = layer.encoding.own_tables(torch.arange(2)).get("slopes")
        if shown is None or not layer.hooks & BIASES:
            continue
        distance = torch.tensor([0, 1, 2, 77, 4096])
        expected = -torch.tensor(shown, dtype=torch.float64)[:, None] * distance
        for axis in range(layer.axes):
            worst = max(worst, difference(_along(layer, distance, axis).double(), expected))
    return at_most(worst, 1e-6)
