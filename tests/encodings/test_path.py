"""PaTH: golden scores, products of matrices in a loop, the way w and beta are made."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import TYPES, Layer, gaps, spread
from oracles import golden, normal, positions, scheme, shape, tiny_model, tokens

from posbench.encodings import path
from posbench.encodings.base import Context
from posbench.encodings.path import Steps
from posbench.errors import ConfigError

SHAPE = shape(24, 3, 40)


def maps(layer):
    """H_t [K, K] of every token, from the stream by the formulas: a projection through few
    channels, a causal filter of width 3 for every channel, SiLU, the norm; a size per head."""
    encoding, own = layer.encoding, layer.layer
    p = {name: parameter[own].double() for name, parameter in encoding.named_parameters()}
    width, found = encoding.geometry.head_dim, {}
    for b, x in enumerate(layer.x.double()):
        raw = [p["up"] @ (p["down"] @ token) for token in x]
        for t in range(len(raw)):
            taps = p["conv"][:, 0]
            mixed = sum(taps[:, 2 - n] * raw[t - n] for n in range(3) if t >= n)
            mixed = mixed / (1 + (-mixed).exp())
            for h in range(encoding.geometry.n_heads):
                w = mixed[h * width : (h + 1) * width]
                w = w / (w @ w).sqrt()
                beta = 2 / (1 + (-(p["size"][h] @ x[t] + p["offset"][h])).exp())
                eye = torch.eye(width, dtype=torch.float64)
                found[b, h, t] = eye - beta * torch.outer(w, w)
    return found


def slow(layer):
    """From the formula, with the product of all maps between a key and a query."""
    steps = maps(layer)

    def score(b, h, i, j):
        product = torch.eye(layer.q.shape[3], dtype=torch.float64)
        for t in range(j + 1, i + 1):
            product = steps[b, h, t] @ product
        k = layer.k[b, h, j].double()
        return layer.q[b, h, i].double() @ product @ k / math.sqrt(len(k))

    return layer.loop(score)


def log_weights(w, beta, q, k):
    """Of the last token, up to a constant: w, q, k [T, K], beta [T]."""
    length, width = k.shape
    encoding, pos, ctx = scheme("path", shape(width, 1)), positions(length), Context(True)
    ctx.prepared = Steps(w[None, None], beta[None, None, :, None])
    unit = torch.eye(length, dtype=torch.float64)[None, None]
    last = q[None, None, -1:], k[None, None], unit, pos[:, -1:], pos
    return centred(encoding.attend(*last, ctx)[0, 0, 0].log() * math.sqrt(width))


def centred(x):
    x = torch.as_tensor(x, dtype=torch.float64)
    return x - x.mean()


@pytest.mark.parametrize("block", [1, 3, 32])
@pytest.mark.parametrize("beta", list(golden("path_householder")["constant"]["scores_by_distance"]))
def test_golden_reflections(beta, block, monkeypatch):
    monkeypatch.setattr(path, "BLOCK", block)
    numbers = golden("path_householder")["constant"]
    w, q, k = (torch.tensor([numbers[n]] * 5, dtype=torch.float64) for n in "wqk")
    got = log_weights(w, torch.full((5,), float(beta), dtype=torch.float64), q, k)
    wanted = numbers["scores_by_distance"][beta][::-1]
    torch.testing.assert_close(got, centred(wanted), rtol=0, atol=1e-9)


@pytest.mark.parametrize("block", [1, 4, 32])
def test_golden_draw(block, monkeypatch):
    monkeypatch.setattr(path, "BLOCK", block)
    draw = np.random.default_rng(0)
    w, beta = draw.standard_normal((6, 3)), 2 * draw.random(6)
    q, k = draw.standard_normal((6, 3)), draw.standard_normal((6, 3))
    w = w / np.linalg.norm(w, axis=1, keepdims=True)
    got = log_weights(*(torch.from_numpy(a) for a in (w, beta, q, k)))
    wanted = centred(golden("path_householder")["drawn"]["last_row"])
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("dtype", "error"), TYPES)
@pytest.mark.parametrize("pos", [None, gaps(15)])
@pytest.mark.parametrize("window", [None, 1, 4])
def test_a_layer_is_the_loop(dtype, error, pos, window, monkeypatch):
    encoding = spread(scheme("path", SHAPE, rank=5)).to(dtype)
    layer = Layer(encoding, 15, pos=pos, dtype=dtype, window=window)
    with torch.no_grad():
        wanted = slow(layer)
        for block in (1, 7, 64):
            monkeypatch.setattr(path, "BLOCK", block)
            layer.same(wanted, error)


@pytest.mark.parametrize("block", [4, 32])
def test_gradients_are_those_of_the_loop(block, monkeypatch):
    monkeypatch.setattr(path, "BLOCK", block)
    layer = Layer(spread(scheme("path", SHAPE, rank=5)).double(), 11).learning()
    layer.same_gradients(slow(layer))
    layer.sees_no_future()


@settings(deadline=None, max_examples=25, database=None)
@given(
    keys=st.integers(1, 40),
    rows=st.integers(1, 40),
    block=st.integers(1, 45),
    width=st.integers(1, 6),
    largest=st.floats(0, 2),
    seed=st.integers(0, 1000),
)
def test_blocks_are_one_token_after_the_other(keys, rows, block, width, largest, seed):
    rows = min(rows, keys)
    encoding, pos, ctx = scheme("path", shape(2 * width, 2)), positions(keys), Context(True)
    w, q, k, v = (normal(2, 2, keys, width, seed=seed + n) for n in range(4))
    w = w / w.norm(dim=-1, keepdim=True)
    beta = largest * normal(2, 2, keys, 1, seed=seed + 4).sigmoid()
    turned, wanted = k.clone(), []
    for t in range(keys):
        before, one = turned[:, :, :t], w[:, :, t : t + 1]
        before -= beta[:, :, t : t + 1] * (before * one).sum(-1, keepdim=True) * one
        scores = q[:, :, t : t + 1] @ turned[:, :, : t + 1].transpose(2, 3) / math.sqrt(width)
        wanted.append(scores.softmax(-1) @ v[:, :, : t + 1])
    ctx.prepared = Steps(w, beta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(path, "BLOCK", block)
        got = encoding.attend(q[:, :, -rows:], k, v, pos[:, -rows:], pos, ctx)
    torch.testing.assert_close(got, torch.cat(wanted, 2)[:, :, -rows:], rtol=0, atol=1e-10)


def test_what_a_layer_makes_of_its_stream():
    encoding = spread(scheme("path", SHAPE))
    pos, ctx, x = positions(50), Context(True, 1), normal(2, 50, 24, dtype=torch.float32)
    w, beta = encoding.prepare(x, pos, ctx)
    assert w.shape == (2, 3, 50, 8)
    assert beta.shape == (2, 3, 50, 1)
    torch.testing.assert_close(w.norm(dim=-1), torch.ones(2, 3, 50), rtol=0, atol=1e-5)
    assert beta.min() > 0
    assert beta.max() < 2
    with torch.no_grad():
        encoding.size.zero_()
        encoding.offset.zero_()
    assert torch.equal(encoding.prepare(x, pos, ctx).beta, torch.ones(2, 3, 50, 1))


def test_two_reflections_by_the_same_vector_are_none():
    """beta = 2 turns a key over and back again: even distances are as without."""
    w = torch.zeros(8, 4, dtype=torch.float64)
    w[:, 1] = 1
    q, k = normal(8, 4, seed=1), normal(1, 4, seed=2).expand(8, 4)
    got = log_weights(w, torch.full((8,), 2.0, dtype=torch.float64), q, k)
    assert got[::2].diff().abs().max() < 1e-12
    assert got[1::2].diff().abs().max() < 1e-12
    assert float(got[0] - got[1]) == pytest.approx(float(-2 * q[-1, 1] * k[0, 1]))


def test_a_float32_layer_of_two_thousand_tokens():
    outs = []
    for dtype in (torch.float32, torch.float64):
        encoding = spread(scheme("path", shape(16, 1, 64))).to(dtype)
        with torch.no_grad():
            outs.append(Layer(encoding, 2048, dtype=dtype, batch=1).attend(16).double())
    assert (outs[0] - outs[1]).abs().max() < 1e-5


def test_with_sizes_of_0_it_is_nope():
    encoding = spread(scheme("path", SHAPE)).double()
    (reduction,) = type(encoding).reductions()
    plain = Layer(scheme(reduction.equals, SHAPE)).attend()
    assert (Layer(encoding).attend() - plain).abs().max() > 0.01
    reduction.prepare(encoding)
    torch.testing.assert_close(Layer(encoding).attend(), plain, rtol=0, atol=1e-12)


def test_parameters():
    sizes = {n: tuple(p.shape) for n, p in scheme("path", SHAPE).named_parameters()}
    assert sizes == {
        "down": (2, 32, 24),
        "up": (2, 24, 32),
        "conv": (2, 24, 1, 3),
        "size": (2, 3, 24),
        "offset": (2, 3),
    }
    with pytest.raises(ConfigError, match="posenc.rank=0: must be at least 1"):
        scheme("path", SHAPE, rank=0)


def test_every_parameter_learns_in_the_model():
    model = tiny_model("path")
    model(tokens(40)).pow(2).sum().backward()
    for parameter in model.posenc.parameters():
        assert (parameter.grad != 0).all()
