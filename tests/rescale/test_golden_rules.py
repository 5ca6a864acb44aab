"""Rescalings against numbers that were worked out elsewhere."""

import math

import pytest
import torch
from oracles import golden, positions, rope, rule

from posbench.encodings.base import Context
from posbench.rescale.base import Ladder, kept_by_turns
from posbench.rescale.yarn import kept_by_index

DIGITS = {"rtol": 1e-8, "atol": 0}


def close(got, wanted, **tolerance):
    got = torch.as_tensor(got, dtype=torch.float64)
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), **tolerance)


def ladder_of(dim, length):
    encoding = rope(dim, length)
    return Ladder(encoding.inv_freq, encoding.base, dim, length)


def frequencies(name, numbers, **options):
    """Of RoPE under a rule, in float64, through the interface that a sweep uses."""
    dim, length = numbers["dim"], numbers.get("train_length", 2048)
    if "factor" in numbers:
        options["factor"] = numbers["factor"]
    encoding = rule(name, **options).applied(
        rope(dim, length, numbers.get("base", 10000)), length, numbers.get("test_length", length)
    )
    assert encoding.inv_freq.dtype == torch.float64
    return encoding.inv_freq


@pytest.mark.parametrize("name", ["pi", "ntk", "ntk_by_parts"])
def test_one_table(name):
    numbers = golden(name)
    cut_offs = {k: numbers[k] for k in ("alpha", "beta") if k in numbers}
    close(frequencies(name, numbers, **cut_offs), numbers["inv_freq"], **DIGITS)


def test_ntk_is_a_larger_base():
    numbers = golden("ntk")
    found = frequencies("ntk", numbers)
    torch.testing.assert_close(found, rope(8, 2048, numbers["new_base"]).inv_freq, **DIGITS)
    step = numbers["step_between_pairs"]
    trained = rope(8, 2048).inv_freq
    close(trained / found, [step**p for p in range(4)], **DIGITS)


def test_turns_and_the_printed_ramp():
    numbers = golden("ntk_by_parts")
    ladder = ladder_of(8, 2048)
    close(ladder.turns, numbers["turns"], **DIGITS)
    close(kept_by_turns(ladder, 1, 32), numbers["kept"], **DIGITS)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_as_released(truncate):
    numbers = golden("yarn")
    wanted = numbers["truncate" if truncate else "exact"]
    close(frequencies("yarn", numbers, truncate=truncate), wanted["inv_freq"], **DIGITS)
    kept = kept_by_index(ladder_of(8, 2048), 1, 32, truncate)
    close(kept, wanted["kept"], **DIGITS)
    low, high = wanted["cut_offs"]
    close(kept, [min(1, max(0, (high - p) / (high - low))) for p in range(4)], rtol=0, atol=1e-8)


def test_yarn_as_printed():
    numbers = golden("yarn")
    close(frequencies("yarn_paper", numbers), numbers["paper"]["inv_freq"], **DIGITS)
    close(kept_by_turns(ladder_of(8, 2048), 1, 32), numbers["paper"]["kept"], **DIGITS)


@pytest.mark.parametrize("name", ["yarn", "yarn_paper"])
def test_yarn_multiplies_scores(name):
    numbers = golden("yarn")
    for factor, root in numbers["sqrt_of_multiplier"].items():
        found = rule(name, factor=int(factor)).applied(rope(8, 2048), 2048, 2048).logit_multiplier
        assert found == pytest.approx(numbers["multiplier"][factor], rel=1e-8)
        assert found == pytest.approx(root**2, rel=1e-8)
        assert rule(name).rotation_scale(float(factor)) == pytest.approx(root, rel=1e-8)


@pytest.mark.parametrize(
    "case", golden("yarn_mscale")["cases"], ids=lambda c: f"{c['mscale']}-{c['mscale_all_dim']}"
)
def test_the_two_temperatures_of_deepseek(case):
    factor = golden("yarn_mscale")["factor"]
    pair = {k: case[k] for k in ("mscale", "mscale_all_dim")}
    found = rule("yarn", factor=factor, **pair)
    assert found.rotation_scale(factor) == pytest.approx(case["rotation"], rel=1e-8)
    total = case["rotation"] ** 2 * case["scores"]
    assert found.logit_multiplier(factor) == pytest.approx(total, rel=1e-8)
    encoding = found.applied(rope(8, 2048), 2048, 2048)
    assert encoding.logit_multiplier == pytest.approx(total, rel=1e-8)
    plain = rule("yarn", factor=factor).applied(rope(8, 2048), 2048, 2048)
    assert torch.equal(encoding.inv_freq, plain.inv_freq)


def test_ntk_variants():
    numbers = golden("ntk_variants")
    for name in ("ntk_old", "ntk_fixed"):
        close(frequencies(name, numbers), numbers[name], **DIGITS)
    for b, wanted in numbers["ntk_mixed"].items():
        close(frequencies("ntk_mixed", numbers, b=float(b)), wanted, **DIGITS)
    close(frequencies("ntk_mixed", numbers), numbers["ntk_mixed"]["0.625"], **DIGITS)


def test_llama3():
    """With its defaults, which are the released cut-offs."""
    numbers = golden("llama3")
    trained, found = rope(128, 8192, numbers["base"]).inv_freq, frequencies("llama3", numbers)
    close(trained[numbers["pairs"]], numbers["before"], **DIGITS)
    close(found[numbers["pairs"]], numbers["after"], **DIGITS)
    close((found / trained)[numbers["pairs"]], numbers["ratio"], **DIGITS)
    first, last = numbers["first_changed"], numbers["first_divided"]
    assert torch.equal(found[:first], trained[:first]) and found[first] < trained[first]
    close((trained / found)[last:], [8.0] * (64 - last), rtol=1e-12, atol=0)
    assert 8 - trained[last - 1] / found[last - 1] > 0.1
    own = frequencies("llama3", numbers, alpha=numbers["alpha"], beta=numbers["beta"])
    assert torch.equal(own, found)


def test_longrope():
    numbers = golden("longrope")
    factors = {k: numbers[k] for k in ("short_factor", "long_factor")}
    for length, wanted in numbers["inv_freq"].items():
        at = {**numbers, "test_length": int(length)}
        close(frequencies("longrope", at, **factors), wanted, **DIGITS)
    for case in numbers["attention_factor"]:
        rescale, length = rule("longrope", factor=case["factor"], **factors), case["train_length"]
        for n in (64, length, 2 * length):  # short inputs too
            found = rescale.applied(rope(8, length), length, n)
            assert found.logit_multiplier == pytest.approx(case["value"] ** 2, rel=1e-8)


def test_logn():
    numbers = golden("logn_rescale")
    length, at = numbers["train_length"], numbers["positions"]
    found = rule("logn").applied(rope(8, length), length, 4 * length)
    keys = positions(max(at) + 1)
    scale = found.logit_scale(keys, keys, Context(True))[0, 0, at]
    close(scale, numbers["factor"], rtol=1e-8, atol=0)
    assert scale.tolist() == pytest.approx(
        [max(1.0, math.log(i + 1) / math.log(length)) for i in at], rel=1e-12
    )


@pytest.mark.parametrize(
    "case",
    golden("yarn_short")["tables"],
    ids=lambda c: f"{c['rule']}-L{c['train_length']}-d{c['dim']}",
)
def test_short_training_lengths(case):
    numbers = {**case, "factor": golden("yarn_short")["factor"]}
    close(frequencies(case["rule"], numbers), case["inv_freq"], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "case", golden("yarn_short")["ramps"], ids=lambda c: f"L{c['train_length']}-d{c['dim']}"
)
def test_ramps_of_short_training_lengths(case):
    ladder = ladder_of(case["dim"], case["train_length"])
    assert float(ladder.turns[0]) == pytest.approx(case["most_turns"], rel=1e-5)
    printed, released = kept_by_turns(ladder, 1, 32), kept_by_index(ladder, 1, 32, True)
    close(printed[:4], case["kept_paper"], rtol=1e-5, atol=0)
    close(released[:4], case["kept"], rtol=0, atol=1e-6)
    assert int((printed == 0).sum()) == case["interpolated_pairs_paper"]
    assert int((released == 0).sum()) == case["interpolated_pairs"]
    low, high = case["cut_offs"]
    wanted = [min(1, max(0, (high - p) / (high - low))) for p in range(case["dim"] // 2)]
    close(released, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "case", golden("dynamic_ntk")["cases"], ids=lambda c: f"alpha{c['alpha']}-T{c['test_length']}"
)
def test_dynamic_ntk(case):
    numbers = {**case, "dim": 8, "train_length": 2048}
    close(frequencies("dynamic_ntk", numbers, alpha=case["alpha"]), case["inv_freq"], **DIGITS)
    assert (
        rule("dynamic_ntk", alpha=case["alpha"]).scale(2048, case["test_length"]) == (case["scale"])
    )


@pytest.mark.parametrize("order", [(4096, 8192, 1000), (8192, 4096, 1000), (1000, 8192, 4096)])
def test_dynamic_ntk_does_not_remember_lengths(order):
    history = golden("dynamic_ntk")["history"]
    dynamic, trained = rule("dynamic_ntk"), rope(8, 2048)
    found = {n: dynamic.applied(trained, 2048, n).inv_freq for n in order}
    close(found[4096], history["fresh_4096"], rtol=1e-6, atol=0)
    close(found[1000], history["1000_after_that"], rtol=1e-6, atol=0)
    remembered = torch.tensor(history["4096_after_8192"], dtype=torch.float64)
    assert not torch.allclose(found[4096], remembered, rtol=1e-3)
    close(found[8192], remembered.tolist(), rtol=1e-6, atol=0)
