"""Verdicts on two results: clear changes are seen, noise is not called a change."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posbench.bench import compare
from posbench.bench.result import Measurement, Result
from posbench.errors import ConfigError

MACHINE = {"cpu": "one", "cores": 2, "torch": "2", "posbench": "0"}
SETTINGS = {"train": {"model": {"d_model": 32}, "train.batch_size": 4}}


def result(
    steps: Any, yardstick: Any, machine: dict[str, Any] | None = None, **more: Measurement
) -> Result:
    """A result with one step time and its yardstick."""
    found = [
        Measurement("train/matmul", "s", list(yardstick)),
        Measurement("train/a/eager", "s", list(steps), "train/a/eager", "train/matmul"),
        *more.values(),
    ]
    return Result(machine or MACHINE, SETTINGS, found)


def draw(generator: np.random.Generator, middle: float, n: int = 7, noise: float = 0.05) -> Any:
    """Times as a machine gives them: never below, often a little and at times far above."""
    slow = generator.random(n) < 0.1
    return middle * (1 + noise * generator.exponential(size=n)) * np.where(slow, 1.5, 1.0)


def verdict(new: Result, old: Result, name: str = "train/a/eager") -> str:
    (change,) = (c for c in compare.compare(new, old).changes if c.name == name)
    return change.verdict


def test_a_clear_change_is_seen_both_ways() -> None:
    seen = []
    for seed in range(100):
        g = np.random.default_rng(seed)
        fast, slow = (result(draw(g, m), draw(g, 1, noise=0.02)) for m in (1.0, 1.6))
        seen.append((verdict(fast, slow), verdict(slow, fast)))
    assert seen.count(("faster", "slower")) >= 90
    assert not {word for pair in seen for word in pair} - {"faster", "slower", "noise"}
    assert all(pair[0] != "slower" and pair[1] != "faster" for pair in seen)


def test_pure_noise_is_seldom_called_a_change() -> None:
    alarms = 0
    for seed in range(2000):
        g = np.random.default_rng(seed)
        new, old = (result(draw(g, 1.0), draw(g, 1.0, noise=0.02)) for _ in range(2))
        alarms += verdict(new, old) != "noise"
    assert alarms / 2000 <= 0.04


def test_a_machine_that_drifts_gives_no_more_alarms_than_the_level() -> None:
    """A session that was 15 % slower as a whole; and raw times alone, without a yardstick."""
    drifted = alone = 0
    for seed in range(2000):
        g = np.random.default_rng(seed)
        old = result(draw(g, 1.0), draw(g, 1.0, noise=0.02))
        new = result(1.15 * draw(g, 1.0), 1.15 * draw(g, 1.0, noise=0.02))
        drifted += verdict(new, old) != "noise"
        noisy = (result([1.0], draw(g, 1.0, noise=0.2)) for _ in range(2))
        alone += verdict(*noisy, "train/matmul") != "noise"
    assert drifted / 2000 <= 0.07
    assert 0.01 <= alone / 2000 <= 0.07


def test_a_machine_that_is_slower_as_a_whole_changes_nothing() -> None:
    """Step and yardstick take twice as long: raw says slower, the yardstick explains it."""
    steps, product = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05], [0.1, 0.101, 0.1, 0.1, 0.101, 0.1]
    old = result(steps, product)
    new = result([2 * x for x in steps], [2 * x for x in product])
    (change,) = (c for c in compare.compare(new, old).changes if c.name == "train/a/eager")
    assert change.raw.low > 1.8 and change.verdict == "noise"
    assert change.normalised is not None and change.normalised.side == 0
    assert verdict(new, old, "train/matmul") == "slower"


def test_on_another_machine_only_the_yardstick_decides() -> None:
    steps = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05]
    old = result(steps, [0.1] * 6)
    same = result([x / 2 for x in steps], [0.05] * 6, MACHINE | {"cpu": "two"})
    slower = result([x / 2 for x in steps], [0.025] * 6, MACHINE | {"cpu": "two"})
    assert verdict(same, old) == "noise"
    assert verdict(slower, old) == "slower"
    remarks = compare.compare(slower, old).remarks
    assert remarks == [
        "cpu: was one, is two",
        "another machine: only ratios to the yardstick decide",
    ]


def test_small_shifts_and_few_samples_are_noise() -> None:
    steady = [1.0, 1.0001, 1.0002, 1.0003, 1.0004, 1.0005]
    assert (
        verdict(result([x * 1.02 for x in steady], [0.1] * 6), result(steady, [0.1] * 6)) == "noise"
    )
    assert (
        verdict(result([x * 1.04 for x in steady], [0.1] * 6), result(steady, [0.1] * 6))
        == "slower"
    )
    few = result([2.0] * 3, [0.1] * 3), result([1.0] * 3, [0.1] * 3)
    assert verdict(*few) == "noise"


def test_peak_memory_is_less_or_more() -> None:
    def with_peak(mib: float) -> Result:
        peak = Measurement("memory/a/64", "bytes", [mib * 2**20], "memory/a/64")
        return result([1.0], [1.0], peak=peak)

    words = [verdict(with_peak(x), with_peak(400), "memory/a/64") for x in (300, 395, 405, 500)]
    assert words == ["less", "noise", "noise", "more"]
    assert verdict(with_peak(1), with_peak(7), "memory/a/64") == "noise"


def test_what_only_one_side_has_is_listed() -> None:
    new = result([1.0], [1.0], b=Measurement("train/b/eager", "s", [1.0]))
    old = result([1.0], [1.0], c=Measurement("train/c/eager", "s", [1.0]))
    old.measurements.append(Measurement("startup/list", "s", [1.0]))
    found = compare.compare(new, old)
    assert (found.only_new, found.only_old) == (["train/b/eager"], ["train/c/eager"])
    assert json.loads(json.dumps(found.plain(), allow_nan=False))["only_new"] == ["train/b/eager"]


def test_other_numbers_of_threads_are_remarked() -> None:
    """`train.threads=auto` may choose anew."""
    new, old = result([1.0], [1.0]), result([1.0], [1.0])
    new.measurements[0].facts["threads"], old.measurements[0].facts["threads"] = 1, 2
    assert compare.compare(new, old).remarks == ["train/matmul: 1 threads, and 2 before"]


def test_other_settings_are_refused_by_name() -> None:
    old = result([1.0], [1.0])
    compare.check(SETTINGS, old, "--against=f")
    compare.check({**SETTINGS, "startup": {"x": 1}}, old, "--against=f")
    other = {"train": {"model": {"d_model": 64}, "train.batch_size": 4}}
    with pytest.raises(ConfigError, match=r"--against=f: .*model\.d_model was 32, is 64"):
        compare.check(other, old, "--against=f")
    with pytest.raises(ConfigError, match="holds train, none of what is measured"):
        compare.check({"startup": {}}, old, "--against=f")


def test_a_result_comes_back_from_its_file(tmp_path: Path) -> None:
    before = result([1.0, 2.0], [0.5, 0.25])
    before.notes.append("train/x/eager: cannot be built")
    before.write(tmp_path / "r.json")
    assert dataclasses.asdict(Result.read(tmp_path / "r.json", "--against")) == dataclasses.asdict(
        before
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("not json", "no JSON"),
        ("[1, 2]", "not a result of posbench bench"),
        ('{"schema": 1}', "not a result of posbench bench"),
        ('{"kind": "posbench bench", "schema": 99}', "schema 99, here 1"),
        ('{"kind": "posbench bench", "schema": 1}', "damaged"),
        (
            '{"kind": "posbench bench", "schema": 1, "environment": {}, "settings": {}, '
            '"notes": [], "measurements": [{"name": "a", "unit": "s", "samples": []}]}',
            "damaged",
        ),
    ],
)
def test_a_file_that_is_no_result_is_one_line(
    content: str | None, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "r.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match="^--against=") as raised:
        Result.read(file, "--against")
    assert words in str(raised.value) and "\n" not in str(raised.value)
