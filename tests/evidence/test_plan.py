"""The plan: its file, the jobs that it comes apart into, their names."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from posbench import jobs, launch
from posbench.errors import ConfigError
from posbench.evidence import plan, rates

Make = Callable[..., plan.Experiment]
PLAN = plan.load()
FIRST = [name for name, one in PLAN.items() if one.init is None]
ON = [name for name, one in PLAN.items() if one.init is not None]


@cache
def configs(overrides: tuple[str, ...]) -> list[Any]:
    """The settings of every run that a train line describes, without loading data."""
    return [jobs.run_config(cfg, preset) for cfg, preset in launch.train_configs(overrides, True)]


@pytest.mark.parametrize("name", FIRST)
def test_every_line_of_the_plan_composes_at_the_evidence_tier(name: str) -> None:
    found = configs(PLAN[name].train)
    assert found
    for config in found:
        assert config.tier == config.name == "evidence" and config.seed == 0
    presets = {config.preset for config in found}
    for one in PLAN[name].evals:
        assert not one.presets or set(one.presets) & presets


@pytest.mark.parametrize("name", ON)
def test_every_line_that_goes_on_from_a_run_composes(name: str, trained_here: Any) -> None:
    own = PLAN[name]
    found = own.continued("some-run")
    assert found and len({job.key for job in found}) == len(found)
    for job in found:
        ready = launch.prepared([*job.overrides, f"init={trained_here.path}"])
        assert ready.config.base.run_id == trained_here.manifest["run_id"]
        assert ready.config.train.steps != trained_here.config.train.steps


def test_every_evaluation_of_the_plan_parses() -> None:
    given = {one.overrides for own in PLAN.values() for one in own.evals}
    for overrides in given:
        sweeps = launch.sweeps(overrides)
        assert sweeps and all(s.eval.docs is None for s in sweeps)


def test_runs_trained_longer_see_as_many_tokens() -> None:
    compared = 0
    for own in PLAN.values():
        for other in own.long:
            tokens = {
                config.train.steps * config.train.batch_size * config.train.seq_len
                for name in (own.name, other)
                for config in configs(PLAN[name].train)
            }
            lengths = [configs(PLAN[name].train)[0].train.seq_len for name in (own.name, other)]
            data = {configs(PLAN[name].train)[0].data.name for name in (own.name, other)}
            assert len(tokens) == len(data) == 1 and lengths[1] >= 4 * lengths[0]
            compared += 1
    assert compared >= 4


def test_the_core_comes_next_to_the_rates_and_what_others_need_before_them() -> None:
    names = list(PLAN)
    assert names[:2] == [rates.GRID, "core"]
    for own in PLAN.values():
        assert own.init is None or names.index(own.init) < names.index(own.name)


def test_the_grid_has_all_multiples_of_the_base_rate() -> None:
    found = configs(PLAN[rates.GRID].train)
    for preset in {config.preset for config in found}:
        own = [
            config.train.lr * config.model.d_model for config in found if config.preset == preset
        ]
        assert sorted(own) == pytest.approx([0.3, 0.6, 1.2, 2.4])
    assert PLAN[rates.GRID].count(3) == 1


def test_jobs_have_every_seed_and_the_ids_of_their_runs(make_experiment: Make, tiny: list) -> None:
    own = make_experiment("own", [*tiny, "posenc=rope,alibi", "train.lr=0.01,0.02"], seeds=3)
    found = own.jobs(2)
    assert len(found) == 12
    assert [job.config.seed for job in found] == [0] * 4 + [1] * 4 + [2] * 4
    for job in (found[0], found[7], found[-1]):
        assert launch.prepared(job.overrides).folder.name == job.run_id == job.key
    assert own.jobs(4)[-1].config.seed == 3


def test_a_rate_of_the_grid_is_taken_unless_the_run_was_begun_without(
    make_experiment: Make, tiny: list
) -> None:
    own = make_experiment("own", [*tiny, "posenc=rope,alibi"], seeds=2)
    plain = own.jobs(1)
    tuned = own.jobs(1, {"rope": 2.0})
    assert [job.config.train.lr for job in tuned] == pytest.approx([1.2 / 32, 0.6 / 32] * 2)
    assert tuned[1::2] == plain[1::2]
    assert launch.prepared(tuned[2].overrides).folder.name == tuned[2].run_id
    kept = own.jobs(1, {"rope": 2.0}, begun=lambda run_id: run_id == plain[2].run_id)
    assert kept == plain
    aside = make_experiment("own", own.train, seeds=2, tuned=False)
    assert aside.jobs(1, {"rope": 2.0}) == plain
    like = make_experiment("own", own.train, seeds=2, like="t5")
    found = like.jobs(1, {"rope": 2.0, "t5": 4.0})
    assert [job.config.train.lr for job in found] == pytest.approx([2.4 / 32] * 4)


def test_a_fine_tuning_is_named_by_its_options_and_base(make_experiment: Make) -> None:
    own = make_experiment("own", ["rescale=pi,ntk", "rescale.factor=2"], init="core")
    assert own.jobs(3) == []
    first, second = own.continued("a-run")
    assert first.key != second.key and first.base == "a-run" and first.run_id is None
    turned = make_experiment("own", ["rescale.factor=2", "rescale=pi,ntk"], init="core")
    assert [job.key for job in turned.continued("a-run")] == [first.key, second.key]
    assert own.continued("another")[0].key != first.key


def test_an_evaluation_is_named_by_what_it_asks_and_kept_to_its_presets() -> None:
    one = plan.Evaluation(("rescale=pi", "rescale.factor=8"), ("rope",))
    assert one.key == plan.Evaluation(("rescale.factor=8", "rescale=pi")).key
    assert one.key != plan.Evaluation(("rescale.factor=4", "rescale=pi")).key
    rest = plan.Evaluation(("rescale=none",))
    own = plan.Experiment("own", "", (), (one, rest))
    assert own.evaluations("rope") == [one, rest] and own.evaluations("alibi") == [rest]


def test_naming_experiments_brings_what_they_need() -> None:
    found = [one.name for one in plan.named(PLAN, ["extend"])]
    assert found[0] == "core" and found[-1] == "extend" and "trained_long" in found
    assert len(plan.named(PLAN, None)) == len(PLAN)
    with pytest.raises(ConfigError, match="experiment extent is none of rates, core, "):
        plan.named(PLAN, ["extent"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: {about: x, train: [], sed: 3}", "sed is unknown"),
        ("a: {about: x}", "needs about and train"),
        ("a: [1]", "needs about and train"),
        ("a: {about: x, train: [], init: b}", "a names b, which is none of a"),
        ("- a", "a mapping of names"),
        ("a: {", "cannot be read"),
    ],
)
def test_a_bad_plan_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        plan.load(path)
    assert words in str(error.value) and "\n" not in str(error.value)
    assert str(path) in str(error.value)
