"""Partial rotation: only the first channels turn, with a ladder and rescalings of their own."""

import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import golden, normal, positions, rule, scheme, slow_attention, theta, turned

from posbench import registry
from posbench.encodings.base import Context
from posbench.errors import ConfigError, UnsupportedRescale
from posbench.settings import Geometry

FREQUENCY_RULES = [
    name
    for name in registry.names("rescale")
    if registry.get("rescale", name).acts_on == "frequencies"
]


def partial(dim, fraction, length=64, heads=1, **options):
    geometry = Geometry(dim * heads, heads, 2, length)
    return scheme("partial_rope", geometry, rotary_fraction=fraction, **options)


def test_golden():
    numbers = golden("partial_rope_vs_p_rope")
    encoding = partial(numbers["dim"], numbers["fraction"], base=numbers["base"])
    wanted = torch.tensor(numbers["partial_rope"], dtype=torch.float64)
    torch.testing.assert_close(encoding.inv_freq, wanted, rtol=1e-12, atol=0)
    tables = encoding.own_tables(torch.arange(1))
    assert tables == {"inv_freq": encoding.inv_freq.tolist(), "rotation_scale": 1.0}
    x = normal(1, 1, 5, numbers["dim"])
    for y in encoding.rotate(x, x, positions(5, 1), positions(5, 1), Context(False)):
        kept = [c for c in range(numbers["dim"]) if torch.equal(x[..., c], y[..., c])]
        assert kept == numbers["unrotated_channels"]


@settings(deadline=None, max_examples=25, database=None)
@given(
    quarter=st.integers(1, 8),
    share=st.sampled_from([0.25, 0.5, 0.75, 1.0]),
    start=st.integers(0, 10**6),
    base=st.floats(2, 1e6),
)
def test_turns_as_a_head_of_the_first_channels(quarter, share, start, base):
    dim = 8 * quarter
    encoding, first = partial(dim, share, base=base), int(dim * share)
    q, k = normal(2, 1, 5, dim, seed=1), normal(2, 1, 5, dim, seed=2)
    pos = positions(5, start)
    for x, y in zip((q, k), encoding.rotate(q, k, pos, pos, Context(False)), strict=True):
        wanted = turned(x[..., :first], pos, theta(first, base))
        torch.testing.assert_close(y[..., :first], wanted, rtol=0, atol=1e-8)
        assert torch.equal(y[..., first:], x[..., first:])


@pytest.mark.parametrize("fraction", [0.25, 0.5])
@pytest.mark.parametrize("rows", [19, 6])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-11), (torch.float32, 3e-6)])
def test_a_layer_equals_a_slow_loop(fraction, rows, dtype, error):
    encoding = partial(16, fraction, heads=3)
    q, k, v = (normal(2, 3, n, 16, seed=s, dtype=dtype) for s, n in enumerate((rows, 19, 19)))
    pos, first = positions(19), int(16 * fraction)

    def slow(x, at):
        return torch.cat((turned(x[..., :first], at, theta(first)), x[..., first:].double()), -1)

    wanted = slow_attention(slow(q, pos[:, 19 - rows :]), slow(k, pos), v.double())
    got = encoding.attend(q, k, v, pos[:, 19 - rows :], pos, Context(True))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=error)


def neox(fraction, **parameters):
    """Module and functions of GPT-NeoX with heads of 64, trained at 128."""
    module = importlib.import_module("transformers.models.gpt_neox.modeling_gpt_neox")
    from transformers import GPTNeoXConfig

    given = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": fraction}
    config = GPTNeoXConfig(
        hidden_size=64,
        num_attention_heads=1,
        max_position_embeddings=128,
        rope_parameters=given | parameters,
    )
    return module, module.GPTNeoXRotaryEmbedding(config)


def scores(q, k):
    return q @ k.transpose(-1, -2)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.75, 1.0])
def test_gpt_neox_of_transformers(fraction):
    theirs, module = neox(fraction)
    encoding, pos = partial(64, fraction, 128), positions(40)
    torch.testing.assert_close(encoding.inv_freq.float(), module.inv_freq, rtol=1e-6, atol=0)
    q, k = (normal(2, 1, 40, 64, seed=s, dtype=torch.float32) for s in (1, 2))
    cos, sin = module(q, torch.arange(40)[None])
    wanted = theirs.apply_rotary_pos_emb(q, k, cos, sin)
    got = encoding.rotate(q, k, pos, pos, Context(True))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


@pytest.mark.parametrize("fraction", [0.5, 0.25])
def test_glm_of_transformers(fraction):
    """Interleaved pairs: the same scores once channels are put in order."""
    theirs = importlib.import_module("transformers.models.glm.modeling_glm")
    from transformers import GlmConfig

    config = GlmConfig(
        hidden_size=64,
        num_attention_heads=1,
        head_dim=64,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": fraction,
        },
    )
    module = theirs.GlmRotaryEmbedding(config)
    q, k = (normal(2, 1, 40, 64, seed=s, dtype=torch.float32) for s in (1, 2))
    wanted = scores(*theirs.apply_rotary_pos_emb(q, k, *module(q, torch.arange(40)[None])))
    first, pos = int(64 * fraction), positions(40)
    order = [*range(0, first, 2), *range(1, first, 2), *range(first, 64)]
    encoding = partial(64, fraction)
    got = scores(*encoding.rotate(q[..., order], k[..., order], pos, pos, Context(True)))
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-4)


@pytest.mark.parametrize("fraction", [0.25, 0.5])
@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("yarn", {"rope_type": "yarn", "original_max_position_embeddings": 128}),
        ("pi", {"rope_type": "linear"}),
    ],
)
def test_rescaled_scores_of_transformers(fraction, name, theirs):
    """YaRN's factor acts on the turned channels alone."""
    functions, module = neox(fraction, factor=4.0, **theirs)
    other = rule(name).applied(partial(64, fraction, 128), 128, 512)
    torch.testing.assert_close(other.inv_freq.float(), module.inv_freq, rtol=1e-6, atol=0)
    scale = other.own_tables(torch.arange(1))["rotation_scale"]
    assert scale == pytest.approx(module.attention_scaling)
    assert scale == pytest.approx(0.1 * math.log(4) + 1 if name == "yarn" else 1.0)
    q, k, v = (normal(2, 1, 200, 64, seed=s, dtype=torch.float32) for s in (1, 2, 3))
    pos = positions(200)
    turned_q, turned_k = functions.apply_rotary_pos_emb(q, k, *module(q, torch.arange(200)[None]))
    future = torch.ones(200, 200).triu(1) > 0
    wanted = (scores(turned_q, turned_k) / 8).masked_fill(future, -math.inf).softmax(-1) @ v
    got = other.attend(q, k, v, pos, pos, Context(True))
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-5)
    assert other.norm_preserving == (name != "yarn")
    x = normal(1, 1, 200, 64)
    y = other.rotate(x, x, pos, pos, Context(True))[0]
    kept = torch.allclose(x.norm(dim=-1), y.norm(dim=-1), atol=1e-9)
    assert other.norm_preserving == kept


@pytest.mark.parametrize("name", FREQUENCY_RULES)
def test_a_rescaling_sees_a_head_of_the_turned_channels(name):
    own = rule(name, **registry.get("rescale", name).example(16))
    whole = scheme("rope", Geometry(16, 1, 2, 128))
    encoding = partial(64, 0.25, 128)
    a, b = (own.applied(e, 128, 512) for e in (encoding, whole))
    assert torch.equal(a.inv_freq, b.inv_freq)
    x = normal(1, 1, 9, 64)
    y = a.rotate(x, x, positions(9, 300), positions(9, 300), Context(True))[0]
    assert torch.equal(y[..., 16:], x[..., 16:])


def test_too_few_turned_channels_for_ntk():
    with pytest.raises(UnsupportedRescale, match="rotary size of at least 4, not 2"):
        rule("ntk").applied(partial(8, 0.25), 64, 256)


@pytest.mark.parametrize("base", [10000, "matched"])
def test_all_channels_is_rope(base):
    (reduction,) = partial(16, 0.5).reductions()
    assert reduction.options == {"rotary_fraction": 1.0}
    whole = scheme(reduction.equals, Geometry(16, 1, 2, 64), base=base)
    encoding = partial(16, 1.0, base=base)
    assert torch.equal(encoding.inv_freq, whole.inv_freq)
    assert encoding.tied() == whole.tied()
    assert encoding.needs_train_length == whole.needs_train_length == (base == "matched")
    q, k, v = (normal(2, 1, 30, 16, seed=s) for s in (1, 2, 3))
    pos = positions(30)
    for factor in (1.0, 4.0):
        a, b = (
            rule("yarn", factor=factor).applied(e, 64, 256).attend(q, k, v, pos, pos, Context(True))
            for e in (encoding, whole)
        )
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_refusals():
    for fraction in (0.0, -0.5, 1.5):
        with pytest.raises(ConfigError, match=rf"posenc.rotary_fraction={fraction}: above 0, at"):
            partial(16, fraction)
    for fraction, count in ((0.2, 3), (0.05, 0)):
        with pytest.raises(ConfigError, match=rf"={fraction} gives {count} of 16 channels"):
            partial(16, fraction)
