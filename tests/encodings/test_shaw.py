"""Relative vectors: golden clipping, transformers' relative keys, a loop over pairs."""

import math
from types import SimpleNamespace

import pytest
import torch
from loops import TYPES, Layer, gaps, spread
from oracles import golden, normal, positions, scheme, shape, tiny_model, tokens

from posbench.encodings.base import Context, Tied
from posbench.encodings.shaw import clipped
from posbench.errors import ConfigError

SHAPE = shape(24, 3, 40)


def slow(layer, largest):
    """From the formula; row c of a table is distance c."""
    encoding, own = layer.encoding, layer.layer

    def vector(table, b, h, i, j):
        c = min(layer.at(b, i) - layer.at(b, j), largest)
        return table[own, h if encoding.config.per_head else 0, c].double()

    def score(b, h, i, j):
        q, k = layer.q[b, h, i].double(), layer.k[b, h, j].double()
        return q @ (k + vector(encoding.keys, b, h, i, j)) / math.sqrt(8)

    def value(b, h, i, j):
        return layer.v[b, h, j].double() + vector(encoding.values, b, h, i, j)

    return layer.loop(score, value)


def test_golden_clipping():
    numbers = golden("shaw_clip")
    k, i = numbers["k"], numbers["i"]
    distance = clipped(positions(1, i), positions(i + 1), k)[0, 0, 0]
    assert (k - distance).tolist() == numbers["rows"]
    encoding = scheme("shaw", SHAPE, max_distance=k)
    assert encoding.keys.shape[2] == encoding.values.shape[2] == numbers["causal_rows"]


@pytest.mark.parametrize(("dtype", "error"), TYPES)
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("pos", [None, gaps(21)])
def test_a_layer_is_the_loop(dtype, error, per_head, pos):
    encoding = scheme("shaw", SHAPE, max_distance=5, per_head=per_head).to(dtype)
    layer = Layer(encoding, pos=pos, dtype=dtype)
    with torch.no_grad():
        layer.same(slow(layer, 5), error)


@pytest.mark.parametrize("window", [1, 4, 100])
def test_a_window_is_the_loop_over_its_keys(window):
    layer = Layer(scheme("shaw", SHAPE, max_distance=5).double(), window=window)
    with torch.no_grad():
        layer.same(slow(layer, 5), 1e-11)


def test_gradients_are_those_of_the_loop():
    layer = Layer(scheme("shaw", SHAPE, max_distance=5, per_head=True).double(), 13).learning()
    layer.same_gradients(slow(layer, 5))
    layer.sees_no_future()


@pytest.mark.parametrize(("dtype", "error"), TYPES)
def test_scores_are_those_of_transformers(dtype, error):
    """The relative keys of Wav2Vec2-BERT, whose table has rows for -k .. k of j - i."""
    from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import (
        _apply_relative_key_position_encoding,
    )

    k, length = 6, 17
    encoding = scheme("shaw", SHAPE, max_distance=k).to(dtype)
    table = torch.zeros(2 * k + 1, 8, dtype=dtype)
    table[: k + 1] = encoding.keys[1, 0].detach().flip(0)
    module = SimpleNamespace(
        left_max_position_embeddings=k,
        right_max_position_embeddings=k,
        distance_embedding=torch.nn.Embedding.from_pretrained(table),
        scaling=8**-0.5,
    )
    q, keys = (normal(2, 3, length, 8, seed=s).to(dtype) for s in (1, 2))
    _, wanted = _apply_relative_key_position_encoding(module, q, keys)
    pos, ctx = positions(length), Context(True, 1)
    seen = torch.ones(1, 1, length, length).tril().bool()
    zero = torch.zeros(2, 3, length, length, dtype=dtype)
    got = encoding.content_bias(zero, q, keys, seen, pos, pos, ctx)
    past = seen.expand_as(got)
    torch.testing.assert_close(got[past], wanted[past], rtol=0, atol=error)


def test_all_far_distances_are_one():
    encoding = scheme("shaw", SHAPE, max_distance=3)
    pos = positions(30)
    assert clipped(pos, pos, 3)[0, 0, 29].tolist() == [3] * 27 + [2, 1, 0]
    assert clipped(pos[:, :1], pos, 3).max() == 0
    assert encoding.max_length is None


@pytest.mark.parametrize(
    ("length", "given", "used"), [(40, "auto", 20), (128, "auto", 64), (40, 16, 16), (8, 7, 7)]
)
def test_the_last_distance_follows_the_training_length(length, given, used):
    encoding = scheme("shaw", shape(24, 3, length), max_distance=given)
    assert encoding.tied() == [Tied("posenc.max_distance", "16", str(used))]
    assert encoding.keys.shape == (2, 1, used + 1, 8)


@pytest.mark.parametrize("given", [0, 40, -3, "all"])
def test_a_distance_that_training_does_not_hold_is_refused(given):
    with pytest.raises(ConfigError, match=r"posenc.max_distance=.*1 to train.seq_len - 1 = 39"):
        scheme("shaw", SHAPE, max_distance=given)


def test_every_row_learns_in_the_model():
    model = tiny_model("shaw")
    model(tokens(40)).pow(2).sum().backward()
    for parameter in model.posenc.parameters():
        assert (parameter.grad.abs().sum(-1) > 0).all()


def test_without_vectors_it_is_nope():
    (reduction,) = type(scheme("shaw", SHAPE)).reductions()
    encoding = spread(scheme("shaw", SHAPE)).double()
    layer = Layer(encoding)
    assert (layer.attend() - Layer(scheme("none", SHAPE)).attend()).abs().max() > 0.01
    reduction.prepare(encoding)
    plain = Layer(scheme(reduction.equals, SHAPE)).attend()
    torch.testing.assert_close(layer.attend(), plain, rtol=0, atol=1e-12)
