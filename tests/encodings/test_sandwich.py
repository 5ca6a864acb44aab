"""Sandwich: golden numbers and the inner product of embeddings, made one by one."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import golden, normal, positions, scheme, shape, slow_attention

from posbench.encodings.base import Context
from posbench.errors import ConfigError


def embedding(m, width):
    """Sinusoidal embedding of a position."""
    angles = [m / 10000 ** (2 * p / width) for p in range(width // 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles]


def slow(heads, width, h, distance, at=5):
    """Bias of head h (from 0), from the embeddings of two positions."""
    pair = zip(embedding(at + distance, width), embedding(at, width), strict=True)
    return (sum(a * b for a, b in pair) - width / 2) / (8 * (h + 1) / heads)


def bias_of(encoding, distances):
    return encoding.distance_bias(torch.tensor(distances), Context(True))


def test_golden():
    numbers = golden("sandwich")
    heads, width = numbers["heads"], numbers["d_bar"]
    encoding = scheme("sandwich", shape(8 * heads, heads))
    assert encoding.config.d_bar == width
    found = bias_of(encoding, numbers["distances"])
    for h in (1, 8):
        wanted = torch.tensor(numbers[f"head_{h}"], dtype=torch.float64)
        torch.testing.assert_close(found[h - 1], wanted, rtol=1e-8, atol=1e-9)
    nemo = torch.tensor(numbers["head_1_of_nemo"], dtype=torch.float64)
    assert bool(((found[0] - nemo).abs()[1:5] > 0.4).all())
    rises = (bias_of(encoding, list(range(100)))[0].diff() > 0).nonzero().flatten()
    assert rises[0] == numbers["first_distance_before_a_rise"]
    assert not encoding.monotone


@settings(deadline=None, max_examples=25, database=None)
@given(heads=st.integers(1, 12), half=st.integers(1, 40), far=st.integers(0, 10**5))
def test_is_the_product_of_two_embeddings(heads, half, far):
    encoding = scheme("sandwich", shape(2 * heads, heads), d_bar=2 * half)
    distances = [0, 1, 2, 30, far]
    wanted = [[slow(heads, 2 * half, h, d) for d in distances] for h in range(heads)]
    torch.testing.assert_close(
        bias_of(encoding, distances), torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-8
    )


@pytest.mark.parametrize("rows", [19, 6, 1])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-11), (torch.float32, 3e-6)])
def test_a_layer_equals_a_slow_loop(rows, dtype, error):
    encoding = scheme("sandwich", shape(24, 3)).to(dtype)
    q, k, v = (normal(2, 3, n, 8, seed=s, dtype=dtype) for s, n in enumerate((rows, 19, 19)))
    pos = positions(19)
    wanted = slow_attention(q.double(), k.double(), v.double(), lambda h, d: slow(3, 128, h, d))
    for consecutive in (True, False):
        got = encoding.attend(q, k, v, pos[:, 19 - rows :], pos, Context(consecutive))
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=error)


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_a_cast_module_keeps_full_precision(cast):
    encoding = scheme("sandwich")
    before = bias_of(encoding, [0, 1, 1000, 10**6])
    after = bias_of(encoding.to(cast), [0, 1, 1000, 10**6])
    assert after.dtype == torch.float64
    assert torch.equal(before, after)
    assert bool((after[:, 0] == 0).all())


def test_nothing_is_learned_or_follows_the_training_length():
    encoding = scheme("sandwich")
    assert list(encoding.parameters()) == []
    assert encoding.tied() == []
    assert not encoding.learnable
    assert not encoding.needs_train_length


def test_no_output_depends_on_a_later_token():
    encoding = scheme("sandwich")
    q, k, v = (normal(1, 4, 12, 8, seed=s) for s in (1, 2, 3))
    pos = positions(12)
    a = encoding.attend(q, k, v, pos, pos, Context(True))
    k[:, :, 7] += 1
    v[:, :, 7] += 1
    b = encoding.attend(q, k, v, pos, pos, Context(True))
    assert torch.equal(a[:, :, :7], b[:, :, :7])
    assert not torch.isclose(a[:, :, 7:], b[:, :, 7:]).all(-1).any()


def test_refusals():
    for width in (0, 7):
        with pytest.raises(ConfigError, match=rf"posenc.d_bar={width}: an even number"):
            scheme("sandwich", d_bar=width)
