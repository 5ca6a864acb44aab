"""Stick-breaking: golden weights, a stick broken key by key, sixteen thousand tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import TYPES, Layer, gaps
from oracles import golden, normal, scheme, shape

from posbench.encodings.stick_breaking import shares

SHAPE = shape(24, 3, 40)


def break_stick(scores):
    """Weights of the keys up to the query, nearest key first; the query keeps the rest."""
    rest, weights = torch.ones((), dtype=torch.float64), []
    for score in reversed(scores[:-1]):
        share = rest * score.sigmoid()
        weights.append(share)
        rest = rest * (1 - score.sigmoid())
    return torch.stack([*reversed(weights), rest])


def causal(scores):
    rows, keys = scores.shape[-2:]
    return scores.masked_fill(torch.ones(rows, keys).triu(keys - rows + 1).bool(), -torch.inf)


def test_golden():
    numbers = golden("stick_breaking_zero_logits")
    weights, remainder = shares(causal(torch.zeros(5, 5, dtype=torch.float64)))
    wanted = torch.tensor(numbers["weights"], dtype=torch.float64)
    torch.testing.assert_close(weights, wanted, rtol=0, atol=1e-15)
    left = torch.tensor(numbers["remainder"], dtype=torch.float64)
    torch.testing.assert_close(remainder[:, 0], left, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("dtype", "error"), TYPES)
@pytest.mark.parametrize("pos", [None, gaps(21)])
@pytest.mark.parametrize("window", [None, 1, 4])
def test_a_layer_is_the_loop(dtype, error, pos, window):
    layer = Layer(scheme("stick_breaking", SHAPE), pos=pos, dtype=dtype, window=window)
    with torch.no_grad():
        layer.same(layer.loop(layer.dot, weigh=break_stick), error)


def test_gradients_are_those_of_the_loop():
    layer = Layer(scheme("stick_breaking", SHAPE), 13).learning()
    layer.same_gradients(layer.loop(layer.dot, weigh=break_stick))
    layer.sees_no_future()


def test_the_first_token_has_nothing_but_itself():
    layer = Layer(scheme("stick_breaking", SHAPE))
    torch.testing.assert_close(layer.attend()[:, :, 0], layer.v[:, :, 0], rtol=0, atol=0)


@settings(deadline=None, max_examples=40, database=None)
@given(
    keys=st.integers(1, 60),
    missing=st.integers(0, 59),
    size=st.floats(0, 200),
    shift=st.floats(-100, 100),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_weights_and_remainder_are_one_stick(keys, missing, size, shift, seed, dtype):
    rows = max(1, keys - missing)
    scores = causal((size * normal(2, rows, keys, seed=seed) + shift).to(dtype))
    weights, remainder = shares(scores)
    whole = weights.sum(-1, keepdim=True) + remainder
    error = 1e-12 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(whole, torch.ones_like(whole), rtol=0, atol=error)
    assert weights.min() >= 0
    assert remainder.min() >= 0
    own = torch.ones(rows, keys).triu(keys - rows).bool()
    assert (weights[:, own] == 0).all()


def test_nearer_keys_come_first():
    weights, _ = shares(causal(torch.zeros(1, 30, dtype=torch.float64)))
    assert (weights[0, :-1].diff() > 0).all()


def test_a_constant_in_a_row_changes_the_result():
    scores = causal(normal(6, 6))
    a, b = shares(scores)[0], shares(scores + 1.0)[0]
    assert (a[1:] - b[1:]).abs().amax(-1).min() > 0.01


@pytest.mark.parametrize("mean", [-12.0, -9.0, -6.0, 0.0, 6.0])
def test_sixteen_thousand_keys_in_float32(mean):
    """At -9 the whole sequence shares the stick, the hardest case for sums of logarithms."""
    scores = (normal(8, 16384, seed=3) + mean).float()
    scores = causal(scores)
    weights, remainder = shares(scores)
    exact, left = shares(scores.double())
    assert float((weights - exact).abs().max() / exact.max()) < 1e-5
    assert (weights.double().sum(-1) - exact.sum(-1)).abs().max() < 2e-6
    assert (remainder - left).abs().max() < 2e-6


def test_the_gradient_is_finite_where_sticks_are_used_up():
    scores = (40.0 * normal(12, 12)).requires_grad_()
    weights, remainder = shares(causal(scores))
    ((weights**2).sum() + remainder.sum()).backward()
    assert scores.grad.isfinite().all()


def test_it_has_no_parameters_and_reads_no_positions():
    encoding = scheme("stick_breaking", SHAPE)
    assert not list(encoding.parameters())
    near, far = (Layer(encoding, pos=p).attend() for p in (gaps(21), gaps(21) + 1000))
    assert torch.equal(near, far)
