"""`posbench check`: names, lines, JSON and exit codes; the same checks in a test file of a user."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from posbench import registry
from posbench.checks import base, contract, names, text
from posbench.checks.base import Result
from posbench.checks.subjects import subject


def made(**changes):
    about = {"group": "posenc", "name": "rope", "check": "norm", "shows": "Turning keeps norms"}
    numbers = {"value": 2.5e-16, "relation": "<=", "bound": 1e-9, "passed": True}
    return Result(**{**about, **numbers, "note": "", "seconds": 0.1, **changes})


def test_every_scheme_rescaling_and_sampler_has_at_least_15_checks():
    few = {(g, n): len(base.applicable(subject(g, n))) for g, n in names.every()}
    assert min(few.values()) >= 15, few


def test_one_line_a_check_within_80_columns(posbench):
    done = posbench("check", "none", "rescale=logn", "standard")
    lines = done.out.splitlines()
    assert done.code == 0
    assert done.err == ""
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.out
    headings = [
        "none (scheme)", "none on 2 axes (scheme)", "none on 3 axes (scheme)", "none (rescaling)",
        "logn (rescaling)", "standard (positions)",
    ]  # fmt: skip
    assert [line for line in lines if line and not line.startswith(" ")][:-1] == headings
    checks = [line for line in lines if line.startswith(("  ok ", "  FAIL "))]
    assert f"{len(checks)} checks of 4 names in" in lines[-1]
    assert lines[-1].endswith("all ok")
    assert all(" <= " in line or " >= " in line for line in checks)


def test_json(posbench):
    done = posbench("check", "posenc=logn", "--json")
    found = json.loads(done.out)
    assert done.code == 0
    assert {(r["group"], r["name"]) for r in found} == {("posenc", "logn")}
    found = json.loads(posbench("check", "sinusoidal", "--json").out)
    (shift,) = [r for r in found if r["check"] == "shift"]
    assert shift["relation"] == ">="
    assert shift["shows"].startswith("not: ")
    assert shift["value"] >= shift["bound"]
    assert set(shift) == {*Result.__dataclass_fields__}


def test_refused_names(posbench):
    done = posbench("check", "ropee")
    assert done.code == 2
    assert "NAME=ropee is unknown (did you mean rope?)" in done.err
    done = posbench("check", "rope_matched")
    assert done.code == 2
    assert "rope_matched is a preset of rope; give that name" in done.err
    done = posbench("check", "rescale=rope")
    assert done.code == 2
    assert "rescale=rope is unknown" in done.err
    done = posbench("check")
    assert done.code == 2
    assert "name a scheme, rescaling or sampler, or give --all" in done.err


def test_a_corpus_has_no_checks(posbench, tmp_path, monkeypatch):
    monkeypatch.setenv(registry.PLUGINS, "")
    place = tmp_path / "my_words.py"
    place.write_text(
        "from posbench.registry import register\n\n\n@register\nclass Words:\n"
        "    group = 'data'\n\n    class Config:\n        pass\n"
    )
    done = posbench("check", "--plugin", str(place))
    assert done.code == 2
    assert "data=my_words: there are no checks for data" in done.err


def test_all_is_everything():
    assert names.asked([], True, []) == names.every()
    assert names.named(["none"]) == [("posenc", "none"), ("rescale", "none")]
    assert names.named(["rescale=none", "none"])[0] == ("rescale", "none")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("relation", ["<=", ">="])
def test_what_is_no_number_fails_and_is_null(value, relation):
    assert not base.Measured(value, 0.0, relation).passed
    assert text.plain(made(value=value))["value"] is None


def test_bounds_belong_to_the_range():
    assert base.at_most(0, 0).passed
    assert base.at_least(1, 1).passed
    assert not base.at_most(1e-300, 0).passed
    assert base.if_declared(True, 1e-10).passed
    assert not base.if_declared(False, 1e-10).passed
    assert base.if_declared(False, 1e-10).note == "holds, so declare it"


def test_colour_and_notes():
    assert text.line(made(), colour=True).startswith("  \x1b[32mok  \x1b[0m norm")
    bad = text.line(made(passed=False, note="word " * 40), colour=True).splitlines()
    assert bad[0].startswith("  \x1b[31mFAIL\x1b[0m norm")
    assert len(bad) == 4
    assert max(map(len, bad[1:])) <= 80


def test_pictures_and_clips_have_headings_of_their_own():
    lines = []
    results = [made(), made(axes=2), made(axes=3, passed=False)]
    assert text.show(results, lines.append) == results
    assert [line for line in lines if "(scheme)" in line] == [
        "rope (scheme)",
        "rope on 2 axes (scheme)",
        "rope on 3 axes (scheme)",
    ]
    assert lines[-1].startswith("3 checks of 1 name in ")
    assert lines[-1].endswith("1 failed (rope on 3 axes: norm)")


def test_a_scheme_is_checked_with_every_number_of_axes_that_it_takes(posbench):
    found = json.loads(posbench("check", "alibi_axial", "--json").out)
    per_axes = {n: [r["check"] for r in found if r["axes"] == n] for n in (1, 2, 3)}
    assert per_axes[1] == []
    assert per_axes[2] == per_axes[3]
    assert {"axes", "larger", "shift", "chunks", "future", "long"} < set(per_axes[2])
    (mark,) = contract("mrope").pytestmark
    ids = {case.id for case in mark.args[1]}
    assert {"posenc=mrope-shift", *(f"posenc=mrope-shift-{n}axes" for n in (2, 3))} < ids
    assert "posenc=mrope-axes" not in ids


def test_an_error_in_a_check_is_a_failure_with_its_words():
    def broken(subject):
        raise ValueError("first line\nsecond")

    one = base.Check("x", ("posenc",), "x", lambda s: True, broken)
    result = base.run(subject("posenc", "none"), one)
    assert not result.passed
    assert result.note == "ValueError: first line"


OWN = '''"""A scheme of one's own."""

from posbench.encodings.base import PositionalEncoding
from posbench.registry import register


@register
class Mine(PositionalEncoding):
    """A penalty of a tenth of the distance; nobody published it."""

    family = "relative bias"
    monotone = {monotone}

    def distance_bias(self, distance_N, ctx):
        return -0.1 * distance_N.double().expand(self.geometry.n_heads, -1)
'''


@pytest.mark.parametrize("monotone", [True, False])
def test_one_line_gives_a_scheme_of_ones_own_every_check(monotone, tmp_path):
    (tmp_path / "mine_alone.py").write_text(OWN.format(monotone=monotone))
    (tmp_path / "test_mine.py").write_text(
        "from posbench.checks import contract\n\n"
        f"test_mine = contract({str(tmp_path / 'mine_alone.py')!r})\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": root, "PATH": ""}
    )
    assert ("1 failed" in done.stdout) == (not monotone), done.stdout
    assert "passed" in done.stdout
    if not monotone:
        assert "test_mine[posenc=mine_alone-monotone]" in done.stdout
        assert "holds, so declare it" in done.stdout
