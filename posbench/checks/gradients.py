"""Checks by gradient: what reaches an output, and what a scheme can learn from."""

from functools import cache

import torch
from torch import Tensor

from posbench.checks.base import TINY, Measured, at_least, at_most, check, faults
from posbench.checks.inputs import VOCABULARY, difference, normal, tokens
from posbench.checks.small import nudge
from posbench.checks.subjects import Encoded, Scheme

#: rows of a parameter that a note lists
LISTED = 8


@cache
def influence(subject: Encoded, dtype: torch.dtype = torch.float64, length: int = 21) -> Tensor:
    """[i, j]: largest |d out_i / d x_j| over the channels of the token stream x."""
    model = subject.model().to(dtype)
    ids = tokens(length, batch=1)
    with torch.enable_grad():
        stream = model.tokens(ids).detach().requires_grad_()
        model.tokens = lambda ids: stream  # type: ignore[method-assign, assignment]
        out = subject.hidden(model, ids, encoding=subject.acting(model, subject.test_length))
        probe = normal(out.shape[2], seed=9, dtype=dtype)
        rows = [
            torch.autograd.grad(out[0, i] @ probe, stream, retain_graph=True)[0]
            for i in range(length)
        ]
    return torch.stack([row[0].abs().amax(-1) for row in rows])


@check("posenc", "rescale")
def future(subject: Encoded) -> Measured:
    """No gradient at all from later tokens"""
    both = (influence(subject, dtype) for dtype in (torch.float64, torch.float32))
    return at_most(max(found.triu(1).max().item() for found in both), 0)


@check("posenc", "rescale", when=lambda s: not s.has("visible"))
def past(subject: Encoded) -> Measured:
    """Every earlier token is seen"""
    found = influence(subject)
    rows, keys = torch.tril_indices(*found.shape)
    return at_least(found[rows, keys].min().item(), 1e-12)


@check("posenc", "rescale")
def unseen(subject: Encoded) -> Measured:
    """A changed token changes none before it"""
    model, ids = subject.model(), tokens(40)
    other = ids.clone()
    other[:, 21] = (other[:, 21] + 1) % VOCABULARY
    encoding = subject.acting(model, subject.test_length)
    a, b = (subject.hidden(model, x, encoding=encoding) for x in (ids, other))
    if difference(a[:, 21:], b[:, 21:]) < 1e-6:
        return at_least(difference(a[:, 21:], b[:, 21:]), 1e-6, "not even those after it")
    return at_most(difference(a[:, :21], b[:, :21]), 1e-12)


@check("posenc", when=lambda s: s.encoding.learnable)
def gradients(subject: Scheme) -> Measured:
    """Every own parameter learns at length L

    Taken at the initial values and on both sides of them, since a product of zeros, or the edge of
    an allowed range, has none. Rows that get none are listed.
    """
    reached: dict[str, Tensor] = {}
    for size in (0.0, 0.1, -0.1):
        model = subject.model(moved=False)
        nudge(model.posenc, size)
        with torch.enable_grad():
            out = subject.hidden(model, tokens(subject.fitting(subject.length)))
            (out * normal(*out.shape, seed=4)).sum().backward()
        for name, parameter in model.posenc.named_parameters():
            if parameter.grad is not None:
                got = (parameter.grad != 0) & parameter.grad.isfinite()
                reached[name] = reached.get(name, torch.zeros_like(got)) | got
    names = [name for name, _ in subject.encoding.named_parameters()]
    silent = [n for n in names if n not in reached or not reached[n].any()]
    rows = [text for name, got in reached.items() if (text := _unreached(name, got))]
    return faults([f"{name} gets none" for name in silent], "; ".join(rows))


def _unreached(name: str, got: Tensor) -> str:
    """The rows of a parameter that got no gradient, along the axis where they are whole rows."""
    for axis in range(got.ndim):
        others = [a for a in range(got.ndim) if a != axis]
        alive = got.any(dim=others) if others else got
        dead = (~alive).nonzero().flatten().tolist()
        if dead:
            listed = ", ".join(map(str, dead[:LISTED])) + (" ..." if len(dead) > LISTED else "")
            return f"{name}: none at {listed} of axis {axis} ({len(dead)} of {len(alive)})"
    return ""


@check("posenc", when=lambda s: s.encoding.learnable)
def finite(subject: Scheme) -> Measured:
    """Gradients are finite, in float32 too"""
    found = []
    for dtype in (torch.float64, torch.float32):
        model = subject.model(moved=False).to(dtype)
        with torch.enable_grad():
            subject.hidden(model, tokens(40)).pow(2).sum().backward()
        for name, parameter in model.posenc.named_parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                found.append(f"{name} in {dtype}")
    return faults(found)


@check("posenc", "rescale")
def window(subject: Encoded) -> Measured:
    """Keys before a window count for nothing"""
    worst = 0.0
    for layer in subject.layers:
        feed, width = layer.feed(24, batch=2), 7
        hidden = torch.arange(24) < 24 - width
        k = feed.k.masked_fill(hidden[None, None, :, None], 3.0)
        v = feed.v.masked_fill(hidden[None, None, :, None], -2.0)
        for rows in (24, 1):
            a, b = (layer.attend(f, rows, window=width) for f in (feed, feed.but(k=k, v=v)))
            worst = max(worst, difference(a[:, :, -1], b[:, :, -1]))
    return at_most(worst, TINY)
