"""Rotary tables that are shown, through the command and through Python, against other numbers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import golden

import posbench
from show.compare import close


def test_the_third_frequency_of_yarn_and_of_its_printed_form(tables: Callable[..., Any]) -> None:
    keys = {"head_dim": 8, "train_length": 2048, "factor": 4}
    numbers = golden("yarn")
    released, paper = tables("yarn", **keys), tables("yarn_paper", **keys)
    assert released["inv_freq"][2] == pytest.approx(0.00625, rel=1e-15)
    close(released["inv_freq"], numbers["truncate"]["inv_freq"])
    close(paper["inv_freq"], numbers["paper"]["inv_freq"])
    close(tables("yarn", **keys, truncate=False)["inv_freq"], numbers["exact"]["inv_freq"])
    assert paper["inv_freq"][2] == pytest.approx(0.00304665159, rel=1e-8)
    for found in (released, paper):
        assert found["rotation_scale"] == pytest.approx(0.1 * math.log(4) + 1, rel=1e-15)


@pytest.mark.parametrize("factor", [1, 2, 4, 8, 16, 32, 40, 64])
def test_rotation_scale_of_yarn(factor: int) -> None:
    found = posbench.tables("yarn", factor=factor)
    scale = golden("yarn")["sqrt_of_multiplier"][str(factor)]
    assert found["rotation_scale"] == pytest.approx(scale, rel=1e-8)
    if factor > 1:
        close(found["logit_scale"]["values"], [scale**2] * len(found["logit_scale"]["values"]))


def test_rope_and_the_rescalings_without_a_temperature() -> None:
    for name in ("pi", "ntk", "ntk_by_parts"):
        numbers = golden(name)
        found = posbench.tables(name, head_dim=8, factor=numbers["factor"])
        close(found["inv_freq"], numbers["inv_freq"])
        assert found["rotation_scale"] == 1.0
    close(posbench.tables("rope", head_dim=8)["inv_freq"], golden("rope")["inv_freq"])


def test_variants_of_ntk() -> None:
    numbers = golden("ntk_variants")
    keys = {"head_dim": numbers["dim"], "factor": numbers["factor"]}
    for name in ("ntk_old", "ntk_fixed"):
        close(posbench.tables(name, **keys)["inv_freq"], numbers[name])
    for b, wanted in numbers["ntk_mixed"].items():
        close(posbench.tables("ntk_mixed", b=float(b), **keys)["inv_freq"], wanted)


def test_dynamic_ntk_at_every_length() -> None:
    numbers = golden("dynamic_ntk")
    for case in numbers["cases"]:
        found = posbench.tables(
            "dynamic_ntk",
            head_dim=numbers["dim"],
            train_length=numbers["train_length"],
            test_length=case["test_length"],
            alpha=case["alpha"],
        )
        close(found["inv_freq"], case["inv_freq"])


def test_llama3_and_longrope() -> None:
    numbers = golden("llama3")
    keys = {k: numbers[k] for k in ("base", "train_length", "factor", "alpha", "beta")}
    found = posbench.tables("llama3", head_dim=numbers["dim"], **keys)["inv_freq"]
    close([found[p] for p in numbers["pairs"]], numbers["after"])
    numbers = golden("longrope")
    keys = {k: numbers[k] for k in ("train_length", "short_factor", "long_factor")}
    for length, wanted in numbers["inv_freq"].items():
        found = posbench.tables("longrope", head_dim=8, test_length=int(length), **keys)
        close(found["inv_freq"], wanted)
    for case in numbers["attention_factor"]:
        keys = {"factor": case["factor"], "train_length": case["train_length"]}
        found = posbench.tables("longrope", head_dim=8, long_factor=[1, 2, 3, 4], **keys)
        assert found["rotation_scale"] == pytest.approx(case["value"], rel=1e-8)


def test_rotary_fraction_of_a_scheme_and_below_a_rescaling(tables: Callable[..., Any]) -> None:
    numbers = golden("partial_rope_vs_p_rope")
    keys = {"head_dim": numbers["dim"], "rotary_fraction": numbers["fraction"]}
    for name in ("partial_rope", "p_rope"):
        close(tables(name, **keys)["inv_freq"], numbers[name])
    assert tables("rope", **keys) == tables("partial_rope", **keys)
    close(tables("pi", **keys, factor=4)["inv_freq"], [x / 4 for x in numbers["partial_rope"]])
    # the rotary size, not the head's: base 10^4 s^(4/2) over 4 channels
    close(tables("ntk", **keys, factor=4)["inv_freq"], [1.0, 1e4**-0.5 / 4])


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 64), st.floats(1.5, 1e7), st.integers(1, 6))
def test_any_ladder(half: int, base: float, heads: int) -> None:
    found = posbench.tables("rope", heads=heads, head_dim=2 * half, base=base)
    close(found["inv_freq"], [base ** (-p / half) for p in range(half)], rel=1e-13)


# --- precision ------------------------------------------------------------------------------------


def wrapped(angle: float) -> float:
    """An angle, or a difference of angles, from -pi to pi."""
    return math.remainder(angle, 2 * math.pi)


def test_float32_angles_at_a_million(tables: Callable[..., Any]) -> None:
    positions = [0, 1, 256, 8191, 999_999, 1_000_000]
    found = tables("rope", head_dim=64, dtype="float32", positions=positions)["rotation"]
    assert found["positions"] == positions
    for row, position in enumerate(positions):
        for pair in range(32):
            exact = position * 10000.0 ** (-pair / 32)
            assert abs(wrapped(found["angle"][row][pair] - exact)) < 1e-6
    single = tables("rope", head_dim=64, dtype="float32")["inv_freq"]
    for pair, theta in enumerate(single):  # and where a user multiplies in float32
        assert theta == float(torch.tensor(theta, dtype=torch.float32))
        product = torch.tensor(1e6, dtype=torch.float32) * torch.tensor(theta, dtype=torch.float32)
        assert abs(float(product) - 1e6 * 10000.0 ** (-pair / 32)) < 0.03


@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 1e-2), ("float16", 1e-3)])
def test_half_precision_models_have_exact_tables(
    dtype: str, error: float, tables: Callable[..., Any]
) -> None:
    positions = [0, 1, 255, 257, 2049, 4099, *range(8176, 8192)]
    for name, theta in (("rope", 1.0), ("pi", 0.25)):
        keys = {"head_dim": 64, "dtype": dtype, "positions": positions}
        found = tables(name, **keys, **({"factor": 4} if name == "pi" else {}))["rotation"]
        for row, position in enumerate(positions):
            for pair in range(32):
                angle = theta * position * 10000.0 ** (-pair / 32)
                assert abs(found["cos"][row][pair] - math.cos(angle)) < error
                assert abs(found["sin"][row][pair] - math.sin(angle)) < error


def test_biases_of_a_bfloat16_model_stay_in_float32() -> None:
    distances = list(range(1000, 1008))
    found = posbench.tables("alibi", heads=8, dtype="bfloat16", distances=distances)
    assert found["bias"]["values"][7] == [-n * 2.0**-8 for n in distances]
    assert len(golden("precision")["bf16_alibi_slope_2^-8_distances_1000_to_1007"]) < 8
    third = posbench.tables("alibi", heads=12, dtype="float32")["slopes"][8]
    assert third == float(torch.tensor(2**-0.5, dtype=torch.float32)) != 2**-0.5


def test_learned_numbers_are_rounded_like_the_model() -> None:
    exact = posbench.tables("t5", distances=[0, 1, 2])["bias"]["values"]
    half = posbench.tables("t5", distances=[0, 1, 2], dtype="bfloat16")["bias"]["values"]
    assert half == torch.tensor(exact).to(torch.bfloat16).tolist() != exact
