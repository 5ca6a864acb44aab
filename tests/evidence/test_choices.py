"""Checks of what is best of several, and of exact facts."""

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from invented import Invented, loops, t_interval
from scipy import stats

from posbench.bench.result import Measurement, Result
from posbench.errors import ConfigError
from posbench.evaluate.references import STAMP
from posbench.evidence import choices, facts
from posbench.evidence.effect import NotYet

ROPE = {"in": ["core"], "preset": "rope", "ratio": 4}
GRID = [2, 4, 6, 8]
WRITTEN = [str(s) for s in GRID]


@pytest.fixture
def grid() -> Invented:
    """Losses of four factors; the best is 8, but for one seed 6."""
    found = Invented()
    for s, loss in zip(GRID, (3.6, 3.3, 3.15, 3.1), strict=True):
        found.add("core", "rope", {4: loss}, rescale="ntk", factor=str(s))
    return found


def argmin(source: Invented, **more: object) -> object:
    row = {**ROPE, "rescale": "ntk"}
    return choices.argmin(source, row, "factor", GRID, WRITTEN, 4, **more)  # type: ignore[arg-type]


def test_the_best_of_a_grid_stands_for_its_neighbourhood(grid: Invented) -> None:
    for block in grid.blocks["core"]:  # seed 1 likes 6 better
        if block["run_id"].endswith("s1") and block["factor"] == "6":
            block["nats"] -= 0.2 * block["tokens"]
    found = argmin(grid)
    assert found.effect == pytest.approx(np.mean([1.0, math.log2(1.5), 1.0]))
    between = [math.log2(math.sqrt(4 * 6) / 4), math.log2(math.sqrt(6 * 8) / 4)]
    lows = [between[1], between[0], between[1]]
    assert found.lo == pytest.approx(t_interval(lows)[1])
    assert found.hi == math.inf  # 8 is the end of the grid
    assert found.note.endswith("8, 6, 8")
    assert found.n_seeds == 3


def test_a_best_that_all_seeds_share_has_the_width_of_its_steps(grid: Invented) -> None:
    for block in grid.blocks["core"]:
        if block["factor"] == "8":
            block["nats"] += block["tokens"]
    found = argmin(grid)
    assert found.effect == pytest.approx(math.log2(1.5))
    ends = [math.log2(math.sqrt(24) / 4), math.log2(math.sqrt(48) / 4)]
    assert [found.lo, found.hi] == pytest.approx(ends)
    turned = argmin(grid, below=True)
    assert [turned.effect, turned.lo, turned.hi] == pytest.approx(
        [-math.log2(1.5), -ends[1], -ends[0]]
    )


def test_what_documents_cannot_tell_from_the_best_is_as_good(grid: Invented) -> None:
    """Half of the documents of seed 1 like 4 by far better: on average 8 is the best by little."""
    for block in grid.blocks["core"]:
        if block["run_id"].endswith("s1") and block["factor"] == "4":
            block["nats"] -= block["tokens"] * (0.38 if int(block["document"][1:]) % 2 else 0.0)
    found = argmin(grid)
    assert found.note.endswith("8, 8, 8") and found.effect == pytest.approx(1)
    between = [math.log2(math.sqrt(2 * 4) / 4), math.log2(math.sqrt(6 * 8) / 4)]
    assert found.lo == pytest.approx(t_interval([between[1], between[0], between[1]])[1])


def test_an_order_of_schemes_by_kendall() -> None:
    source = Invented(seeds=5, noise=0.05)
    presets = ["none", "t5", "alibi", "rope"]
    where = {"protocol": "generated"}
    for data in ("copy", "reverse"):
        for preset, score in zip(presets, (0.9, 0.7, 0.75, 0.2), strict=True):
            source.add("tasks", preset, {2: score}, correct=True, data=data, **where)
    order = [{"in": ["tasks"], "preset": p, "ratio": 2, **where} for p in presets]
    found = choices.agreement(source, order, [{"data": "copy"}, {"data": "reverse"}])
    taus = []
    for seed in range(5):
        own = []
        for data in ("copy", "reverse"):
            means = [source.of("tasks", p, 2, data, **where)[:, seed].mean() for p in presets]
            own.append(stats.kendalltau([4, 3, 2, 1], means).statistic)
        taus.append(np.mean(own))
    assert [found.effect, found.lo, found.hi] == pytest.approx(t_interval(taus))
    assert found.n_docs is None and found.n_seeds == 5


def test_an_order_of_losses_has_the_least_first() -> None:
    source = Invented()
    for preset, loss in (("a", 3.0), ("b", 3.5), ("c", 4.0)):
        source.add("core", preset, {1: loss})
    order = [{"in": ["core"], "preset": p, "ratio": 1} for p in "abc"]
    assert choices.agreement(source, order, [{}], "nll").effect == 1
    assert choices.agreement(source, order[::-1], [{}], "nll").effect == -1
    pairs = list(combinations("acb", 2))
    wanted = np.mean([1 if a < b else -1 for a, b in pairs])
    mixed = choices.agreement(source, [order[0], order[2], order[1]], [{}], "nll")
    assert mixed.effect == pytest.approx(wanted)


# ---- facts


def test_equal_to_the_last_bit() -> None:
    source = Invented()
    source.add("core", "rope", {4: 3.0})
    source.add("core", "rope", {4: 3.0}, rescale="dynamic_ntk")
    plain = {
        (b["run_id"], b["document"]): b["nats"]
        for b in source.blocks["core"]
        if b["rescale"] == "none"
    }
    for block in source.blocks["core"]:
        block["nats"] = plain[block["run_id"], block["document"]]
    sides = ROPE, {**ROPE, "rescale": "dynamic_ntk"}
    same = facts.identical(source, *sides)
    assert same.effect == 1 and same.n_seeds == 3 and math.isnan(same.lo)
    changed = next(b for b in source.blocks["core"] if b["rescale"] == "dynamic_ntk")
    changed["nats"] = math.nextafter(changed["nats"], math.inf)
    assert facts.identical(source, *sides).effect == pytest.approx(1 - 1 / 66)


def test_refusals_are_counted() -> None:
    source = Invented()
    source.add("core", "learned", {2: "unsupported_length"})
    row = {"in": ["core"], "preset": "learned", "ratio": 2}
    assert facts.refused(source, row, "unsupported_length").effect == 1
    assert facts.refused(source, row, "out_of_memory").effect == 0
    assert facts.refused(source, row, "unsupported_length").n_seeds == 3


def bench(path: Path, **samples: list[float]) -> str:
    rows = [Measurement(f"train/{name}/compiled", "s", own) for name, own in samples.items()]
    Result({}, {}, rows).write(path)
    return str(path)


def test_step_time(tmp_path: Path) -> None:
    rope, sines = [1.2, 2.6, 1.1, 1.3, 1.2, 1.4, 1.25], [1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    file = bench(tmp_path / "bench.json", rope=rope, sinusoidal=sines, none=[1.0])
    found = facts.step_time(Invented(), file, "rope", "sinusoidal")
    quotients = sorted(a / b for a, b in zip(rope, sines, strict=True))
    assert found.effect == quotients[3]
    # the whole range of 7 covers the median with 1 - 2 / 2^7 = 98.4 %, without its ends 87.5 %
    assert (found.lo, found.hi) == (quotients[0], quotients[-1])
    assert found.n_seeds is None and found.note == "7 rounds"


def test_step_times_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotYet, match="no nowhere.json"):
        facts.step_time(Invented(), "nowhere.json", "rope", "sinusoidal")
    file = bench(tmp_path / "bench.json", rope=[1.0, 2.0], none=[1.0])
    with pytest.raises(NotYet, match="has no steps of rope and none in the same rounds"):
        facts.step_time(Invented(), file, "rope", "none")
    with pytest.raises(NotYet, match="has no steps of rope and t5"):
        facts.step_time(Invented(), file, "rope", "t5")
    (tmp_path / "bench.json").write_text(json.dumps([]))
    with pytest.raises(ConfigError, match="not a result of posbench bench"):
        facts.step_time(Invented(), file, "rope", "t5")


def tuned(*reached: int | None) -> Invented:
    """Fine-tunings with PI that get there after some steps, and without it 100 steps later."""
    source = Invented()
    for seed, n in enumerate(reached):
        steps = range(0, 401, 10)
        curve = {s: 3.0 if n is not None and s >= n else 4.0 for s in steps}
        source.tuned("extend", "rope+pi", seed, 3.0, curve)
        late = {s: 2.9 if n is not None and s >= n + 100 else 4.0 for s in steps}
        source.tuned("extend_plain", "rope", seed, 3.0, late)
    return source


PI, LATER = {"in": ["extend"], "preset": "rope+pi"}, {"in": ["extend_plain"]}


def test_steps_within_a_limit() -> None:
    found = facts.steps_until(tuned(50, 70, 60), PI, limit=400)
    assert [found.effect, found.lo, found.hi] == pytest.approx(t_interval([350, 330, 340]))
    assert found.unit == "steps" and found.n_seeds == 3
    assert "50, 70, 60" in found.note


def test_a_limit_that_is_passed_counts_in_full() -> None:
    found = facts.steps_until(tuned(None, None, None), PI, limit=400)
    assert [found.effect, found.lo, found.hi] == [0, -math.inf, 0]
    assert "not there" in found.note


def test_steps_of_two() -> None:
    found = facts.steps_until(tuned(50, 70, 60), PI, LATER)
    assert [found.effect, found.lo, found.hi] == [100, 100, 100]
    late = facts.steps_until(tuned(50, 70, 350), PI, LATER)
    assert late.effect == pytest.approx((100 + 100 + 50) / 3)  # the last one never gets there
    assert "400 (not there)" in late.note
    assert (late.lo > -math.inf, late.hi) == (True, math.inf)
    turned = facts.steps_until(tuned(50, 70, 350), LATER, PI)  # the other way round: open below
    assert [turned.effect, turned.lo, turned.hi] == [-late.effect, -math.inf, -late.lo]
    assert late.below == ("rope+pi (not evaluated)", "rope (not evaluated)")


def test_the_gate_and_the_rate_of_fine_tunings_count() -> None:
    source = tuned(50, 70, 60)
    for name, preset, stamp in (("extend", "rope+pi", ""), ("extend_plain", "rope", STAMP)):
        source.add(name, preset, {1: 2.0}, stamp=stamp)
        for row in source.rows[name]:
            row["run_id"] = f"{name}-{preset}-s{row['seed']}"
    assert facts.steps_until(source, PI, LATER).below == ("rope",)
    for row in source.rows["extend_plain"]:
        row["stamp"] = ""
    assert facts.steps_until(source, PI, LATER).below == ()
    source.late = {"extend-rope+pi-s1"}
    assert facts.steps_until(source, PI, LATER).untuned == ("rope+pi",)


def test_the_best_of_two_grids() -> None:
    """By loops over all pairs: each end at a level for the grid that could be chosen from."""
    source = Invented(docs=20, noise=0.03)
    found = {"pi": (3.0, 2.8, 2.9), "ntk": (2.9, 2.95)}
    for rule, losses in found.items():
        for factor, loss in zip("248", losses, strict=False):
            source.add("core", "rope", {4: loss}, rescale=rule, factor=factor)
    pi, ntk = (
        [
            {"in": ["core"], "rescale": rule, "factor": f, "ratio": 4}
            for f in "248"[: len(found[rule])]
        ]
        for rule in ("pi", "ntk")
    )
    own = {
        (rule, f): source.of("core", "rope", 4, rescale=rule, factor=f)
        for rule, losses in found.items()
        for f in "248"[: len(losses)]
    }
    ends = []
    for a in "248":
        leads = [own["ntk", b] - own["pi", a] for b in "24"]
        ends.append(min(loops(x, 1 - 0.05 / 3)[1] for x in leads))
    tops = [max(loops(own["ntk", b] - own["pi", a], 1 - 0.05 / 2)[2] for a in "248") for b in "24"]
    effect = choices.best_of_each(source, pi, ntk)
    least = min(own["ntk", b].mean() for b in "24") - min(own["pi", a].mean() for a in "248")
    assert effect.effect == pytest.approx(least)
    assert [effect.lo, effect.hi] == pytest.approx([max(ends), min(tops)])
    turned = choices.best_of_each(source, ntk, pi)
    assert [turned.effect, turned.lo, turned.hi] == pytest.approx([-least, -effect.hi, -effect.lo])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 4), (1, 8)])
def test_grids_that_are_as_good_seldom_have_a_better_one(shape: tuple[int, int]) -> None:
    """Equal in the mean; seeds and documents make one of each look best."""
    n, wrong = 150, 0
    for start in range(n):
        source = Invented(docs=10, noise=0.05)
        source.draw = np.random.default_rng([13, start])
        for rule, count in zip(("pi", "ntk"), shape, strict=True):
            for factor in range(count):
                source.add("core", "rope", {4: 3.0}, rescale=rule, factor=str(factor))
        pi, ntk = (
            [{"in": ["core"], "rescale": r, "factor": str(f), "ratio": 4} for f in range(count)]
            for r, count in zip(("pi", "ntk"), shape, strict=True)
        )
        found = choices.best_of_each(source, pi, ntk)
        wrong += found.lo > 0 or found.hi < 0
    assert wrong / n <= 0.05


def test_several_fine_tunings_of_a_seed_are_not_mixed() -> None:
    source = tuned(50)
    source.tuned("extend", "rope+ntk", 0, 3.0, {10: 2.9})
    with pytest.raises(ConfigError, match=r"claims: .* are both of seed 0; give an option"):
        facts.steps_until(source, {"in": ["extend"]}, limit=400)


def test_steps_need_runs_and_one_bound() -> None:
    with pytest.raises(NotYet, match="^no runs$"):
        facts.steps_until(Invented(), PI, limit=400)
    with pytest.raises(ConfigError, match="either `later` or `limit`"):
        facts.steps_until(tuned(50), PI)
    with pytest.raises(ConfigError, match="either `later` or `limit`"):
        facts.steps_until(tuned(50), PI, LATER, limit=400)
