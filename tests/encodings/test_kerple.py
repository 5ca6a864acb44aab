"""KERPLE's two kernels: golden numbers, slow loops, gradients and ranges."""

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
    tiny_model,
    tokens,
)

from posbench.encodings.base import Context
from posbench.errors import ConfigError

KERNELS = ["kerple_log", "kerple_power"]
#: name -> penalty for (r1, r2, distance)
SLOW = {
    "kerple_log": lambda r1, r2, d: r1 * math.log(1 + r2 * d),
    "kerple_power": lambda r1, r2, d: r1 * d**r2,
}
#: name -> upper ends of the initial values
STARTS = {"kerple_log": (2, 1), "kerple_power": (1, 2)}


def with_values(name, r1, r2, **options):
    """A scheme of one head per value, in float64."""
    encoding = scheme(name, shape(8 * len(r1), len(r1)), **options).double()
    with torch.no_grad():
        encoding.r1.copy_(torch.tensor(r1, dtype=torch.float64))
        encoding.r2.copy_(torch.tensor(r2, dtype=torch.float64))
    return encoding


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name):
    numbers = golden(name)
    cases = numbers["cases"]
    encoding = with_values(name, [c["r1"] for c in cases], [c["r2"] for c in cases])
    bias = encoding.distance_bias(torch.tensor(numbers["distances"]), Context(True))
    wanted = torch.tensor([c["bias"] for c in cases], dtype=torch.float64)
    torch.testing.assert_close(bias, wanted, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", KERNELS)
@given(
    r1=st.lists(st.floats(0.01, 3), min_size=1, max_size=5),
    r2=st.floats(0.01, 2),
    far=st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=25, database=None)
def test_equals_the_formula(name, r1, r2, far):
    encoding = with_values(name, r1, [r2] * len(r1))
    distance = [0, 1, 2, 17, far]
    bias = encoding.distance_bias(torch.tensor(distance), Context(True))
    wanted = [[-SLOW[name](a, r2, d) for d in distance] for a in r1]
    torch.testing.assert_close(
        bias, torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-14
    )
    assert bool((bias.diff(dim=1)[:, :3] < 0).all())


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("rows", [19, 6, 1])
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-11), (torch.float32, 3e-6)])
def test_a_layer_equals_a_slow_loop(name, rows, trained, dtype, error):
    encoding = scheme(name, shape(24, 3)).to(dtype)
    q, k, v = (normal(2, 3, n, 8, seed=s, dtype=dtype) for s, n in enumerate((rows, 19, 19)))
    pos = positions(19)
    r1, r2 = encoding.r1.tolist(), encoding.r2.tolist()
    wanted = slow_attention(
        q.double(), k.double(), v.double(), lambda h, d: -SLOW[name](r1[h], r2[h], d)
    )
    with torch.set_grad_enabled(trained):
        for consecutive in (True, False):
            ctx = Context(consecutive)
            got = encoding.attend(q, k, v, pos[:, 19 - rows :], pos, ctx)
            assert got.dtype == dtype
            torch.testing.assert_close(got.double(), wanted, rtol=0, atol=error)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_are_those_of_the_formula(name):
    """At distance 0 too, where 0 ** r2 has the derivative 0 ln 0."""
    encoding = with_values(name, [0.7, 1.3], [0.4, 1.9])
    for d in (0, 1, 2, 50):
        for h, (r1, r2) in enumerate([(0.7, 0.4), (1.3, 1.9)]):
            bias = encoding.distance_bias(torch.tensor([0, d]), Context(True))[h, 1]
            by_r1, by_r2 = torch.autograd.grad(bias, [encoding.r1, encoding.r2])
            if name == "kerple_log":
                wanted = -math.log(1 + r2 * d), -r1 * d / (1 + r2 * d)
            else:
                wanted = -(d**r2), -r1 * d**r2 * math.log(d) if d else 0.0
            assert by_r1[h].item() == pytest.approx(wanted[0], rel=1e-12)
            assert by_r2[h].item() == pytest.approx(wanted[1], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", KERNELS)
def test_a_model_learns_both_numbers_of_every_head(name):
    model = tiny_model(name)
    model(tokens(40)).pow(2).sum().backward()
    for parameter in model.posenc.parameters():
        assert parameter.shape == (4,)
        assert bool(parameter.grad.isfinite().all())
        assert bool((parameter.grad != 0).all())


@pytest.mark.parametrize("name", KERNELS)
def test_starts_uniform_within_the_stated_ranges(name):
    encoding = scheme(name)
    for key, top in zip(("r1", "r2"), STARTS[name], strict=True):
        value = torch.empty(4000)
        encoding.init_parameter(key, value, torch.Generator().manual_seed(5))
        assert value.min().item() == pytest.approx(0.01)
        assert top * 0.99 < value.max() <= top
        share = [(value < top * quarter / 4).float().mean().item() for quarter in (1, 2, 3)]
        assert share == pytest.approx([0.25, 0.5, 0.75], abs=0.03)
        again = torch.empty(4000)
        encoding.init_parameter(key, again, torch.Generator().manual_seed(5))
        assert torch.equal(value, again)
        encoding.init_parameter(key, again, torch.Generator().manual_seed(6))
        assert not torch.equal(value, again)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranges_hold_at_use_and_after_a_step(name, dtype):
    encoding = with_values(name, [-3.0, 5.0], [-1.0, 5.0]).to(dtype)
    top = 2.0 if name == "kerple_power" else 5.0
    distance = torch.tensor([0, 1, 9])
    wanted = [[-SLOW[name](a, b, d) for d in (0, 1, 9)] for a, b in [(0.01, 0.01), (5.0, top)]]
    wanted = torch.tensor(wanted, dtype=torch.float64)

    def bias():
        return encoding.distance_bias(distance, Context(True))

    torch.testing.assert_close(bias(), wanted, rtol=1e-6, atol=0)
    assert encoding.r1.tolist() == [-3.0, 5.0]
    encoding.project()
    torch.testing.assert_close(bias(), wanted, rtol=1e-6, atol=0)
    assert encoding.r1.tolist() == pytest.approx([0.01, 5.0])
    assert encoding.r2.tolist() == pytest.approx([0.01, top])
    # on the bound a number is still trained
    bias().sum().backward()
    assert bool((encoding.r1.grad != 0).all())
    assert bool((encoding.r2.grad != 0).all())


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_a_cast_module_computes_in_full_precision(name, cast):
    encoding = scheme(name).to(cast)
    distance = torch.arange(1000, 1008)
    bias = encoding.distance_bias(distance, Context(True))
    assert bias.dtype == torch.float64
    r1, r2 = encoding.r1.tolist(), encoding.r2.tolist()
    wanted = [
        [-SLOW[name](a, b, d) for d in range(1000, 1008)] for a, b in zip(r1, r2, strict=True)
    ]
    wanted = torch.tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(bias, wanted, rtol=1e-10, atol=0)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 40])
def test_a_power_of_one_is_alibi(heads):
    (reduction,) = scheme("kerple_power").reductions()
    encoding = scheme("kerple_power", shape(2 * heads, heads), **reduction.options).double()
    reduction.prepare(encoding)
    assert reduction.equals == "alibi"
    distance = torch.tensor([0, 1, 2, 77, 16384])
    wanted = -torch.tensor(alibi_slopes(heads), dtype=torch.float64)[:, None] * distance
    got = encoding.distance_bias(distance, Context(True))
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", KERNELS)
def test_no_output_depends_on_a_later_token(name):
    encoding = scheme(name).double()
    q, k, v = (normal(1, 4, 12, 8, seed=s) for s in (1, 2, 3))
    other = [x.clone() for x in (k, v)]
    for x in other:
        x[:, :, 7] += 1
    pos = positions(12)
    for trained in (True, False):
        with torch.set_grad_enabled(trained):
            a = encoding.attend(q, k, v, pos, pos, Context(True))
            b = encoding.attend(q, *other, pos, pos, Context(True))
        assert torch.equal(a[:, :, :7], b[:, :, :7])
        assert not torch.isclose(a[:, :, 7:], b[:, :, 7:]).all(-1).any()


@pytest.mark.parametrize("name", KERNELS)
def test_refusals(name):
    for least in (-0.1, 1.0):
        with pytest.raises(ConfigError, match=rf"posenc.least={least}: from 0 to below 1"):
            scheme(name, least=least)
