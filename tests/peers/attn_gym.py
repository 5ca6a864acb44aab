"""attention-gym: its ALiBi and Sandwich score modifications, called as FlexAttention does."""

import torch
from attn_gym.mods import generate_alibi_bias, generate_sandwich_bias

from peers import formulas, ours
from peers.compare import Probe, Values, grid, named

RECIPE = "the published recipe written out (arXiv:2108.12409, official code)"


def biases(mod, heads: int, distance: int) -> list[float]:
    """What a score modification adds at a distance, per head."""
    zero, at = torch.tensor(0.0), torch.tensor(distance)
    nothing = torch.tensor(0)
    return [float(mod(zero, nothing, torch.tensor(h), at, nothing)) for h in range(heads)]


def slopes(heads: int) -> Values:
    return named("slope of head", [-b for b in biases(generate_alibi_bias(heads), heads, 1)])


def sandwich(heads: int, distance: int) -> Values:
    """Against distance 0, since a constant in a row changes nothing after softmax."""
    mod = generate_sandwich_bias(heads, distance + 1)
    pair = zip(biases(mod, heads, distance), biases(mod, heads, 0), strict=True)
    return named("bias(distance) - bias(0) of head", [far - near for far, near in pair])


def sandwich_ours(heads: int, distance: int) -> Values:
    bias = ours.tables("sandwich", heads=heads, distances=[0, distance])["bias"]
    return named("bias(distance) - bias(0) of head", [far - near for near, far in bias["values"]])


def sandwich_formula(heads: int, distance: int) -> Values:
    rise = formulas.sandwich(distance) - formulas.sandwich(0)
    numbers = [rise / (8 * h / heads) for h in range(1, heads + 1)]
    return named("bias(distance) - bias(0) of head", numbers)


PROBES = [
    Probe(
        scheme="alibi",
        part="mods.generate_alibi_bias",
        grid=grid(heads=range(1, 17)),
        peer=slopes,
        ours=ours.slopes,
        oracle=lambda heads: named("slope of head", formulas.alibi_slopes(heads)),
        rule=RECIPE,
    ),
    Probe(
        scheme="sandwich",
        part="mods.generate_sandwich_bias",
        grid=grid(heads=[1, 2, 3, 8], distance=[1, 2, 12, 100, 1000]),
        peer=sandwich,
        ours=sandwich_ours,
        oracle=sandwich_formula,
        rule="the sum of arXiv:2212.10356 section 5 written out",
        tolerance=1e-4,
    ),
]
