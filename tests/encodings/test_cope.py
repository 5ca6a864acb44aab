"""Contextual positions: golden positions, x-transformers, a loop over pairs."""

import importlib
import math

import pytest
import torch
from loops import TYPES, Layer, gaps, spread
from oracles import golden, normal, positions, scheme, shape, tiny_model, tokens

from posbench.encodings.base import Context, Tied
from posbench.errors import ConfigError

SHAPE = shape(24, 3, 40)


def slow(layer, counted=None):
    """From the formula: gates of the keys from j to i, counted up to the last position."""
    table = layer.encoding.table[layer.layer].double()
    last = len(table) - 1

    def score(b, h, i, j):
        place = sum(
            layer.dot(b, h, i, t).sigmoid() for t in range(j, i + 1) if i - t < (counted or 10**6)
        )
        place = place if place < last else torch.tensor(float(last), dtype=torch.float64)
        below = min(math.floor(place.detach()), last - 1)
        e = table[below] * (below + 1 - place) + table[below + 1] * (place - below)
        return layer.dot(b, h, i, j) + layer.q[b, h, i].double() @ e

    return layer.loop(score)


def places(encoding, scores):
    """Positions [Tq, Tk] that the scheme counts, read off a table that gives them back."""
    with torch.no_grad():
        encoding.table.zero_()
        encoding.table[:, :, 0] = torch.arange(encoding.table.shape[1])
    rows, keys = scores.shape
    q = torch.zeros(1, 1, rows, encoding.geometry.head_dim, dtype=torch.float64)
    q[..., 0] = 1
    pos = positions(keys)
    seen = torch.ones(1, 1, rows, keys).tril(keys - rows).bool()
    found = encoding.content_bias(
        scores[None, None], q, q[:, :, :0], seen, pos[:, -rows:], pos, Context(True)
    )
    return (found[0, 0] - scores).detach().masked_fill(~seen[0, 0], 0)


def test_golden_positions():
    numbers = golden("cope_contextual")
    encoding = scheme("cope", shape(8, 1, 40), max_positions=numbers["positions"]).double()
    wanted = torch.tensor(numbers["rows"], dtype=torch.float64)
    closed = torch.zeros(5, 5, dtype=torch.float64)
    torch.testing.assert_close(places(encoding, closed), wanted, rtol=0, atol=1e-12)
    # the future is masked before gates are added up, whatever its scores
    closed[torch.ones(5, 5).triu(1).bool()] = 7.0
    torch.testing.assert_close(places(encoding, closed), wanted, rtol=0, atol=1e-12)
    opened = places(encoding, torch.full((11, 11), 100.0, dtype=torch.float64))
    distance = torch.arange(11)[:, None] - torch.arange(11)
    assert torch.equal(opened, (distance + 1).clamp(0, 7).double())


@pytest.mark.parametrize(("dtype", "error"), TYPES)
@pytest.mark.parametrize("pos", [None, gaps(15)])
@pytest.mark.parametrize("count", [2, 4, 30])
def test_a_layer_is_the_loop(dtype, error, pos, count):
    encoding = spread(scheme("cope", SHAPE, max_positions=count)).to(dtype)
    layer = Layer(encoding, 15, pos=pos, dtype=dtype)
    with torch.no_grad():
        layer.same(slow(layer), error)


def test_keys_before_a_window_are_not_counted():
    encoding = spread(scheme("cope", SHAPE, max_positions=5)).double()
    layer = Layer(encoding, 15, window=4)
    with torch.no_grad():
        layer.same(slow(layer, 4), 1e-11)


def test_gradients_are_those_of_the_loop():
    """The gates' too: of queries and keys through the positions."""
    layer = Layer(spread(scheme("cope", SHAPE, max_positions=4)).double(), 11).learning()
    layer.same_gradients(slow(layer))
    layer.sees_no_future()


@pytest.mark.parametrize(("dtype", "error"), TYPES)
@pytest.mark.parametrize("count", [2, 6, 64])
def test_the_bias_is_that_of_x_transformers(dtype, error, count):
    peers = importlib.import_module("x_transformers.x_transformers")
    length = 23
    encoding = spread(scheme("cope", SHAPE, max_positions=count)).to(dtype)
    peer = peers.CoPE(8, 3, count).to(dtype)
    q, scores = (normal(2, 3, length, n, seed=n).to(dtype) for n in (8, length))
    seen = torch.ones(1, 1, length, length).tril().bool()
    pos = positions(length)
    with torch.no_grad():
        peer.pos_emb.copy_(encoding.table[1])
        wanted = peer(q, scores.masked_fill(~seen, -torch.finfo(dtype).max))
        got = encoding.content_bias(scores, q, q, seen, pos, pos, Context(True, 1)) - scores
    past = seen.expand_as(got)
    torch.testing.assert_close(got[past], wanted[past], rtol=0, atol=error)


def test_near_positions_keep_their_digits_at_16_thousand_tokens():
    """Gates are added from the query backwards, so what counts is a sum of few."""
    keys, rows = 16384, 4
    encoding = spread(scheme("cope", shape(8, 1, 256)))
    q, scores = normal(1, 1, rows, 8, seed=1), 3 * normal(1, 1, rows, keys, seed=2)
    pos = positions(keys)
    seen = torch.ones(1, 1, rows, keys).tril(keys - rows).bool()
    at = seen, pos[:, -rows:], pos, Context(True)
    with torch.no_grad():
        coarse = encoding.content_bias(scores.float(), q.float(), q, *at)
        exact = encoding.double().content_bias(scores, q, q, *at)
    assert (coarse - exact)[seen].abs().max() < 2e-5


@pytest.mark.parametrize(("length", "given", "used"), [(256, "auto", 64), (40, "auto", 10)])
def test_the_number_of_positions_follows_the_training_length(length, given, used):
    encoding = scheme("cope", shape(24, 3, length), max_positions=given)
    assert encoding.tied() == [Tied("posenc.max_positions", "64", str(used))]
    assert encoding.table.shape == (2, used, 8)


@pytest.mark.parametrize("given", [1, -4, "all"])
def test_fewer_than_two_positions_are_refused(given):
    with pytest.raises(ConfigError, match=f"posenc.max_positions={given}: .* at least 2, or auto"):
        scheme("cope", SHAPE, max_positions=given)


def test_it_begins_as_nope_and_every_position_learns():
    model = tiny_model("cope")
    ids = tokens(40)
    with torch.no_grad():
        assert torch.equal(model.posenc.table, torch.zeros_like(model.posenc.table))
        plain = tiny_model("none")(ids)
        torch.testing.assert_close(model(ids), plain, rtol=0, atol=1e-5)
    model(ids).pow(2).sum().backward()
    assert (model.posenc.table.grad.abs().sum(-1) > 0).all()


def test_without_a_table_it_is_nope():
    encoding = spread(scheme("cope", SHAPE)).double()
    (reduction,) = type(encoding).reductions()
    plain = Layer(scheme(reduction.equals, SHAPE)).attend()
    assert (Layer(encoding).attend() - plain).abs().max() > 0.01
    reduction.prepare(encoding)
    torch.testing.assert_close(Layer(encoding).attend(), plain, rtol=0, atol=1e-12)
