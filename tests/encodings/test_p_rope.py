"""p-RoPE: the ladder of the whole head, its slow end frozen."""

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import golden, normal, positions, rule, scheme, slow_attention, theta, turned

from posbench import registry
from posbench.encodings.base import Context
from posbench.errors import ConfigError
from posbench.settings import Geometry

FREQUENCY_RULES = [
    name
    for name in registry.names("rescale")
    if registry.get("rescale", name).acts_on == "frequencies"
]


def cut(dim, fraction, length=64, heads=1, **options):
    geometry = Geometry(dim * heads, heads, 2, length)
    return scheme("p_rope", geometry, rotary_fraction=fraction, **options)


def ladder(dim, kept, base=10000.0):
    """Frequencies of which the first ones are kept."""
    return [f if p < kept else 0.0 for p, f in enumerate(theta(dim, base))]


def test_golden():
    numbers = golden("partial_rope_vs_p_rope")
    encoding = cut(numbers["dim"], numbers["fraction"], base=numbers["base"])
    wanted = torch.tensor(numbers["p_rope"], dtype=torch.float64)
    torch.testing.assert_close(encoding.inv_freq, wanted, rtol=1e-12, atol=0)
    assert encoding.own_tables(torch.arange(1))["inv_freq"] == encoding.inv_freq.tolist()
    other = scheme("partial_rope", Geometry(8, 1, 2, 64), rotary_fraction=0.5)
    x, pos = normal(1, 1, 5, 8), positions(5, 1)
    a, b = (e.rotate(x, x, pos, pos, Context(False))[0] for e in (encoding, other))
    assert not torch.isclose(a[..., 1:3], b[..., 1:3]).any()


@settings(deadline=None, max_examples=25, database=None)
@given(
    half=st.integers(1, 16),
    kept=st.integers(0, 16),
    start=st.integers(0, 10**6),
    base=st.floats(2, 1e6),
)
def test_turns_the_fast_pairs(half, kept, start, base):
    kept = min(kept, half)
    encoding = cut(2 * half, (kept + 0.25) / half if kept < half else 1.0, base=base)
    q, k = normal(2, 1, 5, 2 * half, seed=1), normal(2, 1, 5, 2 * half, seed=2)
    pos = positions(5, start)
    for x, y in zip((q, k), encoding.rotate(q, k, pos, pos, Context(False)), strict=True):
        wanted = turned(x, pos, ladder(2 * half, kept, base))
        torch.testing.assert_close(y, wanted, rtol=0, atol=1e-8)
        frozen = [c for c in range(2 * half) if c % half >= kept]
        assert torch.equal(y[..., frozen], x[..., frozen])


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 0.75, 0.8, 1.0])
@pytest.mark.parametrize("dim", [8, 64])
def test_proportional_of_transformers(fraction, dim):
    utils = importlib.import_module("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=dim, num_attention_heads=1, head_dim=dim)
    config.rope_parameters = {
        "rope_type": "proportional",
        "rope_theta": 1e6,
        "partial_rotary_factor": fraction,
    }
    theirs, factor = utils.ROPE_INIT_FUNCTIONS["proportional"](config)
    ours = cut(dim, fraction, base=1e6).inv_freq
    torch.testing.assert_close(ours.float(), theirs, rtol=1e-6, atol=0)
    assert factor == 1.0


@pytest.mark.parametrize("rows", [19, 6])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-11), (torch.float32, 3e-6)])
def test_a_layer_equals_a_slow_loop(rows, dtype, error):
    encoding = cut(16, 0.375, heads=3)
    q, k, v = (normal(2, 3, n, 16, seed=s, dtype=dtype) for s, n in enumerate((rows, 19, 19)))
    pos, frequencies = positions(19), ladder(16, 3)
    q_pos = pos[:, 19 - rows :]
    wanted = slow_attention(turned(q, q_pos, frequencies), turned(k, pos, frequencies), v.double())
    got = encoding.attend(q, k, v, q_pos, pos, Context(True))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=error)


@pytest.mark.parametrize("name", FREQUENCY_RULES)
def test_frozen_pairs_survive_every_rescaling(name):
    own = rule(name, **registry.get("rescale", name).example(16))
    a, b = (own.applied(e, 128, 512) for e in (cut(16, 0.5, 128), cut(16, 1.0, 128)))
    assert bool(a.inv_freq.isfinite().all())
    assert torch.equal(a.inv_freq[4:], torch.zeros(4, dtype=torch.float64))
    # the pairs that turn are rescaled as in the whole ladder
    assert torch.equal(a.inv_freq[:4], b.inv_freq[:4])
    assert a.logit_multiplier == b.logit_multiplier


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_all_is_rope_and_nothing_is_nope(fraction):
    found = {r.options["rotary_fraction"]: r.equals for r in cut(16, 0.5).reductions()}
    assert found == {1.0: "rope", 0.0: "none"}
    encoding, other = cut(16, fraction, heads=2), scheme(found[fraction], Geometry(32, 2, 2, 64))
    q, k, v = (normal(2, 2, 30, 16, seed=s) for s in (1, 2, 3))
    pos = positions(30)
    a, b = (e.attend(q, k, v, pos, pos, Context(True)) for e in (encoding, other))
    assert torch.equal(a, b)


def test_follows_the_training_length_only_with_a_matched_base():
    for base in (10000, "matched"):
        encoding = cut(16, 0.5, 512, base=base)
        assert encoding.needs_train_length == (base == "matched") == bool(encoding.tied())
    torch.testing.assert_close(
        encoding.inv_freq, torch.tensor(ladder(16, 4, 520), dtype=torch.float64)
    )


def test_refusals():
    for fraction in (-0.1, 1.5):
        with pytest.raises(ConfigError, match=rf"posenc.rotary_fraction={fraction}: from 0 to 1"):
            cut(16, fraction)
    with pytest.raises(ConfigError, match="even head size"):
        cut(9, 0.5)
