"""The base class, copies of an encoding, and what one forward pass shares."""

import pytest
import torch
from oracles import normal, positions, scheme, shape

from posbench.encodings.base import Context, PositionalEncoding


def test_the_base_class_is_nope():
    q, k, v = (normal(1, 2, 5, 4, seed=s) for s in (1, 2, 3))
    pos, ctx = positions(5), Context(True)
    plain, none = PositionalEncoding(None, shape(8, 2)), scheme("none", shape(8, 2))
    for encoding in (plain, none):
        assert encoding.hooks == frozenset()
        assert encoding.rotate(q, k, pos, pos, ctx) == (q, k)
        assert encoding.embed(v, pos) is v
        assert encoding.prepare(v, pos, ctx) is None
        assert encoding.relative_position(pos, pos, ctx) is None
        assert encoding.logit_scale(pos, pos, ctx) is None
        assert encoding.content_bias(q, q, k, q > 0, pos, pos, ctx) is q
        assert encoding.max_length is None
        assert encoding.for_layer(3) == (encoding, 3)
    a, b = (e.attend(q, k, v, pos, pos, ctx) for e in (plain, none))
    assert torch.equal(a, b)
    for absent in (
        lambda: plain.distance_bias(torch.arange(3), ctx),
        lambda: plain.key_bias(pos, ctx),
        lambda: plain.pair_bias(pos, pos, ctx),
        lambda: plain.visible(pos, pos, ctx),
    ):
        with pytest.raises(NotImplementedError):
            absent()


def test_a_copy_with_another_table_leaves_the_original_alone():
    encoding = scheme("learned")
    before = encoding.table
    other = encoding.replace(table=torch.nn.Parameter(torch.zeros_like(before)))
    assert other.table is not before
    assert encoding.table is before


def test_a_copy_with_other_frequencies_leaves_the_original_alone():
    encoding = scheme("rope")
    before = encoding.inv_freq.clone()
    other = encoding.replace(inv_freq=encoding.inv_freq / 2, logit_multiplier=3.0)
    assert torch.equal(encoding.inv_freq, before)
    assert encoding.logit_multiplier == 1.0
    assert other.logit_multiplier == 3.0


def test_a_pass_computes_shared_things_once_and_keeps_nothing():
    ctx, calls = Context(True), []
    for layer in range(3):
        assert ctx.at(layer).once("key", lambda: calls.append(1) or 7) == 7
        assert ctx.at(layer).layer == layer
    assert len(calls) == 1
    assert Context(True).once("key", lambda: 8) == 8
    assert ctx.alone().once("key", lambda: 9) == 9
