"""Statistics of timings, against numpy and scipy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from posbench.bench import statistics

SAMPLES = st.lists(st.floats(0.01, 100), min_size=1, max_size=25)


@given(SAMPLES)
def test_medians_and_quartiles_are_numpys(samples: list[float]) -> None:
    assert statistics.median(samples) == pytest.approx(np.median(samples))
    expected = np.quantile(samples, [0.25, 0.75])
    assert statistics.quartiles(samples) == pytest.approx(tuple(expected))


@pytest.mark.parametrize("n", range(6, 40))
@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_the_medians_interval_covers_what_it_says(n: int, level: float) -> None:
    """The rank k that it begins with: 1 - 2 P(Binomial(n, 1/2) < k) is the coverage."""
    low, high = statistics.median_interval(range(1, n + 1), level)
    assert low + high == n + 1
    if n >= 8:
        assert 1 - 2 * stats.binom.cdf(low - 1, n, 0.5) >= level
    assert 1 - 2 * stats.binom.cdf(low, n, 0.5) < level


@pytest.mark.parametrize("n", [9, 12, 20, 33])
def test_the_medians_interval_is_scipys(n: int) -> None:
    samples = np.random.default_rng(n).lognormal(size=n)
    expected = stats.quantile_test(samples, q=0.0, p=0.5).confidence_interval(0.95)
    assert statistics.median_interval(list(samples)) == (expected.low, expected.high)


def test_few_samples_give_the_whole_range() -> None:
    assert statistics.median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert statistics.median_interval([2.0]) == (2.0, 2.0)


def test_paired_ratios_are_formed_within_a_round() -> None:
    """A round in which the machine was ten times slower shifts nothing."""
    found = statistics.paired([2.0, 40.0, 6.0], [1.0, 20.0, 3.0])
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)
    assert np.median([2.0, 40.0, 6.0]) / np.median([1.0, 20.0, 3.0]) == found.value
    other = statistics.paired([1.0, 9.0, 4.0], [2.0, 3.0, 4.0])
    assert (other.value, other.low, other.high) == (1.0, 0.5, 3.0)


def test_without_common_rounds_it_is_the_ratio_of_medians() -> None:
    found = statistics.paired([6.0], [1.0, 2.0, 30.0])
    assert found.value == 3.0 and math.isnan(found.low) and found.side == 0
    assert math.isnan(statistics.paired([6.0], [2.0]).low)


@settings(max_examples=60)
@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.floats(-1, 1, allow_subnormal=False),
    st.integers(0, 10**6),
)
def test_the_interval_of_a_ratio_is_mann_and_whitneys(
    m: int, n: int, shift: float, seed: int
) -> None:
    """It leaves out 1 exactly where scipy's exact test finds a difference at 5 %."""
    draw = np.random.default_rng(seed)
    new, old = np.exp(draw.normal(shift, 0.5, m)), np.exp(draw.normal(0, 0.5, n))
    found = statistics.between(list(new), list(old))
    p = stats.mannwhitneyu(new, old, method="exact").pvalue
    assert (found.side != 0) == (p <= 0.05 + 1e-12)
    assert found.value == pytest.approx(np.median(np.divide.outer(new, old)))
    if not math.isnan(found.low):
        assert found.low <= found.value <= found.high
        assert found.side in (0, 1 if found.value > 1 else -1)


def test_four_samples_are_the_fewest_with_an_interval() -> None:
    assert math.isnan(statistics.between([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).low)
    assert statistics.between([5.0, 6.0, 7.0, 8.0], [1.0, 2.0, 3.0, 4.0]).side == 1
