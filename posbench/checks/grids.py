"""Checks of what only schemes with several position axes have: every axis, and every extent."""

import math

import torch

from posbench import grid
from posbench.checks.attention import READS
from posbench.checks.base import FLOOR, Measured, at_least, check, faults
from posbench.checks.inputs import difference, positions, tokens
from posbench.checks.subjects import Scheme


def on_grids(subject: Scheme) -> bool:
    """Whether it is checked on pictures or clips."""
    return subject.axes > 1


@check("posenc", when=lambda s: on_grids(s) and s.has(*READS) and not s.has("prepare"))
def axes(subject: Scheme) -> Measured:
    """Every axis of positions counts"""
    model, ids, least = subject.model(), tokens(30), math.inf
    pos = positions(30, subject.axes)
    for axis in range(subject.axes):
        other = pos.clone()
        other[..., axis] //= 2
        change = difference(model.hidden(ids, pos_BTA=other), model.hidden(ids, pos_BTA=pos))
        least = min(least, change)
    return at_least(least, FLOOR)


@check("posenc", when=on_grids)
def larger(subject: Scheme) -> Measured:
    """Works on longer axes, or refuses each

    The last token of a shape that is one longer along one axis, and the last of training.
    """
    model, trained = subject.model(), subject.encoding.geometry.shape
    found, refused = [], []
    for axis in range(-1, len(trained)):
        shape = tuple(extent + (a == axis) for a, extent in enumerate(trained))
        pos = torch.tensor([[0] * len(shape), [extent - 1 for extent in shape]])[None]
        try:
            works = bool(model.hidden(tokens(2), pos_BTA=pos).isfinite().all())
        except Exception:
            works = False
        declared = model.posenc.defined_for(shape)
        if works and not declared:
            found.append(f"is not defined for {grid.text(shape)}, but raises no error")
        elif declared and not works:
            found.append(f"fails on {grid.text(shape)}")
        elif not declared:
            refused.append(grid.text(shape))
    if not model.posenc.defined_for(trained):
        found.append("is not defined for the shape of training")
    return faults(found, "refuses " + ", ".join(refused) if refused else "")
