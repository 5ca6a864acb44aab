"""Broken copies of five schemes fail `posbench check`, at the check that is meant for the fault."""

import json
from pathlib import Path

import pytest

from posbench import registry

BROKEN = Path(__file__).parent / "broken"

#: file -> the check that must fail, and those that may fail with it
MEANT = {
    "t5_shifted": ("buckets", set()),
    "yarn_inverted": ("ramp", {"ends"}),
    "rope_transposed": ("frequencies", {"positions", "rescaling"}),
    "sandwich_cached": (
        "order",
        {"prefix", "apart", "chunks", "steps", "positions", "pointwise", "batches", "of_distance"},
    ),
    "fox_ahead": ("future", {"prefix", "apart", "steps", "unseen", "monotone", "reductions"}),
}


@pytest.mark.parametrize("name", MEANT)
def test_a_broken_copy_fails_the_check_that_is_meant_for_it(name, posbench, monkeypatch):
    monkeypatch.setenv(registry.PLUGINS, "")
    done = posbench("check", name, "--plugin", str(BROKEN / f"{name}.py"), "--json")
    failed = {r["check"] for r in json.loads(done.out) if not r["passed"]}
    meant, also = MEANT[name]
    assert done.code == 1
    assert meant in failed
    assert failed <= {meant, *also}


def test_every_broken_file_is_tried():
    assert {p.stem for p in BROKEN.glob("*.py")} == set(MEANT)


def test_what_fails_is_said_in_words(posbench, monkeypatch):
    monkeypatch.setenv(registry.PLUGINS, "")
    done = posbench("check", "--plugin", str(BROKEN / "t5_shifted.py"))
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[0] == "t5_shifted (scheme)"
    (at,) = [i for i, line in enumerate(lines) if line.startswith("  FAIL buckets")]
    assert lines[at + 1].strip().startswith("distance 0 has bucket 1")
    assert lines[-1].endswith("1 failed (t5_shifted: buckets)")
