"""The logarithm of the length: golden factors, a loop over pairs."""

import math

import pytest
import torch
from loops import TYPES, Layer, gaps
from oracles import golden, normal, positions, scheme, shape

from posbench.encodings.base import Context, Tied

SHAPE = shape(24, 3, 40)


def slow(layer, least=0.0):
    def score(b, h, i, j):
        seen = min(i + 1, layer.window or 10**6)  # whatever its position
        return layer.dot(b, h, i, j) * max(least, math.log(seen) / math.log(40))

    return layer.loop(score)


@pytest.mark.parametrize(
    ("clamp", "file", "form"),
    [(False, "logit_scales", "logn"), (True, "logn_rescale", "factor")],
)
def test_golden(clamp, file, form):
    numbers = golden(file)
    encoding = scheme("logn", shape(24, 3, numbers["train_length"]), clamp=clamp)
    keys = positions(max(numbers["positions"]) + 1)
    got = encoding.logit_scale(keys, keys, Context(True))[..., numbers["positions"]]
    wanted = torch.tensor([[numbers[form]]], dtype=torch.float64)
    torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("dtype", "error"), TYPES)
@pytest.mark.parametrize("pos", [None, gaps(21)])
@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("window", [None, 1, 5])
def test_a_layer_is_the_loop(dtype, error, pos, clamp, window):
    layer = Layer(scheme("logn", SHAPE, clamp=clamp), pos=pos, dtype=dtype, window=window)
    with torch.no_grad():
        layer.same(slow(layer, 1.0 if clamp else 0.0), error)


def test_gradients_are_those_of_the_loop():
    layer = Layer(scheme("logn", SHAPE), 13).learning()
    layer.same_gradients(slow(layer))
    layer.sees_no_future()


def test_it_leaves_the_last_trained_token_alone():
    encoding = scheme("logn", SHAPE)
    last = encoding.logit_scale(positions(1, 39), positions(40), Context(True))
    assert last.item() == pytest.approx(1)
    assert encoding.shift_invariant
    assert encoding.tied() == [Tied("log base of logn", "512", "40")]


def test_entropy_stays_as_keys_get_more():
    """Of random scores; without the factor it grows with every doubling."""

    def entropy(length, factor):
        scores = 2.0 * normal(400, length, seed=length) * factor
        log = scores.log_softmax(-1)
        return float(-(log.exp() * log).sum(-1).mean())

    encoding = scheme("logn", SHAPE)
    growth = {}
    for name in ("plain", "logn"):
        found = []
        for length in (40, 160, 640):
            scale = float(encoding.logit_scale(positions(1), positions(length), Context(True)))
            found.append(entropy(length, scale if name == "logn" else 1.0))
        growth[name] = found[-1] - found[0]
    assert growth["plain"] > 2
    assert growth["logn"] < growth["plain"] / 2
