"""Scalable softmax: golden factors, a loop over pairs."""

import math

import pytest
import torch
from loops import TYPES, Layer, gaps, spread
from oracles import golden, positions, scheme, shape, tiny_model, tokens

from posbench.encodings.base import Context
from posbench.errors import ConfigError

SHAPE = shape(24, 3, 40)


def slow(layer):
    scale = layer.encoding.scale[layer.layer].double()

    def score(b, h, i, j):
        seen = min(i + 1, layer.window or 10**6)  # whatever its position
        return layer.dot(b, h, i, j) * scale[h] * math.log(seen)

    return layer.loop(score)


def test_golden():
    numbers = golden("logit_scales")
    encoding = scheme("ssmax", SHAPE, initial=numbers["ssmax_s"]).double()
    keys = positions(max(numbers["positions"]) + 1)
    got = encoding.logit_scale(keys, keys, Context(True))[..., numbers["positions"]]
    assert got.shape == (1, 3, len(numbers["positions"]))
    wanted = torch.tensor(numbers["ssmax"], dtype=torch.float64).expand(1, 3, -1)
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("dtype", "error"), TYPES)
@pytest.mark.parametrize("pos", [None, gaps(21)])
@pytest.mark.parametrize("window", [None, 1, 5])
def test_a_layer_is_the_loop(dtype, error, pos, window):
    encoding = spread(scheme("ssmax", SHAPE)).to(dtype)
    layer = Layer(encoding, pos=pos, dtype=dtype, window=window)
    with torch.no_grad():
        layer.same(slow(layer), error)


def test_gradients_are_those_of_the_loop():
    layer = Layer(spread(scheme("ssmax", SHAPE)).double(), 13).learning()
    layer.same_gradients(slow(layer))
    layer.sees_no_future()


def test_it_begins_at_1_and_every_head_of_every_layer_learns():
    model = tiny_model("ssmax")
    assert torch.equal(model.posenc.scale, torch.ones(2, 4))
    model(tokens(40)).pow(2).sum().backward()
    assert (model.posenc.scale.grad != 0).all()


def test_it_counts_keys_and_not_positions():
    encoding = scheme("ssmax", SHAPE)
    assert encoding.shift_invariant
    near, far = (
        encoding.logit_scale(positions(5, n), positions(5, n), Context(True)) for n in (0, 7)
    )
    assert torch.equal(near, far)
    more = encoding.logit_scale(positions(5, 7), positions(12), Context(True))
    assert (more > near).all()


@pytest.mark.parametrize("given", [0.0, -1.0, math.inf, math.nan])
def test_a_start_that_is_not_above_0_is_refused(given):
    with pytest.raises(ConfigError, match="posenc.initial=.*: must be above 0"):
        scheme("ssmax", SHAPE, initial=given)


def test_at_1_by_ln_of_the_length_it_is_logn():
    encoding = spread(scheme("ssmax", SHAPE)).double()
    (reduction,) = type(encoding).reductions()
    wanted = Layer(scheme(reduction.equals, SHAPE)).attend()
    assert (Layer(encoding).attend() - wanted).abs().max() > 0.01
    reduction.prepare(encoding)
    torch.testing.assert_close(Layer(encoding).attend(), wanted, rtol=0, atol=1e-12)
