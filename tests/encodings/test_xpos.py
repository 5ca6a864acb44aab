"""xPos: against complex numbers, against x-transformers, and at positions that overflow naively."""

import cmath
import importlib
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import golden, normal, positions, relative_error, rule, scheme, theta

from posbench import attention
from posbench.encodings.base import Context, Tied
from posbench.errors import ConfigError
from posbench.settings import Geometry


def xpos(dim=8, heads=3, length=64, **options):
    return scheme("xpos", Geometry(dim * heads, heads, 2, length), **options)


def slow_scores(q, k, q_pos, k_pos, gamma, scale):
    """Scores [B, H, Tq, Tk] without 1/sqrt(d), pair by pair from the formula, in float64."""
    half = q.shape[-1] // 2
    zeta = [(2 * p / (2 * half) + gamma) / (1 + gamma) for p in range(half)]
    turn = theta(2 * half)
    a, b = (torch.complex(*x.double().chunk(2, -1)) for x in (q, k))
    out = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.float64)
    for n in range(q.shape[0]):
        for r, m in enumerate(q_pos[min(n, len(q_pos) - 1), :, 0].tolist()):
            for j, at in enumerate(k_pos[min(n, len(k_pos) - 1), :, 0].tolist()):
                if at > m:
                    continue
                factor = [
                    cmath.rect(z ** ((m - at) / scale), (m - at) * t)
                    for z, t in zip(zeta, turn, strict=True)
                ]
                factor = torch.tensor(factor, dtype=torch.complex128)
                out[n, :, r, j] = (a[n, :, r] * b[n, :, j].conj() * factor).real.sum(-1)
    return out


def slow_layer(q, k, v, q_pos, k_pos, gamma, scale):
    """Causal attention in float64; the queries are the last ones."""
    rows, keys = q.shape[2], k.shape[2]
    scores = slow_scores(q, k, q_pos, k_pos, gamma, scale) / math.sqrt(q.shape[-1])
    seen = torch.arange(keys) <= torch.arange(keys - rows, keys)[:, None]
    return scores.masked_fill(~seen, -math.inf).softmax(-1) @ v.double()


def test_golden():
    numbers = golden("xpos")
    encoding = xpos(8, 1, scale_base=numbers["scale_base"])
    zeta = torch.tensor(numbers["zeta"], dtype=torch.float64)
    torch.testing.assert_close(encoding.zeta, zeta, rtol=0, atol=1e-9)
    assert encoding.own_tables(torch.arange(1))["zeta"] == encoding.zeta.tolist()
    # the numbers' pairs are interleaved
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    q, k = (torch.tensor(numbers[x], dtype=torch.float64)[None, None, None, order] for x in "qk")
    for encoded, wanted in (
        (encoding, numbers["score"]),
        (xpos(8, 1, scale_base=math.inf), numbers["score_of_rope"]),
    ):
        at = positions(1, numbers["m"]), positions(1, numbers["n"])
        turned_q, turned_k = encoded.rotate(q, k, *at, Context(False))
        assert (turned_q * turned_k).sum().item() == pytest.approx(wanted, abs=1e-9)
    # of two equal units 64 apart, zeta^(64/512) is left
    units = torch.eye(8, dtype=torch.float64)[None, None, :4]
    at = torch.full((1, 4, 1), 100), torch.full((1, 4, 1), 36)
    sizes = [x.norm(dim=-1).flatten() for x in encoding.rotate(units, units, *at, Context(False))]
    assert (sizes[0] * sizes[1]).tolist() == pytest.approx(numbers["zeta_after_64"], abs=1e-9)


@settings(deadline=None, max_examples=25, database=None)
@given(
    half=st.integers(1, 9),
    rows=st.integers(1, 6),
    start=st.integers(0, 10**6),
    gamma=st.floats(0.05, 3),
    scale=st.floats(3, 1000),
)
def test_equals_the_formula(half, rows, start, gamma, scale):
    encoding = xpos(2 * half, 2, gamma=gamma, scale_base=scale)
    q, k = normal(1, 2, rows, 2 * half, seed=1), normal(1, 2, 6, 2 * half, seed=2)
    k_pos = positions(6, start)
    q_pos = k_pos[:, 6 - rows :]
    got = torch.matmul(*_turned(encoding, q, k, q_pos, k_pos))
    wanted = slow_scores(q, k, q_pos, k_pos, gamma, scale)
    seen = k_pos[..., 0] <= q_pos
    torch.testing.assert_close(got * seen, wanted, rtol=0, atol=1e-8)


def _turned(encoding, q, k, q_pos, k_pos):
    q, k = encoding.rotate(q, k, q_pos, k_pos, Context(False))
    return q, k.transpose(-1, -2)


@pytest.mark.parametrize("rows", [23, 7, 1])
@pytest.mark.parametrize("scale", [0.25, 4.0, 512.0])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-11), (torch.float32, 5e-6)])
def test_a_layer_equals_a_slow_loop(rows, scale, dtype, error):
    encoding = xpos(scale_base=scale).to(dtype)
    q, k, v = (normal(2, 3, n, 8, seed=s, dtype=dtype) for s, n in enumerate((rows, 23, 23)))
    pos = positions(23)
    wanted = slow_layer(q, k, v, pos[:, 23 - rows :], pos, 0.4, scale)
    got = encoding.attend(q, k, v, pos[:, 23 - rows :], pos, Context(True))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=error)


@pytest.mark.parametrize("scale", [64, 512])
def test_scores_of_x_transformers(scale):
    theirs = importlib.import_module("x_transformers.x_transformers")
    q, k = (normal(2, 3, 50, 16, seed=s, dtype=torch.float32) for s in (1, 2))
    freqs, sizes = theirs.RotaryEmbedding(16, use_xpos=True, scale_base=scale)(torch.arange(50))
    wanted = theirs.apply_rotary_pos_emb(q, freqs, sizes) @ theirs.apply_rotary_pos_emb(
        k, freqs, sizes**-1
    ).transpose(-1, -2)
    halves = [*range(0, 16, 2), *range(1, 16, 2)]
    pos = positions(50)
    got = torch.matmul(
        *_turned(xpos(16, scale_base=scale), q[..., halves], k[..., halves], pos, pos)
    )
    torch.testing.assert_close(got.tril(), wanted.tril(), rtol=0, atol=2e-4)
    assert relative_error(got.tril(), wanted.tril()) < 5e-6


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("scale", [5.0, 64.0])
def test_chunks_equal_the_whole(rows, scale, monkeypatch):
    """Each has a centre of its own: queries of a cache, and chunks inside the kernel."""
    encoding = xpos(scale_base=scale)
    q, k, v = (normal(2, 3, 90, 8, seed=s) for s in (1, 2, 3))
    pos = positions(90)
    whole = encoding.attend(q, k, v, pos, pos, Context(True))
    torch.testing.assert_close(whole, slow_layer(q, k, v, pos, pos, 0.4, scale), rtol=0, atol=1e-10)
    for start in range(0, 90, rows):
        part, stop = slice(start, start + rows), min(start + rows, 90)
        keys = (k[:, :, :stop], v[:, :, :stop])
        got = encoding.attend(q[:, :, part], *keys, pos[:, part], pos[:, :stop], Context(True))
        torch.testing.assert_close(got, whole[:, :, part], rtol=0, atol=1e-11)
    monkeypatch.setattr(attention, "CHUNK_SCORES", rows * 90 * 6)
    got = encoding.attend(q, k, v, pos, pos, Context(True))
    torch.testing.assert_close(got, whole, rtol=0, atol=1e-11)


@pytest.mark.parametrize("start", [1, 1000, 10**6])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-9), (torch.float32, 2e-6)])
def test_a_common_shift_changes_nothing(start, dtype, error):
    encoding = xpos()
    q, k, v = (normal(2, 3, 40, 8, seed=s, dtype=dtype) for s in (1, 2, 3))
    at, to = positions(40), positions(40, start)
    plain = encoding.attend(q, k, v, at, at, Context(True))
    moved = encoding.attend(q, k, v, to, to, Context(True))
    torch.testing.assert_close(moved, plain, rtol=0, atol=error)


@pytest.mark.parametrize("scale", [8, 128])
def test_long_texts_in_float32(scale):
    """Factors about one centre for all would be beyond e^80, or e^1000, here."""
    encoding = xpos(4, 1, scale_base=scale)
    q, k, v = (normal(1, 1, 16384, 4, seed=s, dtype=torch.float32) for s in (1, 2, 3))
    pos = positions(16384)

    def wanted(row):
        part, end = slice(row, row + 1), row + 1
        at = pos[:, part], pos[:, :end]
        return slow_layer(q[:, :, part], k[:, :, :end], v[:, :, :end], *at, 0.4, scale)

    last = encoding.attend(q[:, :, -1:], k, v, pos[:, -1:], pos, Context(True))
    torch.testing.assert_close(last.double(), wanted(16383), rtol=0, atol=1e-5)
    short = (x[:, :, :3000] for x in (q, k, v))
    whole = encoding.attend(*short, pos[:, :3000], pos[:, :3000], Context(True))
    assert bool(whole.isfinite().all())
    for row in (0, 1397, 1398, 2999):
        got = whole[:, :, row : row + 1].double()
        torch.testing.assert_close(got, wanted(row), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_positions_far_apart_in_one_chunk(dtype):
    """One centre cannot serve them: the chunk is taken in parts."""
    encoding = xpos(scale_base=8)
    pos = torch.randint(10**4, (2, 30), generator=torch.Generator().manual_seed(0)).sort(1)[0]
    pos[:, 20:] = pos[:, 20:21] + torch.arange(10)  # neighbours, so that something is left
    pos = (pos + torch.tensor([[0], [10**6]]))[..., None]
    q, k, v = (normal(2, 3, 30, 8, seed=s, dtype=dtype).requires_grad_() for s in (1, 2, 3))
    assert len(encoding.relative_position(pos, pos, Context(False))) > 10
    got = encoding.attend(q, k, v, pos, pos, Context(False))
    wanted = slow_layer(q.detach(), k.detach(), v.detach(), pos, pos, 0.4, 8)
    error = 1e-8 if dtype == torch.float64 else 5e-6
    torch.testing.assert_close(got.detach().double(), wanted, rtol=0, atol=error)
    gradients = torch.autograd.grad(got.sum(), [q, k, v])
    assert all(bool(g.isfinite().all()) for g in gradients)


@pytest.mark.parametrize("length", [40, 128, 2048])
def test_one_centre_serves_a_chunk_of_consecutive_positions(length):
    pos = positions(2048)
    assert len(xpos(length=max(length, 48)).relative_position(pos, pos, Context(True))) == 1


def test_gradients_equal_those_of_the_formula():
    encoding = xpos(scale_base=6.0)
    q, k, v = (normal(1, 3, 12, 8, seed=s).requires_grad_() for s in (1, 2, 3))
    pos = positions(12)
    distance = (pos[0] - pos[..., 0]).clamp(min=0).double()[..., None]
    share = torch.arange(0, 8, 2, dtype=torch.float64) / 8
    turn = torch.tensor(theta(8), dtype=torch.float64)
    factor = torch.polar(((share + 0.4) / 1.4) ** (distance / 6), distance * turn)
    a, b = (torch.complex(*x.chunk(2, -1)) for x in (q, k))
    real = torch.einsum("bhip,bhjp,ijp->bhij", a, b.conj(), factor).real
    future = torch.ones(12, 12).triu(1) > 0
    wanted = (real / math.sqrt(8)).masked_fill(future, -math.inf).softmax(-1) @ v
    got = encoding.attend(q, k, v, pos, pos, Context(True))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    probe = normal(1, 3, 12, 8, seed=9)
    ours = torch.autograd.grad((got * probe).sum(), [q, k, v])
    theirs = torch.autograd.grad((wanted * probe).sum(), [q, k, v])
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-11)


def test_no_output_depends_on_a_later_token():
    encoding, pos = xpos(), positions(12)
    q, k, v = (normal(1, 3, 12, 8, seed=s) for s in (1, 2, 3))
    a = encoding.attend(q, k, v, pos, pos, Context(True))
    later = torch.zeros(12, 1).index_fill_(0, torch.tensor([7]), 1.0)
    b = encoding.attend(q, k + later, v + later, pos, pos, Context(True))
    assert torch.equal(a[:, :, :7], b[:, :, :7])
    assert not torch.isclose(a[:, :, 7:], b[:, :, 7:]).all(-1).any()


def test_equal_positions_give_the_plain_product_and_others_do_not_keep_norms():
    q, k, pos = normal(1, 3, 9, 8, seed=1), normal(1, 3, 9, 8, seed=2), positions(9, 100)
    turned_q, turned_k = xpos().rotate(q, k, pos, pos, Context(False))
    torch.testing.assert_close((turned_q * turned_k).sum(-1), (q * k).sum(-1), rtol=0, atol=1e-10)
    assert not torch.allclose(turned_q.norm(dim=-1), q.norm(dim=-1), atol=1e-3)
    assert not xpos().norm_preserving


def test_no_decay_is_rope():
    (reduction,) = xpos().reductions()
    encoding = xpos(base=77, **reduction.options)
    rope = scheme(reduction.equals, Geometry(24, 3, 2, 64), base=77)
    q, k, v = (normal(2, 3, 40, 8, seed=s) for s in (1, 2, 3))
    pos = positions(40)
    a, b = (e.attend(q, k, v, pos, pos, Context(True)) for e in (encoding, rope))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [64, 512])
def test_decays_over_the_training_length_by_default(length):
    encoding = xpos(length=length)
    assert encoding.tied() == [Tied("posenc.scale_base", "512", str(length))]
    assert encoding.needs_train_length
    fixed = xpos(length=length, scale_base=512)
    assert fixed.tied() == [Tied("posenc.scale_base", "512", "512")]
    assert not fixed.needs_train_length
    assert xpos(scale_base=512, base="matched").needs_train_length


def test_a_rescaling_changes_the_frequencies_alone():
    encoding = xpos()
    other = rule("pi").applied(encoding, 64, 256)
    torch.testing.assert_close(other.inv_freq, encoding.inv_freq / 4)
    assert (other.zeta is encoding.zeta) and other.scale_base == encoding.scale_base


@pytest.mark.parametrize("scale", [0.25, 8.0])
def test_a_position_map_clips_the_decay_too(scale):
    mapped = rule("rerope", window=5).applied(xpos(scale_base=scale), 64, 256)
    q, k, v = (normal(2, 3, 30, 8, seed=s) for s in (1, 2, 3))
    pos = positions(30)
    near = slow_scores(q, k, pos, pos, 0.4, scale)
    far = slow_scores(q, k, torch.full_like(pos, 5), torch.zeros_like(pos), 0.4, scale)
    distance = pos - pos[..., 0]
    scores = torch.where(distance[0] < 5, near, far) / math.sqrt(8)
    wanted = scores.masked_fill(distance[0] < 0, -math.inf).softmax(-1) @ v
    got = mapped.attend(q, k, v, pos, pos, Context(True))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_a_cast_module_keeps_its_tables(cast):
    encoding = xpos()
    q, k, v = (normal(2, 3, 40, 8, seed=s, dtype=cast) for s in (1, 2, 3))
    pos = positions(40, 8000)
    got = encoding.to(cast).attend(q, k, v, pos, pos, Context(True))
    assert got.dtype == cast
    wanted = slow_layer(q, k, v, pos, pos, 0.4, 64)
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-2)


def test_refusals():
    wrong = [("scale_base", x) for x in (0, -1.0, "far")] + [
        ("gamma", x) for x in (0.0, math.inf, 1e30)
    ]
    for option, value in wrong:
        with pytest.raises(
            ConfigError, match=rf"posenc.{option}={re.escape(str(value))}: .* above 0"
        ):
            xpos(**{option: value})
