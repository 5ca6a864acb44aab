"""Which threads are chosen: from measured rates, once, and kept."""

import json
import sys

import pytest
import torch
from oracles import run_config

from posbench import launch, machine, runs, threads
from posbench.errors import ConfigError

VOCABULARY = 61


@pytest.fixture
def four_cores(monkeypatch, tmp_path):
    """A machine of four cores with an empty cache."""
    monkeypatch.setenv("POSBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(threads, "cores", lambda: 4)


class Rates:
    """A stopwatch of which the answers are known; counts its calls."""

    def __init__(self, rates):
        self.rates, self.asked = rates, []

    def __call__(self, config, vocab_size, jobs, count):
        self.asked.append((jobs, count))
        return self.rates[jobs, count]


def test_halvings():
    assert threads.halvings(1) == [1]
    assert threads.halvings(2) == [2, 1]
    assert threads.halvings(12) == [12, 6, 3, 1]


def test_the_fastest_number_is_chosen_once(four_cores):
    rates = Rates({(1, 4): 300.0, (1, 2): 350.0, (1, 1): 200.0})
    choice = threads.alone(run_config(), VOCABULARY, rates)
    assert (choice.jobs, choice.threads) == (1, 2)
    assert choice.rates == {"1 x 4": 300.0, "1 x 2": 350.0, "1 x 1": 200.0}
    assert rates.asked == [(1, 4), (1, 2), (1, 1)]
    assert threads.alone(run_config(), VOCABULARY, rates) == choice
    assert len(rates.asked) == 3
    threads.alone(run_config(n_layers=3), VOCABULARY, rates)
    assert len(rates.asked) == 6


def test_runs_share_the_cores_in_the_fastest_way(four_cores):
    rates = Rates({(1, 4): 300.0, (2, 2): 420.0, (4, 1): 500.0})
    choice = threads.side_by_side(run_config(), VOCABULARY, 9, rates)
    assert (choice.jobs, choice.threads) == (4, 1)
    assert all(jobs * count <= 4 for jobs, count in rates.asked)
    choice = threads.side_by_side(run_config(), VOCABULARY, 2, rates)
    assert (choice.jobs, choice.threads) == (2, 2)  # no more than there are runs


def test_a_damaged_choice_is_measured_again(four_cores, tmp_path):
    rates = Rates({(1, 4): 1.0, (1, 2): 2.0, (1, 1): 3.0})
    threads.alone(run_config(), VOCABULARY, rates)
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    assert threads.alone(run_config(), VOCABULARY, rates).threads == 1
    assert len(rates.asked) == 6


def test_a_measurement_that_fails_leaves_all_cores(four_cores, tmp_path):
    choice = threads.alone(run_config(), VOCABULARY, Rates({}))
    assert choice == threads.Choice(1, 4, {})
    assert not (tmp_path / "cache").exists()


def test_only_long_runs_on_a_cpu_are_measured(four_cores, monkeypatch):
    config = run_config()
    asked = []
    monkeypatch.setattr(
        threads, "alone", lambda *given: asked.append(given) or threads.Choice(1, 2, {})
    )
    config.train.steps = 2
    assert threads.for_run(config, VOCABULARY, "cpu") is None and not asked
    config.train.steps = 10**7
    assert threads.for_run(config, VOCABULARY, "cuda") is None and not asked
    assert threads.for_run(config, VOCABULARY, "cpu") == 2 and len(asked) == 1
    for given in (3, None):
        config.train.threads = given
        assert threads.for_run(config, VOCABULARY, "cpu") == given
    assert len(asked) == 1


def test_the_stopwatch_works_in_processes_of_its_own(monkeypatch):
    from accelerate.state import PartialState

    before = torch.get_num_threads(), dict(PartialState._shared_state)
    config = run_config()
    config.train.batch_size = 2
    assert threads.tokens_per_second(config, VOCABULARY, 2, 1) > 0
    assert (torch.get_num_threads(), dict(PartialState._shared_state)) == before
    assert config.train.compile == "auto"


def test_a_run_that_goes_on_keeps_its_threads(tmp_path, settings_of, text_data):
    from posbench import train

    config = settings_of(train={"steps": 6, "checkpoint_every": 2, "log_every": 1, "threads": 2})

    def stop(progress):
        if progress.step == 4:
            raise KeyboardInterrupt

    before = torch.get_num_threads()
    try:
        with pytest.raises(KeyboardInterrupt):
            train.run(config, tmp_path, text_data, stop)
        config.train.threads = "auto"
        record = train.run(config, tmp_path, text_data)
    finally:
        torch.set_num_threads(before)
    assert record.manifest["environment"]["threads"] == 2
    assert runs.Run.open(tmp_path).manifest["environment"]["threads"] == 2


def test_words_of_the_command(anywhere, tiny):
    for jobs in ("0", "-1", "two", "1.5"):
        done = anywhere("train", *tiny, "-m", f"--jobs={jobs}")
        assert done.code == 2 and f"--jobs={jobs}" in done.err and "auto" in done.err
    done = anywhere("train", *tiny, "-j", "2")
    assert done.code == 2 and "-m" in done.err
    done = anywhere("train", *tiny, "train.threads=many")
    assert done.code == 2 and "train.threads=many" in done.err


def test_overrides_of_a_sweep_side_by_side(four_cores, monkeypatch):
    class One:
        config = run_config()

        class data:
            class tokenizer:
                vocab_size = VOCABULARY

    assert launch._sharing("1", [One], []) == []
    monkeypatch.setattr(machine, "cores", lambda: 4)
    two = [One, One]
    assert launch._sharing("2", two, []) == [
        "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "train.threads=2",
    ]  # fmt: skip
    assert launch._sharing("9", two, [])[1:] == ["hydra.launcher.n_jobs=2", "train.threads=2"]
    monkeypatch.setattr(threads, "side_by_side", lambda *given: threads.Choice(1, 4, {}))
    assert launch._sharing("auto", two, []) == ["train.threads=4"]
    monkeypatch.setattr(One.config.train, "threads", 3)
    assert launch._sharing("2", two, []) == ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    with pytest.raises(ConfigError, match="--jobs=2 and hydra.launcher.n_jobs=4"):
        launch._sharing("2", two, ["hydra.launcher.n_jobs=4"])


def test_without_the_launcher_one_line_says_what_to_install(monkeypatch, anywhere, tiny):
    for name in ("hydra_plugins.hydra_joblib_launcher", "hydra_plugins"):  # with others, or none
        monkeypatch.setitem(sys.modules, name, None)
        done = anywhere("train", *tiny, "seed=0,1", "-m", "-j", "2")
        assert done.code == 2 and "posbench-harness[launch]" in done.err


def test_what_is_kept_is_plain(four_cores, tmp_path):
    threads.alone(run_config(), VOCABULARY, Rates({(1, 4): 1.0, (1, 2): 2.0, (1, 1): 3.0}))
    (file,) = (tmp_path / "cache").iterdir()
    stored = json.loads(file.read_bytes().partition(b"\n")[2])
    assert stored == {"jobs": 1, "threads": 1, "rates": {"1 x 4": 1.0, "1 x 2": 2.0, "1 x 1": 3.0}}
