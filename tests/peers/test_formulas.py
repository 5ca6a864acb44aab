"""The oracles against numbers that were worked out elsewhere."""

import pytest
from oracles import golden

from peers import formulas

DIGITS = {"rel": 1e-8}
SHORT = [t for t in golden("yarn_short")["tables"] if t["rule"] == "yarn"]


@pytest.mark.parametrize("heads", list(golden("alibi")["slopes"]))
def test_alibi(heads):
    wanted = golden("alibi")["slopes"][heads]
    assert formulas.alibi_slopes(int(heads)) == pytest.approx(wanted, **DIGITS)


def test_t5():
    numbers = golden("t5")["32_buckets_to_128"]
    found = [formulas.t5_bucket(n, 32, 128) for n in numbers["distances"]]
    assert found == numbers["buckets"]
    first = [formulas.t5_bucket(n, 32, 128) for n in numbers["first_distance_of_bucket"]]
    before = [formulas.t5_bucket(n - 1, 32, 128) for n in numbers["first_distance_of_bucket"][1:]]
    assert first == list(range(32)) and before == list(range(31))


@pytest.mark.parametrize("name", ["pi", "ntk"])
def test_static(name):
    numbers = golden(name)
    found = getattr(formulas, name)(numbers["dim"], numbers["factor"], numbers["base"])
    assert found == pytest.approx(numbers["inv_freq"], **DIGITS)


@pytest.mark.parametrize("case", golden("dynamic_ntk")["cases"])
def test_dynamic(case):
    numbers = golden("dynamic_ntk")
    length = numbers["train_length"]
    found = formulas.dynamic_ntk(numbers["dim"], length, case["test_length"], case["alpha"])
    assert found == pytest.approx(case["inv_freq"], **DIGITS)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn(truncate):
    numbers = golden("yarn")
    at = (numbers["dim"], numbers["train_length"], numbers["factor"], numbers["base"])
    wanted = numbers["truncate" if truncate else "exact"]["inv_freq"]
    assert formulas.yarn(*at, truncate) == pytest.approx(wanted, **DIGITS)
    for factor, scale in numbers["sqrt_of_multiplier"].items():
        assert formulas.yarn_scale(float(factor)) == pytest.approx(scale, **DIGITS)


@pytest.mark.parametrize("table", SHORT)
def test_yarn_on_short_windows(table):
    found = formulas.yarn(table["dim"], table["train_length"], golden("yarn_short")["factor"])
    assert found == pytest.approx(table["inv_freq"], rel=1e-5)


def test_llama3():
    # third decimal on: the specification's list for heads of 128, factor 8, L = 8192
    found = formulas.by_turns(128, 8192, 8, low=1, high=4, base=500000.0)
    plain = formulas.rope(128, 500000.0)
    ratio = [a / b for a, b in zip(found, plain, strict=True)]
    assert ratio[28] == 1 and ratio[35] == 1 / 8
    assert ratio[29:35] == pytest.approx(
        [0.828168412, 0.643743133, 0.493507123, 0.37112228, 0.271425477, 0.190210744], **DIGITS
    )


def test_longrope_scale():
    assert formulas.longrope_scale(8, 4096) == pytest.approx(1.11803399, **DIGITS)


def test_sandwich():
    # the specification's list for head 1 of 8
    wanted = {1: -1.90631619, 2: -6.61813945, 64: -33.479941, 4096: -67.3826139}
    for distance, bias in wanted.items():
        rise = formulas.sandwich(distance) - formulas.sandwich(0)
        assert rise == pytest.approx(bias, **DIGITS)
