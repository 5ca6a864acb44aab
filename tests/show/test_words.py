"""What `posbench show` says of a scheme, rescaling or sampler."""

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import posbench
from posbench import registry
from show.conftest import strict

Command = Callable[..., Any]


def test_a_learned_scheme_says_what_its_numbers_are(anywhere: Command) -> None:
    done = anywhere("show", "t5", "seed=4")
    assert "initial values of seed 4" in done.out
    assert re.search(r"max_distance +1024 +auto +128\n", done.out)  # used, default, paper
    assert re.search(r"bias +32 x 8 +mean", done.out)
    properties = strict(anywhere("show", "t5", "seed=4", "--json").out)["properties"]
    assert properties["learned_tables"] == "initial values of seed 4"
    assert properties["parameters"][0]["shape"] == [32, 8]
    assert properties["tied"] == [{"option": "posenc.max_distance", "paper": "128", "used": "1024"}]


def test_a_contextual_scheme_shows_what_it_has(anywhere: Command) -> None:
    out = anywhere("show", "cope").out
    assert "content_bias" in out and "gate_ij = sigmoid(score_ij)" in out
    assert re.search(r"table +4 x 512 x 64 +all 0", out)
    assert "a stream of zeros" in " ".join(anywhere("show", "fox").out.split())


def test_special_cases_and_declared_properties(
    anywhere: Command, shown: Callable[..., dict[str, Any]]
) -> None:
    found = shown("ntk_mixed")["properties"]
    assert {"case": "b = 0", "equals": "pi"} in found["special_cases"]
    assert "pi with b = 0" in anywhere("show", "ntk_mixed").out
    assert shown("alibi")["properties"]["monotone"] is True
    assert shown("sinusoidal")["properties"]["shift_invariant"] is False
    assert shown("learned", "train_length=64")["properties"]["max_length"] == 64
    assert shown("yarn", "factor=8")["properties"]["scale"] == 8


def test_long_tables_are_cut_and_say_so(anywhere: Command) -> None:
    out = anywhere("show", "alibi").out
    assert "15 of 297 rows and 7 of 8 columns, all with --json" in " ".join(out.split())
    assert len(out.splitlines()) < 60
    short = anywhere("show", "alibi", "heads=2", "distances=[0,3]").out
    assert "--json" not in short


def test_turns_of_every_pair(anywhere: Command) -> None:
    """theta_p L / 2 pi at d = 8, L = 2048: 325.9, 32.6, 3.26, 0.326."""
    out = anywhere("show", "rope", "head_dim=8").out
    assert "3 of 4 turn at least once in 2048 tokens" in out
    assert re.search(r"3 +0\.001 +6283\.2 +0\.32595\n", out)
    ratio = anywhere("show", "yarn", "head_dim=8", "factor=4").out
    assert re.search(r"2 +0\.00625 .* 0\.01 +0\.625\n", ratio)


def test_what_follows_the_lengths_is_shown_as_it_is_used(
    shown: Callable[..., dict[str, Any]], anywhere: Command
) -> None:
    """32 turns at L = 2048 are 2 at L = 128; T / L = 512 / 128."""
    out = anywhere("show", "yarn", "train_length=128", "test_length=512", "beta=auto").out
    assert re.search(r"\n  factor +4 +auto\n", out) and re.search(r"\n  beta +2 +32\n", out)
    assert re.search(r"\n  window +64 +auto\n", anywhere("show", "rerope", "train_length=128").out)
    lengths = "train_length=128", "test_length=512"
    found = shown("self_extend", *lengths)["config"]
    assert (found["window"], found["group"]) == (64, 8)  # the least divisor from 448 / 64 on
    assert shown("leaky_rerope", *lengths)["config"]["k"] == pytest.approx(447 / 63)
    assert shown("yarn", *lengths, "factor=8", "beta=3")["config"]["factor"] == 8


def test_a_name_of_two_groups(anywhere: Command) -> None:
    for name in ("none", "logn", "stack"):
        out = anywhere("show", name).out
        assert out.startswith(f"{name} (scheme")
        assert f"also a rescaling: posbench show rescale={name}" in out
        assert anywhere("show", f"rescale={name}").out.startswith(f"{name} (rescaling")
        assert anywhere("show", f"posenc={name}").out.startswith(f"{name} (scheme")
    assert "also" not in anywhere("show", "yarn").out.splitlines()[1]


def test_a_preset(shown: Callable[..., dict[str, Any]], anywhere: Command) -> None:
    found = shown("rope_matched", "train_length=512")
    assert found["config"]["base"] == "matched"
    base = 10000 ** (math.log(512 / (2 * math.pi)) / math.log(4096 / (2 * math.pi)))
    assert found["properties"]["tied"][0]["used"] == str(int(base))
    assert anywhere("show", "rope_matched").out.startswith("rope_matched (preset of rope; rotary")
    assert (
        shown("rope_matched", "base=100")["tables"]["inv_freq"]
        == posbench.tables("rope", base=100)["inv_freq"]
    )


def test_options_that_a_user_must_choose_are_an_example(anywhere: Command) -> None:
    assert "long_factor must be given, and is an example" in anywhere("show", "longrope").out
    given = anywhere("show", "longrope", "head_dim=4", "long_factor=[1,2]")
    assert "example" not in given.out


def test_a_scheme_below_a_rescaling(shown: Callable[..., dict[str, Any]]) -> None:
    found = shown("rescale=logn", "posenc=alibi")
    assert {"bias", "logit_scale", "slopes"} <= set(found["tables"])
    assert found["config"]["posenc"] == "alibi"
    found = shown("yarn", "posenc=stack", "parts=[rope,alibi]", "factor=4")
    assert found["tables"]["inv_freq"] == posbench.tables("yarn", factor=4)["inv_freq"]


def test_one_layer_of_several(shown: Callable[..., dict[str, Any]]) -> None:
    words = ["layers", "pattern=[rope,rope,alibi]", "layers=6"]
    assert set(shown(*words, "layer=1")["tables"]) == {"inv_freq", "rotation_scale"}
    assert set(shown(*words, "layer=5")["tables"]) == {"slopes", "bias"}


def test_a_plug_in_is_shown(posbench: Command, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(registry.PLUGINS, "")
    (tmp_path / "shown_plugin.py").write_text(
        "from posbench.encodings.base import PositionalEncoding\n"
        "from posbench.registry import register\n\n\n"
        "@register\nclass Mine(PositionalEncoding):\n"
        '    """A tenth less a token.\n\n    Set in:\n\n        bias = -n / 10\n    """\n\n'
        "    def distance_bias(self, distance_N, ctx):\n"
        "        return (-distance_N.double() / 10).expand(self.geometry.n_heads, -1)\n"
    )
    words = ["show", "shown_plugin", "--plugin", "shown_plugin.py", "heads=2", "distances=[0,10]"]
    out = posbench(*words).out
    assert out.startswith("shown_plugin (scheme)") and "\n      bias = -n / 10\n" in out
    found = strict(posbench(*words, "--json").out)
    assert found["tables"]["bias"]["values"] == [[0.0, -1.0], [0.0, -1.0]]
