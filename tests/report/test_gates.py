"""Whether a run passes: the evaluation that scored most says, and of a fine-tuning its base."""

import json
from pathlib import Path
from typing import Any

import pytest

from posbench.evaluate.references import STAMP
from posbench.report.collect import collect
from posbench.report.gates import gate_of

from .conftest import PLAIN, Runs

CURVE = [27.0, 24.5, 26.3, 29.8, 38.3, 46.9]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("passed", [True, False])
def test_the_evaluation_that_scored_most_says_whether_a_run_passes(
    runs: Runs, passed: bool, known: bool
) -> None:
    """Stamps and verdicts of another one, whose gate says the reverse, are as its gate has it."""
    common: dict[str, Any] = {"ngram": 100.0, "b": 0.5, "gain_b_lo": -0.3, "gain_b_hi": -0.2}
    few = runs.add(
        "rope", {PLAIN: CURVE}, stamp=STAMP if passed else "", protocol="nonoverlapping",
        targets_hash="few", **common,
    )  # fmt: skip
    most = runs.add(
        "rope", {PLAIN: CURVE}, stamp="" if passed else STAMP, evaluation="e0000001", **common
    )
    assert few == most
    for name, blocks, own in (("e0000000", 4, not passed), ("e0000001", 8, passed)):
        path = few / "evals" / name / "manifest.json"
        gate: dict[str, Any] = {"passed": own, "margin": 0.2}
        asked = {"blocks": blocks}
        if known:  # few blocks of all documents, or many of nearly all
            gate["n_docs"] = 24 + (blocks == 4)
            asked = {"blocks": 1} if blocks == 4 else {"blocks": 8, "docs": 24}
        content = json.loads(path.read_text()) | {"gate": gate, "eval": asked}
        path.write_text(json.dumps(content))
    found = collect([few]).rows
    other = found[found["protocol"] == "nonoverlapping"]
    assert set(found["passed"]) == {passed}
    assert set(found["stamp"]) == {"" if passed else STAMP}
    past = other["test_len"] > other["train_len"]
    assert set(other["verdict"][past]) == {"degrades" if passed else ""}
    assert set(other["verdict"][~past]) == {""}
    only = collect([few], [few / "evals" / "e0000000"]).rows
    assert set(only["passed"]) == {passed}


@pytest.mark.parametrize(
    ("length", "own", "first", "passed"),
    [
        (512, {"passed": False, "margin": 0.2}, {"passed": True, "margin": 0.2}, True),
        (512, {"passed": False, "margin": 0.04}, {"passed": True, "margin": 0.2}, False),
        (512, {"passed": False, "margin": 0.2}, {"passed": False, "margin": 0.2}, False),
        (512, {"passed": True, "margin": 0.2}, {"passed": False, "margin": 0.2}, True),
        (512, {"passed": False, "reason": "not measured"}, {"passed": True, "margin": 1}, False),
        (512, {"passed": False, "margin": 0.2}, None, False),
        (64, {"passed": False, "margin": 0.2}, {"passed": True, "margin": 0.2}, False),
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_longer_windows_need_not_be_of_use_to_a_fine_tuning(
    tmp_path: Path, length: int, own: Any, first: Any, passed: bool, elsewhere: bool
) -> None:
    """It passes as the run that it goes on from, if it beats the n-gram model itself."""

    def add(folder: Path, gate: Any, **facts: Any) -> None:
        manifest = {"run_id": folder.name, "weights_sha256": folder.name, **facts}
        evaluation = {"weights_sha256": folder.name, "gate": gate}
        for place, content in ((folder, manifest), (folder / "evals/e", evaluation)):
            place.mkdir(parents=True)
            (place / "manifest.json").write_text(json.dumps(content))

    where = tmp_path / "other" if elsewhere else tmp_path
    base = {"run_id": "first", "train_length": 64, "path": str(where / "first")}
    add(where / "first", first, config={"train": {"seq_len": 64}})
    add(tmp_path / "tuned", own, config={"train": {"seq_len": length}}, base=base)
    assert gate_of(tmp_path / "tuned")["passed"] is passed
