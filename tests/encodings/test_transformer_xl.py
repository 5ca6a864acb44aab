"""Transformer-XL: the golden shift, XLNet's attention of transformers, a loop over pairs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import TYPES, Layer, gaps, spread
from oracles import golden, normal, positions, scheme, shape, tiny_model, tokens

from posbench.encodings.base import Context
from posbench.errors import ConfigError

SHAPE = shape(24, 3, 40)


def sinusoid(distance, width):
    """Sines, then cosines, of a whole number."""
    angles = [distance * 10000.0 ** (-2 * p / width) for p in range(width // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)


def slow(layer, clamp=math.inf):
    """From the formula."""
    encoding = layer.encoding
    u, v = encoding.u.double(), encoding.v.double()
    project = encoding.project_r[layer.layer].double()

    def score(b, h, i, j):
        q, k = layer.q[b, h, i].double(), layer.k[b, h, j].double()
        r = project[h] @ sinusoid(min(layer.at(b, i) - layer.at(b, j), clamp), 24)
        return ((q + u[h]) @ k + (q + v[h]) @ r) / math.sqrt(8)

    return layer.loop(score)


def test_golden_shift():
    """One head of 8 channels whose queries are made so that they give the golden numbers."""
    numbers = golden("transformer_xl_rel_shift")
    given = torch.tensor(numbers["scores_of_distances_3_to_0"], dtype=torch.float64)
    encoding = scheme("transformer_xl", shape(8, 1, 40)).double()
    with torch.no_grad():
        encoding.u.zero_()
        encoding.v.zero_()
        encoding.project_r[:] = torch.eye(8, dtype=torch.float64)
    far = torch.stack([sinusoid(n, 8) for n in (3, 2, 1, 0)])
    q = (torch.linalg.pinv(far) @ given.T).T[None, None]
    pos, k = positions(4), torch.zeros(1, 1, 4, 8, dtype=torch.float64)
    ctx = Context(True)
    ctx.prepared = encoding.prepare(k[0], pos, ctx)
    seen = torch.tensor(numbers["valid"]).bool()
    zero = torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    got = encoding.content_bias(zero, q, k, seen[None, None], pos[:, 1:], pos, ctx)[0, 0]
    wanted = torch.tensor(numbers["shifted"], dtype=torch.float64)
    torch.testing.assert_close(got[seen] * math.sqrt(8), wanted[seen], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("dtype", "error"), TYPES)
@pytest.mark.parametrize("pos", [None, gaps(21)])
@pytest.mark.parametrize("clamp", [None, 1, 7, 1000])
def test_a_layer_is_the_loop(dtype, error, pos, clamp):
    encoding = spread(scheme("transformer_xl", SHAPE, clamp=clamp)).to(dtype)
    layer = Layer(encoding, pos=pos, dtype=dtype)
    with torch.no_grad():
        layer.same(slow(layer, clamp or math.inf), error)


@pytest.mark.parametrize("clamp", [None, 4])
def test_gradients_are_those_of_the_loop(clamp):
    encoding = spread(scheme("transformer_xl", SHAPE, clamp=clamp)).double()
    layer = Layer(encoding, 13).learning()
    layer.same_gradients(slow(layer, clamp or math.inf))
    layer.sees_no_future()


@pytest.mark.parametrize(("dtype", "error"), TYPES)
@pytest.mark.parametrize("clamp", [None, 6])
def test_a_layer_is_that_of_transformers(dtype, error, clamp):
    """XLNet has the attention of Transformer-XL, with a table and a shift."""
    from transformers import XLNetConfig, XLNetModel

    length = 19
    config = XLNetConfig(
        vocab_size=5, d_model=24, n_head=3, n_layer=1, d_inner=8, dropout=0.0, attn_type="uni"
    )
    model = XLNetModel(config).eval()
    model.clamp_len = clamp or -1
    core = model.layer[0].rel_attn.to(dtype)
    encoding = spread(scheme("transformer_xl", SHAPE, clamp=clamp)).to(dtype)
    layer = Layer(encoding, length, dtype=dtype)
    with torch.no_grad():
        core.r_w_bias.copy_(encoding.u)
        core.r_r_bias.copy_(encoding.v)
        # its table is float32, whatever the module: take that of the formula for float64
        table = model.relative_positional_encoding(length, length)[:, 0]
        distances = [min(n, clamp or n) for n in range(length, -1, -1)]
        exact = torch.stack([sinusoid(n, 24) for n in distances])
        torch.testing.assert_close(table.double(), exact, rtol=0, atol=1e-6)
        far = torch.einsum("nd,hkd->nhk", exact.to(dtype), encoding.project_r[1])[:, None]
        q, k, v = (x.permute(2, 0, 1, 3) for x in (layer.q, layer.k, layer.v))
        hidden = torch.ones(length, length, dtype=dtype).triu(1)[:, :, None, None]
        wanted = core.rel_attn_core(q, k, v, far, attn_mask=hidden)
        got = layer.attend(consecutive=True)
    torch.testing.assert_close(got, wanted.permute(1, 2, 0, 3), rtol=0, atol=error)


@settings(deadline=None, max_examples=25, database=None)
@given(
    i=st.integers(0, 10**6), back=st.integers(0, 10**6), half=st.integers(1, 12), seed=st.integers()
)
def test_the_sinusoid_of_a_difference_comes_from_those_of_its_ends(i, back, half, seed):
    from posbench.encodings.transformer_xl import turned

    width, j = 2 * half, max(0, i - back)
    asked = normal(width, seed=seed % 1000)
    own, other = (sinusoid(n, width) for n in (i, j))
    wanted = asked @ sinusoid(i - j, width)
    assert float(turned(asked, own) @ other) == pytest.approx(float(wanted), abs=1e-8)


def test_it_is_exact_far_out_in_float32():
    """At positions around a million; a table of float32 angles would be off by hundredths."""
    encoding = spread(scheme("transformer_xl", SHAPE))
    pos = positions(12, 10**6)
    near = Layer(encoding, 12, dtype=torch.float32).attend()
    far = Layer(encoding, 12, dtype=torch.float32, pos=pos).attend()
    torch.testing.assert_close(far, near, rtol=0, atol=2e-5)


def test_the_distance_has_the_width_of_the_stream():
    with pytest.raises(ConfigError, match="model.d_model=21: .* needs an even width"):
        scheme("transformer_xl", shape(21, 3))
    with pytest.raises(ConfigError, match="posenc.clamp=0: must be at least 1, or null"):
        scheme("transformer_xl", SHAPE, clamp=0)


def test_biases_are_shared_by_layers_and_projections_are_not():
    encoding = scheme("transformer_xl", SHAPE)
    sizes = {name: tuple(p.shape) for name, p in encoding.named_parameters()}
    assert sizes == {"u": (3, 8), "v": (3, 8), "project_r": (2, 3, 8, 24)}


def test_every_parameter_learns_in_the_model():
    model = tiny_model("transformer_xl")
    model(tokens(40)).pow(2).sum().backward()
    for parameter in model.posenc.parameters():
        assert (parameter.grad.abs().sum(-1) > 0).all()


def test_without_parameters_it_is_nope():
    encoding = spread(scheme("transformer_xl", SHAPE)).double()
    (reduction,) = type(encoding).reductions()
    plain = Layer(scheme(reduction.equals, SHAPE)).attend()
    assert (Layer(encoding).attend() - plain).abs().max() > 0.01
    reduction.prepare(encoding)
    torch.testing.assert_close(Layer(encoding).attend(), plain, rtol=0, atol=1e-12)
