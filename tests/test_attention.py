"""Every kernel of attention against a loop over queries.

The schemes here have an independent form in `oracles`; the others are tested beside their formulas.
One file: the kernels share one loop and one list of shapes.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    RULES,
    STATIC,
    SURVEY,
    bias_of,
    normal,
    positions,
    rule,
    scheme,
    shape,
    slow_attention,
    theta,
    tokens,
    turned,
)

from posbench import attention, registry
from posbench.encodings.base import Context, PositionalEncoding, Region
from posbench.rescale.per_query import PerQuery

#: (queries, keys)
SHAPES = [(33, 33), (5, 33), (1, 33), (1, 1)]
HEADS, WIDTH, LENGTH = 3, 8, 40
BIASED = ("t5", "alibi")
#: rescalings that change the frequencies alone
FREQUENCIES = [i for i in STATIC if registry.get("rescale", RULES[i][0]).acts_on == "frequencies"]


def make(case: str) -> PositionalEncoding:
    """A scheme, or RoPE trained at 10 tokens under a rescaling for 33 (`rope+rule`)."""
    if "+" not in case:
        return scheme(case, shape(HEADS * WIDTH, HEADS, LENGTH)).double()
    name, options = RULES[case.split("+")[1]]
    trained = scheme("rope", shape(HEADS * WIDTH, HEADS, 10))
    return rule(name, **options).applied(trained, 10, 33)


CASES = [*SURVEY, *(f"rope+{id}" for id in FREQUENCIES)]


def qkv(rows: int, keys: int, batch: int = 2) -> tuple[torch.Tensor, ...]:
    q = normal(batch, HEADS, rows, WIDTH, seed=1) * 2
    return q, normal(batch, HEADS, keys, WIDTH, seed=2), normal(batch, HEADS, keys, WIDTH, seed=3)


def scalar(encoding: PositionalEncoding, q_pos: torch.Tensor) -> float:
    scale = encoding.logit_scale(q_pos, q_pos, Context(True))
    return 1.0 if scale is None else float(scale)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("rows", "keys"), SHAPES)
def test_chunks_equal_the_loop(case, rows, keys, monkeypatch):
    encoding = make(case)
    q, k, v = qkv(rows, keys)
    k_pos = positions(keys)
    q_pos = k_pos[:, keys - rows :]
    with torch.no_grad():
        turned = encoding.rotate(q, k, q_pos, k_pos, Context(True))
        slow = slow_attention(*turned, v, bias_of(encoding), scalar(encoding, q_pos))
        for chunk in (1, 7, 64):
            monkeypatch.setattr(attention, "CHUNK_ROWS", chunk)
            fast = attention.attend(encoding, q, k, v, q_pos, k_pos, Context(True))
            torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)
            monkeypatch.setattr(attention, "CHUNK_SCORES", chunk * keys * q.shape[0] * HEADS)
            fast = attention.attend(encoding, q, k, v, q_pos, k_pos, Context(False))
            torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_the_encodings_own_attend_is_the_loop(case):
    encoding = make(case)
    q, k, v = qkv(9, 9)
    pos = positions(9)
    with torch.no_grad():
        turned = encoding.rotate(q, k, pos, pos, Context(True))
        slow = slow_attention(*turned, v, bias_of(encoding), scalar(encoding, pos))
        own = encoding.attend(q, k, v, pos, pos, Context(True))
    torch.testing.assert_close(own, slow, rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("rows", "keys"), [(12, 12), (4, 12)])
def test_any_positions_equal_the_loop(case, rows, keys, monkeypatch):
    """Gaps, and other positions in every sequence of the batch."""
    encoding = make(case)
    q, k, v = qkv(rows, keys)
    k_pos = (tokens(keys, vocab=3) + 1).cumsum(1)[..., None]
    q_pos = k_pos[:, keys - rows :]
    with torch.no_grad():
        turned = encoding.rotate(q, k, q_pos, k_pos, Context(False))
        slow = slow_attention(
            *turned, v, bias_of(encoding), scalar(encoding, q_pos), q_pos=q_pos, k_pos=k_pos
        )
        for scores in (1, 200, 1 << 24):
            monkeypatch.setattr(attention, "CHUNK_SCORES", scores)
            fast = attention.attend(encoding, q, k, v, q_pos, k_pos, Context(False))
            torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", BIASED)
@pytest.mark.parametrize(("rows", "keys"), SHAPES)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_materialised_mask_equals_the_loop(name, rows, keys, chunk, monkeypatch):
    encoding = make(name)
    q, k, v = qkv(rows, keys)
    monkeypatch.setattr(attention, "CHUNK_SCORES", chunk * keys * HEADS)
    bias = encoding.distance_bias(torch.arange(keys), Context(True)).double()
    fast = attention._materialised(q, k, v, bias, Context(True), WIDTH**-0.5)
    torch.testing.assert_close(fast, slow_attention(q, k, v, bias_of(encoding)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", BIASED)
@pytest.mark.parametrize(("rows", "keys"), SHAPES)
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_equals_the_loop(name, rows, keys, window):
    """The kernel of CUDA, which runs anywhere when it is not compiled; float32 as there."""
    encoding = make(name).float()
    q, k, v = (x.float() for x in qkv(rows, keys))
    bias = encoding.distance_bias(torch.arange(keys), Context(True)).float()
    far = torch.arange(keys) >= (window or keys)

    def windowed(head, distance):
        return bias_of(encoding)(head, distance) if distance < (window or keys) else -math.inf

    with torch.no_grad():
        ctx = Context(True, window=window)
        fast = attention._flex(q, k, v, bias.masked_fill(far, -math.inf), ctx, WIDTH**-0.5)
        slow = slow_attention(q.double(), k.double(), v.double(), windowed)
    torch.testing.assert_close(fast.double(), slow, rtol=0, atol=1e-5)


@pytest.mark.parametrize("gate", [0.5, 0.9999])
@pytest.mark.parametrize("rows", [2048, 700, 1])
def test_bias_of_keys_in_float32_at_2048_tokens(gate, rows):
    """Sums of 2048 logarithms, of which near keys see only their differences."""
    encoding = scheme("fox", shape(4 * 32, 4, 128), initial_gate=gate)
    q, k, v = (normal(1, 4, 2048, 32, seed=s, dtype=torch.float32) for s in (1, 2, 3))
    x, pos = normal(1, 2048, 128, seed=4, dtype=torch.float32), positions(2048)
    with torch.no_grad():
        ctx = Context(True)
        ctx.prepared = encoding.prepare(x, pos, ctx)
        fast = encoding.attend(q[:, :, -rows:], k, v, pos[:, -rows:], pos, ctx)
        gates = torch.nn.functional.linear(
            x.double(), encoding.weight[0].double(), encoding.offset[0].double()
        )
        total = gates.sigmoid().log().cumsum(1).transpose(1, 2)
        seen = torch.arange(2048)[-rows:, None] >= torch.arange(2048)
        bias = (total[:, :, -rows:, None] - total[:, :, None]).masked_fill(~seen, -math.inf)
        scores = q[:, :, -rows:].double() @ k.double().transpose(2, 3) / math.sqrt(32) + bias
        exact = scores.softmax(-1) @ v.double()
    assert (fast - exact).abs().max() < 5e-6


class Odd(PositionalEncoding):
    """A bias of keys beside a rotation whose results lie otherwise in memory, or are wider."""

    name = "odd"

    def __init__(self, wider):
        super().__init__(None, shape(HEADS * WIDTH, HEADS, LENGTH))
        self.wider = wider

    def rotate(self, q, k, q_pos, k_pos, ctx):
        if self.wider:
            return torch.cat((q, q[..., :1]), -1), torch.cat((k, k[..., :1]), -1)
        return q.mT.contiguous().mT, k.mT.contiguous().mT

    def key_bias(self, k_pos, ctx):
        return (k_pos[..., 0].double() * 0.3).sin()[:, None]


@pytest.mark.parametrize("wider", [True, False])
@pytest.mark.parametrize("rows", [33, 5])
def test_bias_of_keys_beside_an_odd_rotation(wider, rows, monkeypatch):
    encoding, pos = Odd(wider), positions(33)
    q, k, v = qkv(rows, 33)
    at = pos[:, 33 - rows :]
    with torch.no_grad():
        turned = encoding.rotate(q, k, at, pos, Context(True))
        sine = [math.sin(0.3 * j) for j in range(33)]
        scores = turned[0] @ turned[1].mT / math.sqrt(WIDTH)
        for i in range(rows):
            for j in range(33):
                hidden = j > 33 - rows + i
                scores[:, :, i, j] += -math.inf if hidden else sine[j] - sine[33 - rows + i]
        slow = scores.softmax(-1) @ v
        for chunk in (4, 64):
            monkeypatch.setattr(attention, "CHUNK_ROWS", chunk)
            fast = attention.attend(encoding, q, k, v, at, pos, Context(True))
            torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SURVEY)
@pytest.mark.parametrize(("rows", "keys"), [(11, 11), (4, 11)])
@pytest.mark.parametrize("consecutive", [True, False])
def test_gradients_equal_those_of_the_loop(name, rows, keys, consecutive, monkeypatch):
    """Of queries, keys, values and the scheme's own parameters (the T5 table)."""
    monkeypatch.setattr(attention, "CHUNK_ROWS", 3)
    encoding = make(name)
    # a table in the token stream (learned) plays no part in attention
    own = list(encoding.parameters()) if name in BIASED else []
    leaves = [x.requires_grad_() for x in qkv(rows, keys)]
    weight = normal(2, HEADS, rows, WIDTH, seed=4)
    k_pos = positions(keys)
    q_pos = k_pos[:, keys - rows :]
    fast = attention.attend(encoding, *leaves, q_pos, k_pos, Context(consecutive))
    turned = encoding.rotate(*leaves[:2], q_pos, k_pos, Context(True))
    slow = slow_attention(*turned, leaves[2], bias_of(encoding))
    got = torch.autograd.grad((fast * weight).sum(), leaves + own)
    wanted = torch.autograd.grad((slow * weight).sum(), leaves + own)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    assert all(b.abs().max() > 1e-3 for b in wanted)


@pytest.mark.parametrize("scores", [40, 1 << 24])
def test_gradient_of_the_t5_table_in_chunks(scores, monkeypatch):
    monkeypatch.setattr(attention, "CHUNK_SCORES", scores)
    encoding = make("t5")
    q, k, v = qkv(33, 33)
    pos = positions(33)
    fast = attention.attend(encoding, q, k, v, pos, pos, Context(True))
    slow = slow_attention(q, k, v, bias_of(encoding))
    (got,) = torch.autograd.grad(fast.pow(2).sum(), encoding.bias)
    (wanted,) = torch.autograd.grad(slow.pow(2).sum(), encoding.bias)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)
    reached = {b for b in range(32) if wanted[b].abs().max() > 0}
    assert {0, 1, 15, 16} <= reached


@pytest.mark.parametrize("name", BIASED)
def test_strided_kernel_in_float32_at_2048_tokens(name):
    encoding = scheme(name, shape(4 * 32, 4, 128))
    q, k, v = (normal(1, 4, 2048, 32, seed=s, dtype=torch.float32) for s in (1, 2, 3))
    pos = positions(2048)
    with torch.no_grad():
        fast = attention.attend(encoding, q, k, v, pos, pos, Context(True))
        distance = torch.arange(2048)[:, None] - torch.arange(2048)
        bias = encoding.distance_bias(distance.clamp(min=0).flatten(), Context(True))
        bias = bias.unflatten(1, distance.shape).double().masked_fill(distance < 0, -math.inf)
        scores = q.double() @ k.double().transpose(2, 3) / math.sqrt(32) + bias
        exact = scores.softmax(-1) @ v.double()
    assert (fast - exact).abs().max() < 5e-6


class PerQueryScale(PositionalEncoding):
    """Scores times ln(position + 2)."""

    name = "per_query_scale"

    def logit_scale(self, q_pos, k_pos, ctx):
        return (q_pos[:, None, :, 0] + 2).double().log()


class PerQueryScaleAndBias(PerQueryScale):
    def distance_bias(self, distance_N, ctx):
        return -0.1 * distance_N.double().sqrt().expand(HEADS, -1)


@pytest.mark.parametrize("cls", [PerQueryScale, PerQueryScaleAndBias])
@pytest.mark.parametrize(("rows", "keys"), [(12, 12), (5, 12)])
@pytest.mark.parametrize("consecutive", [True, False])
def test_a_scale_per_query_acts_on_scores_and_not_on_the_bias(cls, rows, keys, consecutive):
    encoding = cls(None, shape(HEADS * WIDTH, HEADS))
    q, k, v = qkv(rows, keys)
    k_pos = positions(keys)
    q_pos = k_pos[:, keys - rows :]
    fast = attention.attend(encoding, q, k, v, q_pos, k_pos, Context(consecutive))
    scale = [math.log(i + 2) for i in range(keys - rows, keys)]
    slow = slow_attention(
        q,
        k,
        v,
        (lambda h, d: -0.1 * math.sqrt(d))
        if "distance_bias" in encoding.hooks
        else (lambda h, d: 0.0),
        scale,
    )
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)


def incremental(length: int = 10, test: int = 33) -> PositionalEncoding:
    trained = scheme("rope", shape(HEADS * WIDTH, HEADS, length))
    return rule("dynamic_ntk", mode="incremental").applied(trained, length, test)


def slow_incremental(q, k, v, length: int = 10) -> torch.Tensor:
    """Query i turned, and all keys turned anew, with the base of i + 1 tokens."""
    rows, keys, out = q.shape[2], k.shape[2], []
    for r in range(rows):
        n = keys - rows + r + 1
        base = 10000 * max(1, n / length) ** (WIDTH / (WIDTH - 2))
        f = theta(WIDTH, base)
        q1 = turned(q[:, :, r : r + 1], positions(1, n - 1), f)
        out.append(slow_attention(q1, turned(k[:, :, :n], positions(n), f), v[:, :, :n]))
    return torch.cat(out, 2)


@pytest.mark.parametrize(("rows", "keys"), [*SHAPES, (9, 9), (10, 10), (11, 11), (20, 25), (3, 8)])
@pytest.mark.parametrize("consecutive", [True, False])
def test_incremental_dynamic_ntk_equals_the_loop(rows, keys, consecutive):
    encoding = incremental()
    assert isinstance(encoding, PerQuery)
    q, k, v = qkv(rows, keys)
    k_pos = positions(keys)
    q_pos = k_pos[:, keys - rows :]
    ctx = Context(consecutive)
    fast = encoding.attend(q, k, v, q_pos, k_pos, ctx)
    torch.testing.assert_close(fast, slow_incremental(q, k, v), rtol=0, atol=1e-10)


@settings(deadline=None, max_examples=25, database=None)
@given(
    name=st.sampled_from(SURVEY),
    batch=st.integers(1, 3),
    heads=st.integers(1, 5),
    half=st.integers(1, 4),
    keys=st.integers(1, 24),
    missing=st.integers(0, 23),
    chunk=st.integers(1, 25),
    consecutive=st.booleans(),
)
def test_any_shape(name, batch, heads, half, keys, missing, chunk, consecutive):
    rows = max(1, keys - missing)
    encoding = scheme(name, shape(2 * half * heads, heads, LENGTH)).double()
    q, k, v = (normal(batch, heads, n, 2 * half, seed=n) for n in (rows, keys, keys))
    k_pos = positions(keys)
    q_pos = k_pos[:, keys - rows :]
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(attention, "CHUNK_ROWS", chunk)
        patch.setattr(attention, "CHUNK_SCORES", chunk * keys)
        fast = attention.attend(encoding, q, k, v, q_pos, k_pos, Context(consecutive))
        turned = encoding.rotate(q, k, q_pos, k_pos, Context(True))
        slow = slow_attention(*turned, v, bias_of(encoding))
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SURVEY)
def test_output_has_the_type_of_the_values(name, dtype):
    encoding = scheme(name, shape(HEADS * WIDTH, HEADS))
    pos = positions(9)
    with torch.no_grad():
        for consecutive in (True, False):
            q, k, v = (x.to(dtype) for x in qkv(9, 9))
            out = attention.attend(encoding, q, k, v, pos, pos, Context(consecutive))
            assert out.dtype == dtype
            q, k, v = (x.double() for x in (q, k, v))
            turned = encoding.rotate(q, k, pos, pos, Context(True))
            slow = slow_attention(*turned, v, bias_of(encoding))
            limit = 1e-5 if dtype == torch.float32 else 0.05
            assert (out.double() - slow).abs().max() < limit


@pytest.mark.parametrize("name", ["none", "alibi", "rope"])
@pytest.mark.parametrize(("rows", "keys"), SHAPES)
@pytest.mark.parametrize("window", [1, 6, 100])
def test_a_window_equals_the_loop_over_its_keys(name, rows, keys, window, monkeypatch):
    encoding = make(name)
    q, k, v = qkv(rows, keys)
    k_pos = positions(keys)
    q_pos = k_pos[:, keys - rows :]
    turned_q, turned_k = encoding.rotate(q, k, q_pos, k_pos, Context(True))
    slow = []
    for r in range(rows):
        last = keys - rows + r
        seen = slice(max(0, last + 1 - window), last + 1)
        at = {"q_pos": q_pos[:, r : r + 1], "k_pos": k_pos[:, seen]}
        one = turned_q[:, :, r : r + 1], turned_k[:, :, seen], v[:, :, seen]
        slow.append(slow_attention(*one, bias_of(encoding), **at))
    for chunk in (1, 7, 64):
        monkeypatch.setattr(attention, "CHUNK_ROWS", chunk)
        monkeypatch.setattr(attention, "CHUNK_SCORES", chunk * keys * q.shape[0] * HEADS)
        for consecutive in (True, False):
            ctx = Context(consecutive, window=window)
            fast = attention.attend(encoding, q, k, v, q_pos, k_pos, ctx)
            torch.testing.assert_close(fast, torch.cat(slow, 2), rtol=0, atol=1e-10)


class SometimesMapped(registry.get("posenc", "rope")):  # type: ignore[misc]
    """RoPE that gives regions for long chunks only."""

    name = "sometimes_mapped"

    def relative_position(self, q_pos, k_pos, ctx):
        return None if k_pos.shape[1] <= 8 else [Region(q_pos, k_pos, None)]


@pytest.mark.parametrize("keys", [5, 8, 20])
def test_no_regions_mean_the_positions_themselves(keys):
    geometry = shape(HEADS * WIDTH, HEADS)
    mapped, plain = SometimesMapped(make("rope").config, geometry), scheme("rope", geometry)
    q, k, v = qkv(keys, keys)
    pos = positions(keys)
    got, wanted = (e.attend(q, k, v, pos, pos, Context(True)) for e in (mapped, plain))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rows", [12, 5])
def test_biases_from_content_are_not_shared_between_layers(rows: int) -> None:
    """Against a loop: what `prepare` makes of a layer's stream is that layer's own."""

    class Weighted(PositionalEncoding):
        name = "weighted"

        def prepare(self, x_BTD, pos_BTA, ctx):
            return x_BTD.mean()

        def pair_bias(self, q_pos, k_pos, ctx):
            return -ctx.prepared * (q_pos[:, :, None, 0] - k_pos[:, None, :, 0]).double()[:, None]

    encoding = Weighted(None, shape(HEADS * WIDTH, HEADS, LENGTH))
    q, k, v = qkv(rows, 12)
    pos = positions(12)
    whole = Context(True)
    for layer, content in enumerate((0.5, 2.0)):
        ctx = whole.at(layer)
        ctx.prepared = encoding.prepare(torch.full((2, 12, 4), content), pos, ctx)
        found = attention.attend(encoding, q, k, v, pos[:, -rows:], pos, ctx)
        for row in range(rows):
            at = 12 - rows + row
            bias = -content * (at - torch.arange(at + 1, dtype=torch.float64))
            scores = q[:, :, row, None] @ k[:, :, : at + 1].transpose(-1, -2) * WIDTH**-0.5
            expected = (scores[:, :, 0] + bias).softmax(-1)[:, :, None] @ v[:, :, : at + 1]
            assert torch.allclose(found[:, :, row], expected[:, :, 0], atol=1e-9)


def test_layers_share_masks_that_positions_alone_decide() -> None:
    made = []

    class Counted(PositionalEncoding):
        name = "counted"

        def pair_bias(self, q_pos, k_pos, ctx):
            made.append(ctx.layer)
            return torch.zeros(1, 1, q_pos.shape[1], k_pos.shape[1])

    class Differing(Counted):
        per_layer = True

    q, k, v = qkv(12, 12)
    pos = positions(12)
    for cls, expected in ((Counted, [0]), (Differing, [0, 1])):
        made.clear()
        encoding, whole = cls(None, shape(HEADS * WIDTH, HEADS, LENGTH)), Context(True)
        for layer in (0, 1):
            attention.attend(encoding, q, k, v, pos, pos, whole.at(layer))
        assert made == expected
