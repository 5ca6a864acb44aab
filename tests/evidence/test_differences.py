"""Checks that compare losses, against slow loops over the invented losses."""

import math

import numpy as np
import pytest
from invented import Invented, loops

from posbench.errors import ConfigError
from posbench.evidence import checks
from posbench.evidence.effect import Effect, NotYet

CORE = {"in": ["core"]}
ROPE = {**CORE, "preset": "rope"}


@pytest.fixture
def source() -> Invented:
    found = Invented()
    found.add("core", "rope", {1: 3.0, 2: 3.4, 4: 3.9, 8: 4.3})
    found.add("core", "rope", {1: 3.05}, protocol="crop")
    found.add("core", "alibi", {1: 3.02, 2: 3.03, 4: 3.02, 8: 3.02})
    found.add("core", "rope", {2: 3.2, 4: 3.7, 8: 4.2}, rescale="pi", factor="8")
    found.add("core", "rope", {2: 3.1, 4: 3.3, 8: 3.8}, rescale="ntk", factor="8")
    return found


def ends(effect: Effect) -> tuple[float, float, float]:
    return effect.effect, effect.lo, effect.hi


def test_a_difference_is_paired(source: Invented) -> None:
    found = checks.difference(source, {**CORE, "preset": "alibi", "ratio": 4}, {**ROPE, "ratio": 4})
    wanted = source.of("core", "rope", 4) - source.of("core", "alibi", 4)
    assert ends(found) == pytest.approx(loops(wanted), abs=1e-12)
    assert (found.n_seeds, found.n_docs, found.unit) == (3, 22, "nats")
    assert found.tiers == ("evidence",)
    assert not found.below
    assert 0.8 < found.effect < 0.95
    assert found.hi - found.lo < 0.05  # documents differ by far more than that


def test_the_effect_that_could_have_been_detected(source: Invented) -> None:
    found = checks.difference(source, {**CORE, "preset": "alibi", "ratio": 4}, {**ROPE, "ratio": 4})
    x = source.of("core", "rope", 4) - source.of("core", "alibi", 4)
    mean, low, _ = loops(x)
    _, low60, _ = loops(x, 0.6)
    assert found.detectable == pytest.approx(mean - low + mean - low60)


def test_only_what_both_have_is_compared(source: Invented) -> None:
    source.blocks["core"] = [
        block
        for block in source.blocks["core"]
        if not (block["run_id"] == "core-rope-code-s1" and block["test_len"] == 512)
        and not (block["document"] == "d03" and block["run_id"].startswith("core-alibi"))
    ]
    source.rows["core"] = [
        row
        for row in source.rows["core"]
        if (row["run_id"], row["test_len"]) != ("core-rope-code-s1", 512)
    ]
    found = checks.difference(source, {**CORE, "preset": "alibi", "ratio": 4}, {**ROPE, "ratio": 4})
    x = source.of("core", "rope", 4) - source.of("core", "alibi", 4)
    kept = np.delete(np.delete(x, 3, axis=0), 1, axis=1)
    assert ends(found) == pytest.approx(loops(kept), abs=1e-12)


def test_documents_weigh_the_same_whatever_their_tokens(source: Invented) -> None:
    for block in source.blocks["core"]:
        if block["document"] == "d01":
            block["nats"], block["tokens"] = block["nats"] * 3, block["tokens"] * 3
    found = checks.difference(source, {**ROPE, "ratio": 1}, {**ROPE, "ratio": 2})
    wanted = source.of("core", "rope", 2) - source.of("core", "rope", 1)
    assert found.effect == pytest.approx(float(wanted.mean()))


def test_the_crop_is_a_side_in_units_of_b(source: Invented) -> None:
    found = checks.difference(
        source, {**ROPE, "protocol": "crop"}, {**ROPE, "ratio": 8}, unit="b", levels=(0.9, 0.8)
    )
    x = source.of("core", "rope", 8) - source.of("core", "rope", 1, protocol="crop")
    assert ends(found) == pytest.approx([v / 0.5 for v in (*loops(x, 0.9)[:2], loops(x, 0.8)[2])])
    assert found.unit == "b"


def test_the_crop_is_that_of_the_evaluation_that_scored_most(source: Invented) -> None:
    """Another evaluation of the run may have read fewer blocks of each document."""
    crop, plain = {**ROPE, "protocol": "crop"}, {**ROPE, "ratio": 8}
    wanted = checks.difference(source, crop, plain)
    few = [
        {**b, "eval_id": "a0", "tokens": b["tokens"] // 2, "nats": 9.0}
        for b in source.blocks["core"]
        if b["protocol"] == "crop"
    ]
    for blocks in (few + source.blocks["core"], source.blocks["core"] + few):
        source.blocks["core"] = blocks
        assert checks.difference(source, crop, plain) == wanted


def test_b_that_is_not_known_is_not_divided_by(source: Invented) -> None:
    for row in source.rows["core"]:
        row["b"] = ""
    with pytest.raises(NotYet, match="b is not known"):
        checks.difference(source, {**ROPE, "ratio": 1}, {**ROPE, "ratio": 2}, unit="b")


def test_accuracy_is_better_when_higher(source: Invented) -> None:
    source.add("tasks", "rope", {2: 0.4}, correct=True, data="copy", protocol="generated")
    source.add("tasks", "none", {2: 0.9}, correct=True, data="copy", protocol="generated")
    where = {"in": ["tasks"], "data": "copy", "protocol": "generated", "ratio": 2}
    found = checks.difference(
        source, {**where, "preset": "none"}, {**where, "preset": "rope"}, measure="accuracy"
    )
    rows = {"data": "copy", "protocol": "generated"}
    x = source.of("tasks", "none", 2, **rows) - source.of("tasks", "rope", 2, **rows)
    assert ends(found) == pytest.approx(loops(x))
    alone = checks.value(source, {**where, "preset": "none"})
    assert ends(alone) == pytest.approx(loops(source.of("tasks", "none", 2, **rows)))
    assert alone.unit == "accuracy"


def test_a_ratio_of_perplexities(source: Invented) -> None:
    found = checks.ratio(source, {**ROPE, "ratio": 8}, {**ROPE, "ratio": 1})
    x = source.of("core", "rope", 8) - source.of("core", "rope", 1)
    assert ends(found) == pytest.approx([math.exp(v) for v in loops(x)])
    assert found.unit == "times"


def test_an_order_is_as_strong_as_its_weakest_link(source: Invented) -> None:
    rules = [{"rescale": "ntk", "factor": "8"}, {"rescale": "pi", "factor": "8"}, {}]
    found = checks.ordering(source, [{**ROPE, **rule, "ratio": 8} for rule in rules])
    ntk, pi, plain = (source.of("core", "rope", 8, **rule) for rule in rules)
    links = (pi - ntk, plain - pi)
    assert found.effect == pytest.approx(min(loops(x)[0] for x in links))
    assert found.lo == pytest.approx(min(loops(x)[1] for x in links))
    assert found.hi == pytest.approx(min(loops(x, 0.975)[2] for x in links))


def test_the_best_of_others_is_what_the_first_is_compared_with(source: Invented) -> None:
    first, *others = (
        {**ROPE, **rule, "ratio": 4}
        for rule in ({"rescale": "ntk", "factor": "8"}, {}, {"rescale": "pi", "factor": "8"})
    )
    found = checks.best(source, first, others)
    ntk = source.of("core", "rope", 4, rescale="ntk", factor="8")
    pi = source.of("core", "rope", 4, rescale="pi", factor="8")
    assert ends(found) == pytest.approx([*loops(pi - ntk)[:2], loops(pi - ntk, 0.975)[2]])


def test_the_largest_rise_between_neighbours(source: Invented) -> None:
    rough, smooth = ROPE, {**CORE, "preset": "alibi"}
    found = checks.jump(source, smooth, rough, [1, 2, 4, 8])

    def rise(preset: str) -> np.ndarray:
        own = [source.of("core", preset, r) for r in (1, 2, 4, 8)]
        rises = [own[i + 1] - own[i] for i in range(3)]
        return max(rises, key=lambda x: sum(map(sum, x)))

    assert ends(found) == pytest.approx(loops(rise("rope") - rise("alibi")))
    assert 0.4 < found.effect < 0.55  # 3.4 -> 3.9, and next to nothing


# ---- what is missing or wrong


def test_what_is_not_there_yet(source: Invented) -> None:
    one = {**ROPE, "ratio": 1}
    with pytest.raises(NotYet, match="^no runs$"):
        checks.difference(source, {**one, "in": ["schemes"]}, one)
    with pytest.raises(NotYet, match=r"^no row of xpos at 1 L$"):
        checks.difference(source, {**one, "preset": "xpos"}, one)
    source.add("core", "learned", {1: 3.1, 2: "unsupported_length"})
    with pytest.raises(NotYet, match=r"^learned at 2 L: unsupported length$"):
        checks.difference(source, {**CORE, "preset": "learned", "ratio": 2}, one)
    source.blocks["core"] = [b for b in source.blocks["core"] if b["protocol"] != "crop"]
    with pytest.raises(NotYet, match="no blocks of rope crop"):
        checks.difference(source, {**ROPE, "protocol": "crop"}, one)


def test_nothing_in_common(source: Invented) -> None:
    other = Invented()
    other.add("prose", "rope", {1: 2.0}, data="sotu")
    for block in other.blocks["prose"]:
        block["document"] = f"c{block['document']}"
    source.rows |= other.rows
    source.blocks |= other.blocks
    source.found |= other.found
    with pytest.raises(NotYet, match="no seed or no document in common"):
        checks.difference(
            source, {**ROPE, "ratio": 1}, {"in": ["prose"], "data": "sotu", "ratio": 1}
        )


def test_a_selection_means_one_configuration(source: Invented) -> None:
    one = {**ROPE, "ratio": 1}
    biased = {"model": {"qkv_bias": True}}
    source.add("core", "rope", {1: 2.9}, config=biased, model="b")
    with pytest.raises(ConfigError, match="fits 2 configurations; give `in`, or an option"):
        checks.difference(source, one, one)
    found = checks.value(source, {**one, "model.qkv_bias": True}, measure="nll")
    assert found.effect == pytest.approx(float(source.of("core", "rope", 1).mean()))
    assert found.n_seeds == 3
    plain = checks.value(source, {**one, "model.qkv_bias": None}, measure="nll")
    assert plain.effect == pytest.approx(3.0, abs=0.15)
    assert plain.effect != found.effect


def test_a_key_that_is_no_column(source: Invented) -> None:
    with pytest.raises(ConfigError, match="lenght is no column of lengths.csv"):
        checks.value(source, {**ROPE, "lenght": 1}, measure="nll")


def test_a_run_below_its_gate_is_known(source: Invented) -> None:
    source.add("core", "sinusoidal", {1: 3.3}, stamp="demo: below n-gram", tier="demo")
    found = checks.difference(
        source, {**ROPE, "ratio": 1}, {**CORE, "preset": "sinusoidal", "ratio": 1}
    )
    assert found.below == ("sinusoidal of core",)
    assert found.tiers == ("evidence", "demo")


def test_seeds_that_diverged_are_known(source: Invented) -> None:
    """Those of the same configuration; the mean of the others would hide them."""
    for run in source.found["core"].values():
        run["config"] = {"posenc": {"name": run["preset"]}}
    own = {"run_id": "lost", "preset": "rope", "seed": 3, "status": "diverged"}
    larger = {"posenc": {"name": "rope"}, "model": {"d_model": 64}}
    source.found["core"]["lost"] = {**own, "config": larger}
    one = {**ROPE, "ratio": 1}
    assert checks.value(source, one, measure="nll").lost == ()
    del source.found["core"]["lost"]["config"]["model"]
    found = checks.difference(source, one, {**CORE, "preset": "alibi", "ratio": 1})
    assert found.lost == ("rope: 1 of 4 seeds diverged or failed",)
    assert found.n_seeds == 3


def test_a_contrast_is_a_difference_of_differences() -> None:
    source = Invented()
    source.add("core", "t5", {0.5: 3.2, 1: 3.0})
    source.add("core", "sinusoidal", {0.5: 3.3, 1: 3.25})
    places = [
        {"in": ["core"], "preset": preset, "ratio": ratio}
        for ratio in (1, 0.5)
        for preset in ("t5", "sinusoidal")
    ]
    found = checks.contrast(source, places[0], places[1], places[2:])
    x = [source.of("core", one["preset"], one["ratio"]) for one in places]
    assert [found.effect, found.lo, found.hi] == pytest.approx(loops((x[1] - x[0]) - (x[3] - x[2])))
    assert found.effect == pytest.approx(0.15, abs=0.01)
    in_b = checks.contrast(source, places[0], places[1], places[2:], unit="b")
    assert (in_b.effect, in_b.unit) == (pytest.approx(found.effect / 0.5), "b")


def test_who_has_not_learned_a_task_is_below_the_gate() -> None:
    source = Invented()
    for preset, at_length in (("none", 0.99), ("rope", 0.8)):
        curve = {1: at_length, 2: 0.5}
        source.add("tasks", preset, curve, data="copy", protocol="generated", correct=True)
    where = {"in": ["tasks"], "data": "copy", "protocol": "generated", "ratio": 2}
    assert checks.value(source, {**where, "preset": "none"}).below == ()
    found = checks.value(source, {**where, "preset": "rope"})
    assert found.below == ("rope of tasks (its task not learned at L)",)
