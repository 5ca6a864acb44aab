"""Rotary embedding: against complex numbers, against transformers, in every precision."""

import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import golden, normal, positions, rope, rule, scheme, shape, theta, turned

from posbench.encodings.base import Context
from posbench.encodings.rope import matched_base, rotate_half_split
from posbench.errors import ConfigError
from posbench.registry import conf_root
from posbench.settings import Geometry


def rotated(encoding, x, start=0):
    pos = positions(x.shape[2], start)
    return encoding.rotate(x, x, pos, pos, Context(False))


@settings(deadline=None, max_examples=25, database=None)
@given(
    half=st.integers(1, 20),
    length=st.integers(1, 9),
    start=st.integers(0, 10**6),
    base=st.floats(2, 1e6),
)
def test_equals_complex_numbers(half, length, start, base):
    x = normal(2, 3, length, 2 * half)
    slow = turned(x, positions(length, start), theta(2 * half, base))
    for y in rotated(rope(2 * half, 64, base), x, start):
        torch.testing.assert_close(y, slow, rtol=0, atol=1e-8)


def test_queries_and_keys_turn_by_their_own_positions():
    encoding = rope(8, 64)
    q, k = normal(2, 1, 3, 8, seed=1), normal(2, 1, 5, 8, seed=2)
    q_pos = torch.tensor([[4, 9, 9], [0, 1, 70]])[..., None]
    k_pos = torch.tensor([[0, 3, 5, 2, 2], [100, 7, 5, 3, 1]])[..., None]
    got = encoding.rotate(q, k, q_pos, k_pos, Context(False))
    torch.testing.assert_close(got[0], turned(q, q_pos, theta(8)), rtol=0, atol=1e-12)
    torch.testing.assert_close(got[1], turned(k, k_pos, theta(8)), rtol=0, atol=1e-12)


def test_keeps_norms_of_every_pair():
    x = normal(2, 3, 50, 16)
    y, _ = rotated(rope(16, 64), x, 11)
    pairs = [z.unflatten(-1, (2, 8)).norm(dim=-2) for z in (x, y)]
    torch.testing.assert_close(pairs[1], pairs[0], rtol=1e-12, atol=0)


def test_position_zero_is_the_identity():
    x = normal(1, 2, 1, 16)
    assert torch.equal(rotated(rope(16, 64), x)[0], x)


@pytest.mark.parametrize(("a", "b"), [(0, 5), (3, 4), (117, 1000)])
def test_turns_add_up(a, b):
    encoding = rope(16, 64)
    x = normal(1, 2, 1, 16)
    twice = rotated(encoding, rotated(encoding, x, a)[0], b)[0]
    torch.testing.assert_close(twice, rotated(encoding, x, a + b)[0], rtol=0, atol=1e-10)


def test_equal_positions_give_the_plain_product():
    encoding = rope(16, 64)
    q, k = normal(1, 2, 9, 16, seed=1), normal(1, 2, 9, 16, seed=2)
    pos = positions(9, 100)
    turned_q, turned_k = encoding.rotate(q, k, pos, pos, Context(False))
    torch.testing.assert_close((turned_q * turned_k).sum(-1), (q * k).sum(-1), rtol=0, atol=1e-10)


def test_sign_and_pairing():
    """Channel p goes with channel p + d/2, and turns from the first towards the second."""
    encoding = rope(8, 64)
    for p in range(4):
        x = torch.zeros(1, 1, 1, 8, dtype=torch.float64)
        x[..., p] = 1
        y = rotated(encoding, x, 1)[0].flatten()
        angle = 10000 ** (-p / 4)
        assert y[p] == pytest.approx(math.cos(angle), abs=1e-12)
        assert y[p + 4] == pytest.approx(math.sin(angle), abs=1e-12)
        assert y.count_nonzero() == 2


def test_base_changes_the_ladder():
    torch.testing.assert_close(
        rope(64, 128, 500000.0).inv_freq,
        torch.tensor(theta(64, 500000.0), dtype=torch.float64),
        rtol=1e-12,
        atol=0,
    )
    assert rope(64, 128).inv_freq.dtype == torch.float64


@pytest.mark.parametrize(("length", "base"), [(128, 72), (256, 194), (512, 520), (4096, 10000)])
def test_matched_base(length, base):
    assert matched_base(length) == base
    encoding = scheme("rope", Geometry(64, 1, 1, length), base="matched")
    assert encoding.base == base
    torch.testing.assert_close(
        encoding.inv_freq, torch.tensor(theta(64, base), dtype=torch.float64), rtol=1e-12, atol=0
    )
    share = math.log(length / (2 * math.pi)) / math.log(base)
    assert share == pytest.approx(0.703, abs=0.003)  # pairs that turn at least once within L
    assert encoding.needs_train_length
    assert not scheme("rope", Geometry(64, 1, 1, length), base=base).needs_train_length
    (tied,) = encoding.tied()
    assert (tied.option, tied.paper, tied.used) == ("posenc.base", "10000", str(base))


def test_the_preset_rope_matched():
    text = (conf_root() / "posenc" / "rope_matched.yaml").read_text(encoding="utf-8")
    assert "- rope\n" in text
    assert "base: matched\n" in text
    assert rope(8, 128).tied() == []


def test_refusals():
    with pytest.raises(ConfigError, match=r"model.n_heads=4 gives heads of 9.*even head size"):
        scheme("rope", shape(36, 4))
    with pytest.raises(ConfigError, match=r"posenc.base=big: a number above 1, or matched"):
        scheme("rope", base="big")
    for base in (1, 0.5, -3):
        with pytest.raises(ConfigError, match=r"posenc.base=.*: must be above 1"):
            scheme("rope", base=base)


def errors(cos, positions_M, frequencies):
    """Largest difference of cos [M, d/2] from Python's own cosine of the exact angle."""
    exact = [[math.cos(m * f) for f in frequencies] for m in positions_M.tolist()]
    return float((cos.double() - torch.tensor(exact, dtype=torch.float64)).abs().max())


def cosines(encoding, pos, dtype=torch.float32):
    cos, _ = encoding.cos_sin(pos[None, :, None], dtype, Context(False))
    return cos[0, 0]


@pytest.mark.parametrize("cast", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("start", [0, 8000, 10**6])
def test_tables_of_a_module_in_any_precision(cast, start):
    encoding = rope(64, 64).to(cast)
    pos = torch.arange(start, start + 192)
    found = errors(cosines(encoding, pos), pos, theta(64))
    assert found < 0.03
    assert found < 2e-7  # what float32 can hold: the angles are made in float64
    assert errors(cosines(encoding, pos, torch.float64), pos, theta(64)) < 1e-9


def test_low_precision_would_be_seen():
    """The same measure finds the errors that low precision makes elsewhere, and none here."""
    known = golden("precision")
    for name, first in known["first_integer_lost"].items():
        dtype = getattr(torch, name)
        lost = torch.arange(first + 1).to(dtype).long() != torch.arange(first + 1)
        assert lost.nonzero().flatten().tolist() == [first]
    pos, errors_of = torch.arange(8192), known["cos_error"]
    rounded = pos.bfloat16().float()[:, None].cos()
    assert errors(rounded, pos, [1.0]) == pytest.approx(
        errors_of["bf16_positions_below_8192_theta_1"], rel=0.01
    )
    rounded = (pos.float() * torch.tensor(0.1).bfloat16().float())[:, None].cos()
    assert errors(rounded, pos, [0.1]) == pytest.approx(
        errors_of["bf16_theta_0.1_positions_below_8192"], rel=0.01
    )
    ladder = 10000 ** -(torch.arange(0, 64, 2).float() / 64)
    for start, length, key in (
        (0, 8192, "float32_positions_below_8192_dim_64"),
        (10**6, 64, "float32_positions_from_1e6_dim_64"),
    ):
        pos = torch.arange(start, start + length)
        rounded = (pos.float()[:, None] * ladder).cos()
        assert errors(rounded, pos, theta(64)) == pytest.approx(errors_of[key], rel=0.1)
        assert errors(cosines(rope(64, 64), pos), pos, theta(64)) < 2e-7


def test_a_pass_keeps_the_tables_of_two_lengths_and_types_apart():
    encoding, ctx = rope(8, 64), Context(False)
    q, k = normal(1, 1, 3, 8), normal(1, 1, 5, 8)
    first = encoding.rotate(q, k, positions(3, 2), positions(5), ctx)
    again = encoding.rotate(q, k, positions(3, 9), positions(5, 4), ctx)
    torch.testing.assert_close(again[0], turned(q, positions(3, 9), theta(8)), rtol=0, atol=1e-12)
    torch.testing.assert_close(again[1], turned(k, positions(5, 4), theta(8)), rtol=0, atol=1e-12)
    torch.testing.assert_close(first[0], turned(q, positions(3, 2), theta(8)), rtol=0, atol=1e-12)
    low = encoding.rotate(q.float(), k.float(), positions(3, 2), positions(5), ctx)
    assert low[0].dtype == torch.float32


def llama(**parameters):
    llama = importlib.import_module("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=1,
        head_dim=64,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, **parameters},
    )
    return llama, config


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_tables_and_rotation_of_transformers(base):
    theirs, config = llama(rope_theta=base)
    q, k = (normal(2, 3, 40, 64, seed=s, dtype=torch.float32) for s in (1, 2))
    module = theirs.LlamaRotaryEmbedding(config)
    cos, sin = module(q, torch.arange(40)[None])
    encoding, pos = rope(64, 128, base), positions(40)
    ours = encoding.cos_sin(pos, torch.float32, Context(True))
    for a, b in zip(ours, (cos, sin), strict=True):
        torch.testing.assert_close(a[0, 0].repeat(1, 2), b[0], rtol=0, atol=5e-6)
    torch.testing.assert_close(encoding.inv_freq.float(), module.inv_freq, rtol=1e-6, atol=0)
    wanted = theirs.apply_rotary_pos_emb(q, k, cos, sin)
    got = encoding.rotate(q, k, pos, pos, Context(True))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


def test_half_split_equals_rotate_half_of_transformers():
    theirs, _ = llama()
    x = normal(3, 7, 12)
    angle = normal(7, 6, seed=2)
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    wanted = x * cos + theirs.rotate_half(x) * sin
    torch.testing.assert_close(rotate_half_split(x, angle.cos(), angle.sin()), wanted)


def test_channels_beyond_the_tables_stay():
    x, angle = normal(3, 7, 12), normal(7, 4, seed=2)
    got = rotate_half_split(x, angle.cos(), angle.sin())
    wanted = rotate_half_split(x[..., :8].contiguous(), angle.cos(), angle.sin())
    torch.testing.assert_close(got[..., :8], wanted, rtol=0, atol=0)
    assert torch.equal(got[..., 8:], x[..., 8:])
    low = rotate_half_split(x.bfloat16(), angle.cos().float(), angle.sin().float())
    assert low.dtype == torch.bfloat16
    assert torch.equal(low[..., 8:], x[..., 8:].bfloat16())


def test_tables_to_show():
    encoding, one = rope(8, 2048), torch.arange(1)
    wanted = {"inv_freq": pytest.approx(theta(8), rel=1e-15), "rotation_scale": 1.0}
    assert encoding.own_tables(one) == wanted
    shown = rule("yarn").applied(encoding, 2048, 8192).own_tables(one)
    assert shown["inv_freq"][2] == pytest.approx(0.00625, rel=1e-12)
    assert shown["rotation_scale"] == pytest.approx(0.1 * math.log(4) + 1, rel=1e-15)


def test_two_encodings_in_one_pass_have_their_own_tables() -> None:
    pos = torch.arange(8)[None, :, None]
    q = torch.ones(1, 1, 8, 16)
    one, other = rope(16, 64), rope(16, 64, base=72)
    ctx = Context(True)
    one.rotate(q, q, pos, pos, ctx)
    shared = other.rotate(q, q, pos, pos, ctx)[0]
    assert torch.equal(shared, other.rotate(q, q, pos, pos, Context(True))[0])
