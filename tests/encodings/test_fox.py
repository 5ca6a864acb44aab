"""Forgetting: golden biases, x-transformers, ALiBi, a loop over pairs, sixteen thousand tokens."""

import importlib
import math

import pytest
import torch
from loops import TYPES, Layer, gaps, spread
from oracles import alibi_slopes, golden, normal, positions, scheme, shape, tiny_model, tokens

from posbench.encodings.base import Context
from posbench.errors import ConfigError

SHAPE = shape(24, 3, 40)


def slow(layer):
    """From the formula: the log gates of the tokens after the key, up to the query."""
    encoding, own = layer.encoding, layer.layer
    weight, offset = encoding.weight[own].double(), encoding.offset[own].double()

    def log_gate(b, h, t):
        return -torch.log1p((-(weight[h] @ layer.x[b, t].double() + offset[h])).exp())

    def score(b, h, i, j):
        return layer.dot(b, h, i, j) + sum(log_gate(b, h, t) for t in range(j + 1, i + 1))

    return layer.loop(score)


def constant(encoding, gates):
    """The encoding with a gate for every head that no content changes."""
    with torch.no_grad():
        encoding.weight.zero_()
        logits = [math.log(g / (1 - g)) for g in gates]
        encoding.offset[:] = torch.tensor(logits, dtype=torch.float64)
    return encoding


def of_pairs(encoding, pos, ctx, rows=None):
    """The key's value less the query's own, for the last `rows` queries."""
    value = encoding.key_bias(pos, ctx)
    return value[:, :, None] - value[..., -(rows or value.shape[-1]) :, None]


def bias(encoding, layer=0, keys=4, dtype=torch.float64):
    pos, ctx = positions(keys), Context(True, layer)
    x = normal(1, keys, encoding.geometry.d_model).to(dtype)
    ctx.prepared = encoding.prepare(x, pos, ctx)
    return of_pairs(encoding, pos, ctx).detach()[0]


def test_golden():
    numbers = golden("fox_constant_gate")
    gate = numbers["gate"]
    encoding = constant(scheme("fox", SHAPE).double(), [gate] * 3)
    wanted = torch.tensor(numbers["bias_of_row_3"], dtype=torch.float64).expand(3, 4)
    torch.testing.assert_close(bias(encoding)[:, 3], wanted, rtol=1e-8, atol=1e-9)
    assert -math.log(gate) == pytest.approx(numbers["slope"])
    assert scheme("fox", SHAPE).offset.sigmoid().flatten().tolist() == pytest.approx(
        [numbers["gate_at_offset_0"]] * 6
    )


@pytest.mark.parametrize(("dtype", "error"), TYPES)
@pytest.mark.parametrize("pos", [None, gaps(21)])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("own", [0, 1])
def test_a_layer_is_the_loop(dtype, error, pos, window, own):
    encoding = spread(scheme("fox", SHAPE)).to(dtype)
    layer = Layer(encoding, pos=pos, dtype=dtype, window=window, layer=own)
    with torch.no_grad():
        layer.same(slow(layer), error)


def test_gradients_are_those_of_the_loop():
    layer = Layer(spread(scheme("fox", SHAPE)).double(), 13).learning()
    layer.same_gradients(slow(layer))
    layer.sees_no_future()


@pytest.mark.parametrize(("dtype", "error"), TYPES)
def test_the_bias_is_that_of_x_transformers(dtype, error):
    peers = importlib.import_module("x_transformers.x_transformers")
    encoding = spread(scheme("fox", SHAPE)).to(dtype)
    peer = peers.DataDependentAlibi(24, 3).to(dtype)
    pos, x, ctx = positions(31), normal(2, 31, 24).to(dtype), Context(True, 1)
    with torch.no_grad():
        peer.to_forget_gates[0].weight.copy_(encoding.weight[1])
        peer.to_forget_gates[0].bias.copy_(encoding.offset[1])
        wanted = peer(x)
        ctx.prepared = encoding.prepare(x, pos, ctx)
        got = of_pairs(encoding, pos, ctx)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got.tril(), wanted.double().tril(), rtol=0, atol=10 * error)


@pytest.mark.parametrize("heads", [1, 3, 8, 12])
def test_constant_gates_are_alibi(heads):
    encoding = spread(scheme("fox", shape(8 * heads, heads))).double()
    (_, reduction) = type(encoding).reductions()
    reduction.prepare(encoding)
    distance = torch.arange(9)[:, None] - torch.arange(9)
    slopes = torch.tensor(alibi_slopes(heads), dtype=torch.float64)
    wanted = -slopes[:, None, None] * distance
    torch.testing.assert_close(bias(encoding, 1, 9).tril(), wanted.tril(), rtol=0, atol=1e-9)
    layer = Layer(encoding, 17)
    theirs = Layer(scheme(reduction.equals, encoding.geometry), 17).attend()
    torch.testing.assert_close(layer.attend(), theirs, rtol=0, atol=1e-9)


def test_gates_of_1_are_nope():
    encoding = spread(scheme("fox", SHAPE)).double()
    (reduction, _) = type(encoding).reductions()
    plain = Layer(scheme(reduction.equals, SHAPE)).attend()
    assert (Layer(encoding).attend() - plain).abs().max() > 0.01
    reduction.prepare(encoding)
    torch.testing.assert_close(Layer(encoding).attend(), plain, rtol=0, atol=1e-12)


def test_a_key_fades_with_every_token_and_a_token_does_not_fade_itself():
    found = bias(spread(scheme("fox", SHAPE)).double(), keys=30)
    assert torch.equal(found.diagonal(dim1=1, dim2=2), torch.zeros(3, 30, dtype=torch.float64))
    assert (found.diff(dim=2).tril(-1) >= 0).all()
    assert scheme("fox", SHAPE).monotone


@pytest.mark.parametrize("gate", [0.5, 0.999])
def test_sums_of_sixteen_thousand_tokens_in_a_float32_model(gate):
    """Against exact sums. A running total in float32 has lost three digits by then."""
    keys = 16384
    encoding = constant(scheme("fox", shape(8, 1, 64)), [gate])
    with torch.no_grad():
        encoding.weight[:] = 0.1 * normal(2, 1, 8)
        x = normal(1, keys, 8, dtype=torch.float32)
        logits = (x @ encoding.weight[0].T + encoding.offset[0])[0, :, 0].double()
        ctx = Context(True)
        ctx.prepared = encoding.prepare(x, positions(keys), ctx)
        got = of_pairs(encoding, positions(keys), ctx, rows=2)[0, 0]
    logs = [-math.log1p(math.exp(-g)) for g in logits.tolist()]
    lossy = torch.tensor(logs).float().numpy().cumsum(dtype="float32")
    worst = 0.0
    for row, i in enumerate((keys - 2, keys - 1)):
        for j in (i, i - 1, i - 2, i - 30, i - 5000, 0):
            exact = math.fsum(logs[j + 1 : i + 1])
            assert got[row, j] == pytest.approx(exact, abs=1e-9 * max(1.0, abs(exact)))
            worst = max(worst, abs(float(lossy[i] - lossy[j]) - exact) if i - j < 100 else 0.0)
    if gate == 0.5:
        assert worst > 1e-4


@pytest.mark.parametrize("gate", [0.5, 0.999])
def test_a_float32_layer_of_sixteen_thousand_tokens(gate):
    outs = []
    for dtype in (torch.float32, torch.float64):
        encoding = constant(scheme("fox", shape(8, 1, 64)), [gate])
        with torch.no_grad():
            encoding.weight[:] = 0.1 * normal(2, 1, 8)
            encoding = encoding.to(dtype)
            outs.append(Layer(encoding, 16384, dtype=dtype, batch=1).attend(8).double())
    assert (outs[0] - outs[1]).abs().max() < 2e-6


@pytest.mark.parametrize("gate", [0.0, 1.0, -1.0, 2.0])
def test_a_gate_outside_0_to_1_is_refused(gate):
    with pytest.raises(ConfigError, match="posenc.initial_gate=.*: from 0 to 1, exclusive"):
        scheme("fox", SHAPE, initial_gate=gate)


def test_the_initial_gate():
    encoding = scheme("fox", SHAPE, initial_gate=0.9)
    assert encoding.offset.sigmoid().flatten().tolist() == pytest.approx([0.9] * 6)


def test_every_parameter_learns_in_the_model():
    model = tiny_model("fox")
    model(tokens(40)).pow(2).sum().backward()
    assert (model.posenc.weight.grad.abs().sum(-1) > 0).all()
    assert (model.posenc.offset.grad != 0).all()
