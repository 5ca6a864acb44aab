import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy import stats

from posbench.evaluate.statistics import (
    half_width,
    holm,
    interval,
    n_effective,
    p_value,
    summed,
    two_way,
    two_way_interval,
)


def slow_two_way(x: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """Mean squares of the crossed layout written out cell by cell."""
    docs, seeds = x.shape
    grand = sum(x[d, s] for d in range(docs) for s in range(seeds)) / (docs * seeds)
    row = [sum(x[d]) / seeds for d in range(docs)]
    col = [sum(x[:, s]) / docs for s in range(seeds)]
    ms_d = sum(seeds * (r - grand) ** 2 for r in row) / (docs - 1)
    ms_s = sum(docs * (c - grand) ** 2 for c in col) / (seeds - 1)
    ms_e = sum(
        (x[d, s] - row[d] - col[s] + grand) ** 2 for d in range(docs) for s in range(seeds)
    ) / ((docs - 1) * (seeds - 1))
    variance = (ms_d + ms_s - ms_e) / (docs * seeds)
    if variance <= ms_e / (docs * seeds):
        variance, df = ms_e / (docs * seeds), (docs - 1) * (seeds - 1)
    else:
        bottom = ms_d**2 / (docs - 1) + ms_s**2 / (seeds - 1)
        bottom += ms_e**2 / ((docs - 1) * (seeds - 1))
        df = max((ms_d + ms_s - ms_e) ** 2 / bottom, min(docs, seeds) - 1)
    half = stats.t.ppf(0.5 + level / 2, df) * math.sqrt(variance)
    return grand, grand - half, grand + half


def crossed(rng: np.random.Generator, docs: int, seeds: int, sd: tuple[float, ...]) -> np.ndarray:
    a, b, e = (rng.normal(size=shape) for shape in ((docs, 1), (1, seeds), (docs, seeds)))
    return sd[0] * a + sd[1] * b + sd[2] * e


def test_summed_divides_once() -> None:
    assert summed([1.0, 5.0], [1, 9]) == 0.6  # the mean of means would be 0.78
    values = [1e16, 1.0, -1e16, 3.0]
    assert summed(values, [4]) == summed(values[::-1], [4]) == 1.0
    assert summed(np.array([2.0, 4.0]), np.array([1, 1])) == 3.0
    with pytest.raises(ValueError, match="no scored"):
        summed([], [])


@pytest.mark.parametrize("n", [2, 3, 22])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_one_seed_matches_scipy(n: int, level: float) -> None:
    x = np.random.default_rng(n).gamma(2.0, size=n)
    mean, low, high = interval(x, level)
    assert mean == pytest.approx(x.mean())
    theirs = stats.t.interval(level, n - 1, loc=x.mean(), scale=stats.sem(x))
    assert (low, high) == pytest.approx(theirs)
    test = stats.ttest_1samp(x, 0).confidence_interval(level)
    assert (low, high) == pytest.approx((test.low, test.high))


def test_paired_differences_match_the_paired_test() -> None:
    rng = np.random.default_rng(1)
    crop, full = rng.normal(3, 1, 22), rng.normal(2.9, 1, 22)
    theirs = stats.ttest_rel(crop, full).confidence_interval()
    assert interval(crop - full)[1:] == pytest.approx((theirs.low, theirs.high))


@pytest.mark.parametrize("sd", [(1, 0.3, 0.2), (0.1, 2, 0.5), (0, 0, 1), (1, 0, 1)])
@pytest.mark.parametrize("shape", [(22, 3), (2, 2), (9, 5), (3, 7)])
def test_two_way_matches_mean_squares(
    shape: tuple[int, int], sd: tuple[float, float, float]
) -> None:
    rng = np.random.default_rng(7)
    for _ in range(5):
        x = 2.5 + crossed(rng, *shape, sd)
        assert two_way_interval(x) == pytest.approx(slow_two_way(x))
        assert two_way_interval(x, 0.8) == pytest.approx(slow_two_way(x, 0.8))
        assert two_way_interval(x[:, ::-1]) == pytest.approx(two_way_interval(x))


def test_two_way_falls_back_to_the_residual() -> None:
    x = np.array([[1.0, -1.0], [-1.0, 1.0]])  # neither documents nor seeds differ
    mean, low, high = two_way_interval(x)
    half = stats.t.ppf(0.975, 1) * math.sqrt(4 / 4)  # MS_residual = 4, 4 cells
    assert (mean, low, high) == pytest.approx((0, -half, half))


def test_many_layouts_at_once_are_each_alone() -> None:
    rng = np.random.default_rng(5)
    for shape in ((22, 3), (9, 1), (2, 2)):
        x = np.stack([crossed(rng, *shape, (1, 0.3, 0.2)) for _ in range(6)]).reshape(2, 3, *shape)
        mean, variance, df = two_way(x)
        half = half_width(variance, df, 0.9)
        for i, j in np.ndindex(2, 3):
            expected = two_way_interval(x[i, j], 0.9)
            m, h = mean[i, j], half[i, j]
            assert (m, m - h, m + h) == pytest.approx(expected)


def test_p_is_where_an_interval_touches_0() -> None:
    rng = np.random.default_rng(6)
    x = 0.4 + crossed(rng, 22, 3, (1, 0.3, 0.5))
    p = float(p_value(*two_way(x)))
    _, low, high = two_way_interval(x, 1 - p)
    assert 0.01 < p < 0.9 and min(abs(low), abs(high)) == pytest.approx(0, abs=1e-9)
    one = rng.normal(0.3, 1, (22, 1))
    assert p_value(*two_way(one)) == pytest.approx(stats.ttest_1samp(one[:, 0], 0).pvalue)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert p_value(*two_way(np.zeros((22, 3)))) == 1
        assert p_value(*two_way(np.full((22, 3), 0.1))) == 0
        assert math.isnan(p_value(*two_way(np.ones((1, 3)))))


def slow_holm(p: list[float], alpha: float) -> set[int]:
    """Which are rejected: the smallest against alpha / n, the next alpha / (n - 1), and so on."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    rejected = set()
    for tests_left, i in zip(range(len(p), 0, -1), order, strict=True):
        if p[i] > alpha / tests_left:
            break
        rejected.add(i)
    return rejected


def test_holm_rejects_what_the_step_down_procedure_rejects() -> None:
    rng = np.random.default_rng(8)
    for n in (1, 2, 7, 40):
        p = rng.beta(0.3, 3, n)
        corrected = holm(p)
        assert ((corrected >= p) & (corrected <= 1)).all()
        for alpha in rng.uniform(0, 0.9, 20):
            assert set(np.flatnonzero(corrected <= alpha)) == slow_holm(p.tolist(), alpha)
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.02, math.nan, 0.01]).tolist() == pytest.approx(
        [0.02, math.nan, 0.02], nan_ok=True
    )
    assert len(holm([])) == 0


def test_one_seed_column_and_one_document() -> None:
    x = np.random.default_rng(3).normal(size=(9, 1))
    assert two_way_interval(x) == interval(x[:, 0])
    for alone in (interval([2.0]), two_way_interval([[1.0, 3.0]]), two_way_interval([[2.0]])):
        assert alone[0] == 2.0
        assert math.isnan(alone[1]) and math.isnan(alone[2])


def test_equal_documents_have_no_width_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert interval([0.1] * 22) == (0.1, 0.1, 0.1)
        assert two_way_interval(np.full((22, 3), 0.1)) == (0.1, 0.1, 0.1)
        for empty in (interval([]), two_way_interval(np.zeros((0, 3)))):
            assert all(map(math.isnan, empty))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_give_nan(bad: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(map(math.isnan, interval([1.0, bad, 2.0])))
        assert all(map(math.isnan, two_way_interval([[1.0, 2.0], [bad, 2.0]])))


def test_wrong_shapes_and_levels_are_refused() -> None:
    for call in (
        lambda: interval(np.zeros((3, 2))),
        lambda: two_way_interval(np.zeros(3)),
        lambda: interval([1.0, 2.0], level=95),
        lambda: n_effective([1.0, -1.0]),
    ):
        with pytest.raises(ValueError):
            call()


def test_n_effective() -> None:
    assert n_effective([5.0] * 7) == pytest.approx(7)
    assert n_effective([1.0, 0.0, 0.0]) == 1.0
    assert n_effective([3, 1]) == pytest.approx(16 / 10)
    assert n_effective([1e300, 1e300]) == pytest.approx(2)
    assert n_effective([]) == n_effective([0.0]) == 0.0


def test_coverage_of_one_seed() -> None:
    rng = np.random.default_rng(11)
    hits = [
        low <= 0 <= high for _, low, high in (interval(rng.normal(size=22)) for _ in range(4000))
    ]
    assert 0.935 <= np.mean(hits) <= 0.965


@pytest.mark.parametrize("sd", [(1, 0.3, 0.5), (0.3, 0.3, 0.3), (1, 1, 0.1), (0.05, 0.05, 1)])
def test_coverage_of_three_seeds(sd: tuple[float, float, float]) -> None:
    rng = np.random.default_rng(12)
    found = (two_way_interval(crossed(rng, 22, 3, sd)) for _ in range(2000))
    assert np.mean([low <= 0 <= high for _, low, high in found]) >= 0.91


def test_import_stays_light() -> None:
    modules = "posbench.evaluate.statistics, posbench.evaluate.ngram"
    code = f"import sys, {modules}; print('scipy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
