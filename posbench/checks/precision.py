"""Checks of number types: tables stay exact where weights are rounded, and far from the origin."""

import copy

import torch
from torch import Tensor

from posbench.checks.attention import READS
from posbench.checks.base import Measured, at_most, check, faults
from posbench.checks.inputs import Layer, tokens
from posbench.checks.small import layers_of
from posbench.checks.subjects import Encoded
from posbench.encodings.base import Context, PositionalEncoding

#: where half types cannot tell whole numbers apart: bfloat16 past 256, float16 past 2048
CLOSE = (255, 256, 257, 258, 2047, 2048, 2049, 2050, 8189, 8190, 8191)
HALVES = (torch.bfloat16, torch.float16)


def _at(layer: Layer, encoding: PositionalEncoding, *near: int) -> Tensor:
    """Positions [1, N, A], the same on every axis, those that the scheme is defined for."""
    kept = [n for n in near if encoding.defined_for((n + 1,) * layer.axes)] or [0]
    return torch.tensor(kept)[None, :, None].repeat(1, 1, layer.axes)


def _values(layer: Layer, pos: Tensor, dtype: torch.dtype) -> list[tuple[str, Tensor]]:
    """What a scheme makes of positions alone, hook by hook."""
    encoding, hooks = layer.encoding, layer.hooks
    if "prepare" in hooks:
        return []
    ctx, found = Context(False).at(layer.index), []
    if "embed" in hooks:
        empty = torch.zeros(1, pos.shape[1], encoding.geometry.d_model, dtype=dtype)
        found.append(("embed", encoding.embed(empty, pos)))
    if "rotate" in hooks:
        found.append(("rotate", layer.turned(pos, dtype)))
    if "distance_bias" in hooks:
        found.append(("distance_bias", encoding.distance_bias(pos[0, :, 0], ctx)))
    if "pair_bias" in hooks:
        found.append(("pair_bias", encoding.pair_bias(pos, pos, ctx)))
    scale = encoding.logit_scale(pos, pos, ctx)
    if isinstance(scale, Tensor):
        found.append(("logit_scale", scale))
    return found


def _error(a: list[tuple[str, Tensor]], b: list[tuple[str, Tensor]]) -> tuple[float, str]:
    """Largest error, relative where numbers are above 1, and the hook it is in."""
    worst, where = 0.0, ""
    for (hook, x), (_, y) in zip(a, b, strict=True):
        error = ((x.double() - y.double()).abs() / y.double().abs().clamp(min=1)).max().item()
        if not error <= worst:
            worst, where = error, hook
    return worst, where


def _tables(subject: Encoded) -> bool:
    """Whether a layer's scheme makes something of positions, or of how many there are, alone."""
    return any(
        y.hooks & (READS | {"logit_scale"}) and "prepare" not in y.hooks for y in subject.layers
    )


def _rounded(encoding: PositionalEncoding, dtype: torch.dtype) -> PositionalEncoding:
    """A copy with parameters that a type can hold, in float64; nothing else is rounded."""
    new = copy.deepcopy(encoding)
    for parameter in new.parameters():
        parameter.copy_(parameter.to(dtype))
    return new


@check("posenc", "rescale", when=lambda s: s.has("distance_bias"))
def fine(subject: Encoded) -> Measured:
    """Biases are not rounded to bf16 or fp16

    A table that was computed in a half type holds nothing but numbers of that type.
    """
    found = []
    distance = torch.arange(2049, 4096, 2)
    for layer in subject.layers:
        if "distance_bias" not in layer.hooks:
            continue
        bias = layer.encoding.distance_bias(distance, layer.context(layer.feed(3))).double()
        for head, row in enumerate(bias):
            few = len(row.unique()) < 100  # buckets, or a bias that has ended
            rounded = any(torch.equal(row.to(t).double(), row) for t in HALVES)
            if rounded and not few:
                found.append(f"head {head} from {distance[0]} to {distance[-1]}")
    return faults(found)


@check("posenc", "rescale", when=_tables)
def half_tables(subject: Encoded) -> Measured:
    """Tables stay exact in bf16 and fp16"""
    worst, note = 0.0, ""
    for dtype in HALVES:
        exact = _rounded(subject.encoding, dtype)
        cast = copy.deepcopy(exact).to(dtype)
        for a, b in zip(layers_of(cast), layers_of(exact), strict=True):
            pos = _at(b, subject.encoding, *CLOSE)
            error, hook = _error(_values(a, pos, torch.float32), _values(b, pos, torch.float64))
            if not error <= worst:
                worst, note = error, f"{hook} in {dtype}"
    return at_most(worst, 1e-2, note if worst > 1e-2 else "")


@check("posenc", "rescale", when=lambda s: _tables(s) and s.has("rotate", "embed"))
def far(subject: Encoded) -> Measured:
    """float32 at position 10^6 near float64"""
    worst, note = 0.0, ""
    exact = _rounded(subject.encoding, torch.float32)
    single = copy.deepcopy(exact).float()
    for a, b in zip(layers_of(single), layers_of(exact), strict=True):
        pos = _at(b, subject.encoding, 999_993, 1_000_000)
        error, hook = _error(_values(a, pos, torch.float32), _values(b, pos, torch.float64))
        if not error <= worst:
            worst, note = error, hook
    return at_most(worst, 0.03, note if worst > 0.03 else "")


@check("posenc", "rescale")
def half_model(subject: Encoded) -> Measured:
    """A bfloat16 model is near float64"""
    ids = tokens(subject.fitting(64), batch=1)
    model = subject.model().bfloat16()
    found = subject.hidden(model, ids)
    exact = subject.hidden(copy.deepcopy(model).double(), ids)
    if found.dtype != torch.bfloat16:
        return at_most(float("nan"), 0, f"gives {found.dtype}")
    error = (found.double() - exact).norm() / exact.norm()
    return at_most(float(error), 0.05)
