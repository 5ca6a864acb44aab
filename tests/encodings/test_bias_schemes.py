"""ALiBi and T5's bias."""

import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    alibi_slopes,
    golden,
    normal,
    positions,
    scheme,
    shape,
    slow_attention,
    t5_bucket,
)

from posbench.checks.inputs import tokens
from posbench.checks.small import decoder
from posbench.encodings.alibi import slopes
from posbench.encodings.base import Context, Tied
from posbench.encodings.t5 import bucket
from posbench.errors import ConfigError
from posbench.settings import Geometry

HEADS = [1, 2, 3, 6, 8, 12, 40]
RECIPES = ("official", "formula")


@pytest.mark.parametrize("heads", HEADS)
def test_alibi_slopes_follow_the_recipe(heads):
    assert slopes(heads) == pytest.approx(alibi_slopes(heads), rel=1e-14)
    assert len(slopes(heads)) == heads


def test_the_paper_s_formula_for_any_number_of_heads():
    """2^-8/3, 2^-16/3, 2^-8 of three heads, where the authors' code has 2^-4, 2^-8, 2^-2."""
    three = scheme("alibi", shape(24, 3), slopes="formula").slopes
    assert three == pytest.approx([0.157490131, 0.024803141, 0.00390625], rel=1e-7)
    assert scheme("alibi", shape(24, 3)).slopes == [2**-4, 2**-8, 2**-2]
    for heads in (1, 2, 4, 8):
        both = (scheme("alibi", shape(8 * heads, heads), slopes=s).slopes for s in RECIPES)
        assert next(both) == next(both)
    for heads in (6, 12, 40):
        found = scheme("alibi", shape(2 * heads, heads), slopes="formula").slopes
        steps = [a / b for a, b in zip(found, found[1:], strict=False)]
        assert steps == pytest.approx([2 ** (8 / heads)] * (heads - 1)) and found[-1] == 2**-8
    with pytest.raises(
        ConfigError, match=r"posenc\.slopes=steep: must be one of official, formula"
    ):
        scheme("alibi", shape(24, 3), slopes="steep")


@given(heads=st.integers(1, 130))
@settings(deadline=None, max_examples=60, database=None)
def test_alibi_slopes_of_any_number_of_heads(heads):
    found = slopes(heads)
    assert found == pytest.approx(alibi_slopes(heads), rel=1e-14)
    assert len(set(found)) == heads
    assert all(0 < s < 1 for s in found)


@pytest.mark.parametrize("heads", HEADS)
def test_alibi_slopes_of_transformers(heads):
    bloom = importlib.import_module("transformers.models.bloom.modeling_bloom")
    mpt = importlib.import_module("transformers.models.mpt.modeling_mpt")
    ours = torch.tensor(slopes(heads))
    # BLOOM's tensor is slope * key index, MPT's is slope * (key index - last)
    theirs = bloom.build_alibi_tensor(torch.ones(1, 3), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    theirs = -mpt.build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    for most in (4, 16):
        ours = torch.tensor(scheme("alibi", shape(2 * heads, heads), bias_max=most).slopes)
        theirs = -mpt.build_mpt_alibi_tensor(heads, 2, alibi_bias_max=most)[:, 0, 0]
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("most", [0, -1, 65, math.nan])
def test_a_bias_max_of_nonsense_is_refused(most):
    with pytest.raises(ConfigError, match=r"^posenc.bias_max=.*: above 0, at most 64$"):
        scheme("alibi", shape(8, 2), bias_max=most)


def test_t5_with_a_table_for_every_layer():
    whole = scheme("t5", shape(8, 2), shared=False)
    one = scheme("t5", shape(8, 2))
    assert whole.bias.shape == (2, *one.bias.shape)
    distance = torch.arange(100)
    for layer in range(2):
        with torch.no_grad():
            one.bias.copy_(whole.bias[layer])
        wanted = one.distance_bias(distance, Context(True, layer=layer))
        assert torch.equal(whole.distance_bias(distance, Context(True, layer=layer)), wanted)
    assert len({float(whole.bias[layer, 0, 0].detach()) for layer in range(2)}) == 2


@pytest.mark.parametrize("length", [40, 300])
def test_every_layer_of_a_model_reads_its_own_table(length):
    """Equal tables are one table; what a layer's table is changes the output and has a gradient."""
    one, own = (decoder("t5", 40, {"shared": shared}) for shared in (True, False))
    with torch.no_grad():
        own.posenc.bias.copy_(one.posenc.bias)
    ids = tokens(length, batch=1)
    same = one.hidden(ids)
    torch.testing.assert_close(own.hidden(ids), same, rtol=0, atol=1e-12)
    own.hidden(ids).square().sum().backward()
    one.hidden(ids).square().sum().backward()
    torch.testing.assert_close(own.posenc.bias.grad.sum(0), one.posenc.bias.grad)
    assert all(bool(layer.any()) for layer in own.posenc.bias.grad)
    for layer in range(2):
        with torch.no_grad():
            own.posenc.bias.copy_(one.posenc.bias)
            own.posenc.bias[layer].add_(normal(*own.posenc.bias[layer].shape, seed=5))
        assert (own.hidden(ids) - same).abs().max() > 1e-3


@pytest.mark.parametrize("heads", HEADS)
def test_alibi_bias_is_linear_in_distance(heads):
    distance = torch.tensor([0, 1, 2, 5, 1000, 16384])
    bias = scheme("alibi", shape(2 * heads, heads)).distance_bias(distance, Context(True))
    wanted = -torch.tensor(alibi_slopes(heads), dtype=torch.float64)[:, None] * distance
    torch.testing.assert_close(bias.double(), wanted, rtol=1e-7, atol=0)
    assert torch.equal(bias[:, 0], torch.zeros(heads))
    assert bool((bias.diff(dim=1) < 0).all())


def test_alibi_equals_the_form_that_depends_on_the_key_alone():
    encoding = scheme("alibi", shape(24, 3)).double()
    q, k, v = (normal(1, 3, 9, 8, seed=s) for s in (1, 2, 3))
    pos = positions(9)
    scores = q @ k.transpose(-1, -2) / math.sqrt(8)
    key_only = torch.tensor(alibi_slopes(3), dtype=torch.float64)[:, None, None] * torch.arange(9)
    scores = (scores + key_only).masked_fill(torch.ones(9, 9).triu(1) > 0, -math.inf)
    got = encoding.attend(q, k, v, pos, pos, Context(True))
    torch.testing.assert_close(got, scores.softmax(-1) @ v, rtol=0, atol=1e-10)


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_a_cast_module_keeps_alibi_in_full_precision(cast):
    encoding = scheme("alibi", shape(64, 8))
    distance = torch.arange(2100)
    before = encoding.distance_bias(distance, Context(True))
    after = encoding.to(cast).distance_bias(distance, Context(True))
    assert after.dtype == torch.float64
    assert torch.equal(after, before)
    slope = alibi_slopes(8)[-1]  # 2^-8
    coarse = (torch.arange(1000, 1008) * slope).bfloat16().unique()
    assert coarse.tolist() == golden("precision")["bf16_alibi_slope_2^-8_distances_1000_to_1007"]
    assert len(after[-1, 1000:1008].unique()) == 8


#: (buckets, max_distance): T5's own, defaults of L = 128 ... 4096, odd and tiny ones
BUCKETS = [(32, m) for m in (64, 128, 256, 512, 1024, 2048)] + [
    (32, 20),
    (32, 17),
    (8, 20),
    (8, 64),
    (16, 40),
    (2, 9),
    (3, 7),
    (64, 100),
    (33, 128),
]


@pytest.mark.parametrize(("buckets", "furthest"), BUCKETS)
def test_t5_buckets_of_transformers(buckets, furthest):
    t5 = importlib.import_module("transformers.models.t5.modeling_t5")
    distance = torch.arange(-5, 10 * furthest + 1)
    theirs = t5.T5Attention._relative_position_bucket(
        -distance, bidirectional=False, num_buckets=buckets, max_distance=furthest
    )
    assert torch.equal(bucket(distance, buckets, furthest), theirs)


@pytest.mark.parametrize(("buckets", "furthest"), BUCKETS)
def test_t5_buckets_equal_a_slow_loop(buckets, furthest):
    slow = [t5_bucket(n, buckets, furthest) for n in range(10 * furthest + 1)]
    assert bucket(torch.arange(10 * furthest + 1), buckets, furthest).tolist() == slow


@given(buckets=st.integers(2, 64), ratio=st.floats(1.1, 40))
@settings(deadline=None, max_examples=40, database=None)
def test_t5_buckets_rise_from_the_distance_itself_to_the_last(buckets, ratio):
    e = buckets // 2
    furthest = max(e + 1, int(e * ratio))
    found = bucket(torch.arange(2 * furthest), buckets, furthest)
    assert found[:e].tolist() == list(range(e))
    assert bool((found.diff() >= 0).all())
    assert int(found.max()) == buckets - 1
    assert bool((found[furthest:] == buckets - 1).all())


@pytest.mark.parametrize("length", [64, 128, 256, 512])
def test_t5_reaches_half_the_training_length_by_default(length):
    encoding = scheme("t5", Geometry(64, 4, 2, length))
    assert encoding.max_distance == length // 2
    assert encoding.tied() == [Tied("posenc.max_distance", "128", str(length // 2))]
    # every bucket is trained: the last one begins inside the training length
    assert int(bucket(torch.arange(length), 32, encoding.max_distance).max()) == 31
    given_one = scheme("t5", Geometry(64, 4, 2, length), max_distance=128)
    assert given_one.tied() == [Tied("posenc.max_distance", "128", "128")]


def test_t5_bias_is_one_table_of_buckets_and_heads():
    encoding = scheme("t5", shape(64, 4, 128))
    assert [tuple(p.shape) for p in encoding.parameters()] == [(32, 4)]
    far = [0, 3, 40, 1000]
    bias = encoding.distance_bias(torch.tensor(far), Context(True))
    for h in range(4):
        for n, found in zip(far, bias[h], strict=True):
            assert torch.equal(found, encoding.bias[t5_bucket(n, 32, 64), h])


def test_unscaled_t5_has_no_square_root():
    encoding = scheme("t5", shape(32, 2, 128), unscaled=True).double()
    q, k, v = (normal(2, 2, 9, 16, seed=s) for s in (1, 2, 3))
    pos = positions(9)
    with torch.no_grad():
        got = encoding.attend(q, k, v, pos, pos, Context(True))
        bias = lambda h, d: encoding.bias[t5_bucket(d, 32, 64), h]  # noqa: E731
        wanted = slow_attention(q * 4, k, v, bias)  # sqrt(16) undone
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)
    assert encoding.query_init_scale == pytest.approx(16**-0.5)
    assert scheme("t5", shape(32, 2, 128)).query_init_scale == 1.0


def test_t5_refusals():
    with pytest.raises(ConfigError, match=r"posenc.max_distance=far: a whole number or auto"):
        scheme("t5", max_distance="far")
    with pytest.raises(ConfigError, match=r"posenc.max_distance=2.5: a whole number or auto"):
        scheme("t5", max_distance=2.5)
    with pytest.raises(ConfigError, match=r"posenc.buckets=1: must be at least 2"):
        scheme("t5", buckets=1)
    with pytest.raises(ConfigError, match=r"posenc.max_distance=16: must be above .*= 16$"):
        scheme("t5", max_distance=16)
    with pytest.raises(
        ConfigError, match=r"posenc.max_distance=16: .*\(auto = train.seq_len / 2\)"
    ):
        scheme("t5", shape(train_length=32))
