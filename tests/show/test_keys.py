"""Names and keys: what they mean, their defaults, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import refused

import posbench

Command = Callable[..., Any]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["NAME is missing"]),
        (["yran"], ["yran: unknown", "did you mean yarn?", "alibi"]),
        (["rescale=alibi"], ["rescale=alibi: unknown", "known: drope"]),
        (["data=sotu"], ["data=sotu", "a name comes first"]),
        (["head_dim=8", "rope"], ["head_dim=8", "a name comes first"]),
        (["rope", "alibi"], ["alibi", "one name, then key=value"]),
        (["yarn", "fcator=2"], ["fcator=2: no key of yarn", "did you mean factor?", "known: "]),
        (["alibi", "posenc=rope"], ["posenc=rope: no key of alibi"]),
        (["rope", "heads=x"], ["heads=x", "'x' is not a whole number"]),
        (["rope", "heads=0"], ["heads=0: must be at least 1"]),
        (["rope", "heads=1,2"], ["heads=1,2: one value only"]),
        (["rope", "base=[1"], ["base=[1", "not a valid key=value"]),
        (["rope", "+base=3"], ["+base=3"]),
        (["rope", "head_dim=7"], ["even head size"]),
        (["rope", "base=0.5"], ["posenc.base=0.5", "above 1"]),
        (["rope", "heads=2", "head_dim=8", "d_model=10"], ["d_model=10 is not heads=2 times"]),
        (["rope", "d_model=100"], ["d_model=100 is not heads=8 times head_dim=12"]),
        (["rope", "dtype=int8"], ["dtype=int8", "float64, float32, bfloat16, float16"]),
        (["rope", "seed=-1"], ["seed=-1"]),
        (["rope", "layer=4"], ["layer=4: must be below layers=4"]),
        (["rope", "positions=[]"], ["positions=[]: give at least one"]),
        (["rope", "distances=[-1]"], ["distances=[-1]", "negative"]),
        (["rope", "distances=[a]"], ["distances", "'a' is not a whole number"]),
        (["t5", "buckets=2.5"], ["buckets=2.5"]),
        (["rope", "factor=0"], ["factor=0: must be above 0"]),
        (["rope", "factor=much"], ["factor=much: a number, or auto"]),
        (["yarn", "factor=0.5"], ["rescale.factor=0.5: must be at least 1"]),
        (["dynamic_ntk", "factor=2", "test_length=9"], ["factor=2 and test_length=9 contradict"]),
        (["learned", "train_length=64", "positions=[64]"], ["learned is defined for 64 positions"]),
        (["rerope", "test_length=5000"], ["test_length=5000", "up to 4096"]),
        (["yarn", "posenc=alibi"], ["alibi cannot be rescaled by yarn"]),
        (["yarn", "posenc=nosuch"], ["posenc=nosuch: unknown"]),
        (["layers", "pattern=[rope,alibi,none]"], ["must divide"]),
    ],
)  # fmt: skip
def test_refusals_are_one_line(words: list[str], said: list[str], anywhere: Command) -> None:
    refused(anywhere("show", *words), *said)


def test_python_refuses_with_the_same_words() -> None:
    from posbench.errors import ConfigError

    with pytest.raises(ConfigError, match="fcator=2: no key of yarn"):
        posbench.tables("yarn", fcator=2)


def test_defaults_follow_from_each_other(shown: Callable[..., dict[str, Any]]) -> None:
    def sizes(*words: str) -> tuple[int, ...]:
        config = shown("none", *words)["config"]
        return tuple(
            config[k] for k in ("heads", "head_dim", "d_model", "train_length", "test_length")
        )

    assert sizes() == (8, 64, 512, 2048, 8192)
    assert sizes("head_dim=8") == (8, 8, 64, 2048, 8192)
    assert sizes("d_model=96", "heads=3") == (3, 32, 96, 2048, 8192)
    assert sizes("d_model=96", "head_dim=16") == (6, 16, 96, 2048, 8192)
    assert sizes("d_model=96") == (8, 12, 96, 2048, 8192)
    assert sizes("train_length=100", "factor=2.5") == (8, 64, 512, 100, 250)
    assert sizes("train_length=100", "factor=3", "test_length=300")[-1] == 300


def test_the_factor_is_a_rescaling_s_own_and_the_length_s(
    shown: Callable[..., dict[str, Any]],
) -> None:
    found = shown("yarn", "factor=3", "train_length=100")
    assert (found["config"]["factor"], found["config"]["test_length"]) == (3, 300)
    auto = shown("yarn", "test_length=300", "train_length=100")
    assert (auto["config"]["factor"], auto["properties"]["scale"]) == (3, 3)
    assert auto["tables"]["inv_freq"] == found["tables"]["inv_freq"]
    dynamic = shown("dynamic_ntk", "factor=3", "train_length=100")
    assert "factor" not in dynamic["config"] and dynamic["properties"]["scale"] == 3
    fixed = shown("yarn", "factor=3", "train_length=100", "test_length=150")
    assert fixed["tables"]["inv_freq"] == found["tables"]["inv_freq"]


def test_maps_of_positions_are_small_unless_asked(shown: Callable[..., dict[str, Any]]) -> None:
    found = shown("rerope")
    assert (found["config"]["train_length"], found["config"]["test_length"]) == (16, 64)
    assert shown("rerope", "train_length=24")["config"]["test_length"] == 96
    assert "relative_position" not in shown("xpos")["tables"]


def test_python_takes_ranges_arrays_and_tuples() -> None:
    import numpy as np

    listed = posbench.tables("t5", distances=[0, 1, 2])["buckets"]
    for distances in (range(3), (0, 1, 2), np.arange(3)):
        assert posbench.tables("t5", distances=distances)["buckets"] == listed


def test_values_are_typed_like_hydra_s(shown: Callable[..., dict[str, Any]]) -> None:
    words = ["stack", "parts=[rope,'alibi']", "options={rope:{base:500000}}", "head_dim=8"]
    assert shown(*words)["tables"]["inv_freq"] == pytest.approx(
        [500000 ** (-p / 4) for p in range(4)], rel=1e-14
    )
    assert shown("t5", "unscaled=true")["tables"]["logit_scale"]["values"][0] == 8.0
