"""Frequencies pair by pair in plain numbers, for any size, base, length and factor."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import rope, rule, theta


def turns(f, length):
    return length * f / (2 * math.pi)


def by_parts(f, s, length, alpha, beta):
    r = turns(f, length)
    kept = 0.0 if r < alpha else 1.0 if r > beta else (r - alpha) / (beta - alpha)
    return (1 - kept) * f / s + kept * f


def yarn(p, f, s, length, dim, base, exact):
    def index(n):
        return dim * math.log(length / (2 * math.pi * n)) / (2 * math.log(base))

    low, high = index(32), index(1)
    if not exact:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = max(high, low + 0.001)
    divided = min(1.0, max(0.0, (p - low) / (high - low)))
    return f / s * divided + f * (1 - divided)


#: name -> frequency of pair p from (p, trained f, s, length, dim, base), and options
FORMULAS = {
    "pi": (lambda p, f, s, length, dim, base: f / s, {}),
    "ntk": (
        lambda p, f, s, length, dim, base: (base * s ** (dim / (dim - 2))) ** (-2 * p / dim),
        {},
    ),
    "ntk_old": (lambda p, f, s, length, dim, base: (base * s) ** (-2 * p / dim), {}),
    "ntk_fixed": (
        lambda p, f, s, length, dim, base: s ** (-2 / dim) * (base * s) ** (-2 * p / dim),
        {},
    ),
    "ntk_mixed": (
        lambda p, f, s, length, dim, base: (
            f * math.exp(-math.log(s) / (dim / 2) ** 0.7 * (p + 1) ** 0.7)
        ),
        {"b": 0.7},
    ),
    "ntk_by_parts": (lambda p, f, s, length, dim, base: by_parts(f, s, length, 1, 32), {}),
    "yarn_paper": (lambda p, f, s, length, dim, base: by_parts(f, s, length, 1, 32), {}),
    "llama3": (lambda p, f, s, length, dim, base: by_parts(f, s, length, 1, 4), {}),
    "yarn": (
        lambda p, f, s, length, dim, base: yarn(p, f, s, length, dim, base, False),
        {},
    ),
    "yarn-exact": (
        lambda p, f, s, length, dim, base: yarn(p, f, s, length, dim, base, True),
        {"truncate": False},
    ),
}


@settings(deadline=None, max_examples=25, database=None)
@given(
    half=st.integers(2, 64),
    base=st.floats(2.0, 1e7),
    length=st.integers(8, 100_000),
    factor=st.floats(1.0, 1000.0),
)
@pytest.mark.parametrize("id", FORMULAS)
def test_frequencies(id, half, base, length, factor):
    formula, options = FORMULAS[id]
    dim, name = 2 * half, id.split("-")[0]
    found = rule(name, factor=factor, **options).applied(rope(dim, length, base), length, length)
    wanted = [formula(p, f, factor, length, dim, base) for p, f in enumerate(theta(dim, base))]
    torch.testing.assert_close(
        found.inv_freq, torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=0
    )


@settings(deadline=None, max_examples=25, database=None)
@given(
    half=st.integers(1, 32),
    length=st.integers(8, 10_000),
    factor=st.floats(1.0, 1000.0),
    times=st.sampled_from([0.5, 1, 2, 20]),
    seed=st.integers(0, 99),
)
def test_longrope(half, length, factor, times, seed):
    generator = torch.Generator().manual_seed(seed)
    long, short = (1 + 5 * torch.rand(half, generator=generator)).tolist(), [1.25] * half
    rescale = rule("longrope", factor=factor, long_factor=long, short_factor=short)
    n = int(times * length)
    found = rescale.applied(rope(2 * half, length), length, n)
    used = long if n > length else short
    wanted = [f / own for f, own in zip(theta(2 * half), used, strict=True)]
    assert found.inv_freq.tolist() == pytest.approx(wanted, rel=1e-12)
    temperature = 1 + math.log(factor) / math.log(length)
    assert found.logit_multiplier == pytest.approx(temperature, rel=1e-12)


@pytest.mark.parametrize("name", ["yarn", "yarn_paper"])
@pytest.mark.parametrize("factor", [1.0, 1.5, 8.0, 64.0])
def test_temperature_of_yarn(name, factor):
    wanted = 0.1 * math.log(factor) + 1
    for n in (16, 64, 640):  # at short lengths too
        found = rule(name, factor=factor).applied(rope(8, 64), 64, n)
        assert found.logit_multiplier == pytest.approx(wanted**2, rel=1e-12)
        assert found.own_tables(torch.arange(1))["rotation_scale"] == pytest.approx(wanted)
