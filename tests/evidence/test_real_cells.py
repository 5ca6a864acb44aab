"""Checks on the cells of runs, against the blocks that the evaluations wrote."""

import csv
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from invented import loops

from posbench.evidence import checks, facts
from posbench.evidence.claims import Claim
from posbench.evidence.decide import decide

TEXT = {"data": "text", "in": ["core"]}


def losses(worked: Any, preset: str, length: int, protocol: str = "same_targets") -> Any:
    """Nats per token [documents][seeds], from blocks.csv of the runs themselves."""
    columns = []
    for seed in range(3):
        (run_id,) = (
            m["run_id"]
            for m in worked.evidence.manifests("core")
            if (m["preset"], m["seed"]) == (preset, seed)
        )
        run = Path(worked.runs_root) / "default" / run_id
        (file,) = run.glob("evals/*/blocks.csv")
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for row in csv.DictReader(file.read_text().splitlines()):
            wanted = (row["rescale"], row["protocol"], int(row["test_len"]))
            if wanted == ("none", protocol, length):
                sums[row["document"]][0] += float(row["nats"])
                sums[row["document"]][1] += float(row["tokens"])
        columns.append({name: nats / tokens for name, (nats, tokens) in sums.items()})
    return [[column[name] for column in columns] for name in sorted(columns[0])]


def minus(a: Any, b: Any) -> Any:
    return [[x - y for x, y in zip(p, q, strict=True)] for p, q in zip(a, b, strict=True)]


def test_a_difference_of_schemes(worked: Any) -> None:
    found = checks.difference(
        worked.evidence,
        {**TEXT, "preset": "alibi", "ratio": 2},
        {**TEXT, "preset": "rope", "ratio": 2},
    )
    wanted = loops(minus(losses(worked, "rope", 128), losses(worked, "alibi", 128)))
    assert [found.effect, found.lo, found.hi] == pytest.approx(wanted, abs=1e-12)
    assert found.n_seeds == 3 and found.tiers == ("demo",)
    assert found.below == ("alibi of core", "rope of core")  # trained for 20 steps


def test_the_crop_of_a_run(worked: Any) -> None:
    rope = {**TEXT, "preset": "rope"}
    found = checks.difference(worked.evidence, {**rope, "protocol": "crop"}, {**rope, "ratio": 2})
    own, crop = losses(worked, "rope", 128), losses(worked, "rope", 64, "crop")
    assert found.effect == pytest.approx(loops(minus(own, crop))[0], abs=1e-12)


def test_options_of_the_run_and_of_the_rescaling(worked: Any) -> None:
    both = {"data": "text", "in": ["core", "normed"], "preset": "rope", "ratio": 2}
    found = checks.difference(
        worked.evidence,
        {**both, "model.qk_norm": True},
        {**both, "model.qk_norm": False, "rescale": "window"},
    )
    assert found.n_seeds == 2
    assert math.isfinite(found.lo)


def test_tasks_by_accuracy(worked: Any) -> None:
    evidence = worked.evidence
    found = checks.value(
        evidence, {"in": ["tasks"], "data": "copy", "protocol": "generated", "ratio": 2}
    )
    rows = evidence.collected("tasks").rows
    wanted = rows[rows["test_len"] == 128]["accuracy"].mean()
    assert found.effect == pytest.approx(wanted)
    assert found.below == ("rope of tasks (its task not learned at L)",)
    assert found.n_docs and found.n_docs >= 20


def test_steps_of_a_fine_tuning(worked: Any) -> None:
    evidence = worked.evidence
    found = facts.steps_until(evidence, {"in": ["tuned"], "rescale.name": "pi"}, limit=4)
    log = evidence.log("tuned")
    steps = []
    for manifest in evidence.manifests("tuned"):
        aim = manifest["extension"]["aim"]
        own = log[log["run_id"] == manifest["run_id"]]
        there = [s for s, x in zip(own["step"], own["target_loss"], strict=True) if x <= aim]
        steps.append(min(there, default=max(own["step"])))
    assert len(steps) == found.n_seeds == 2
    assert found.effect == pytest.approx(4 - sum(steps) / 2)


def test_runs_below_the_gate_decide_nothing(worked: Any) -> None:
    claim = Claim(
        "Z1", "nowhere", "It is so.", "", "none",
        experiments=("core",), check="difference", where={"data": "text", "ratio": 2},
        arguments={"better": {"preset": "alibi"}, "worse": {"preset": "rope"}},
    )  # fmt: skip
    outcome = decide(claim, worked.evidence)
    assert (outcome.verdict, outcome.reason) == (
        "undecided",
        "does not pass the gate: alibi of core, rope of core",
    )
    assert decide(claim, worked.evidence, seeds=4).reason == "3 of 4 seeds"
