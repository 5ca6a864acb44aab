"""Slices of work: what is missing, what is trained again, how a slice ends."""

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posbench.evidence import processes, work
from posbench.evidence.cells import Cells
from posbench.evidence.plan import Evaluation, Experiment

Make = Callable[..., Experiment]


def test_a_slice_leaves_a_cell_for_every_run_and_nothing_missing(small_plan: Any) -> None:
    assert [one.job.experiment for one in small_plan.missing()] == ["core", "core", "tuned"]
    assert small_plan.work() == []
    folders = sorted(path.name for path in (small_plan.root / "cells").iterdir())
    assert sorted(name.split("-L")[0] for name in folders) == ["alibi", "rope", "rope+pi@2"]
    kinds = [command[0] for command in small_plan.commands]
    assert sorted(kinds) == ["eval-lengths"] * 3 + ["train"] * 3
    tuned = next(i for i, c in enumerate(small_plan.commands) if "rescale=pi" in c)
    rope = next(i for i, c in enumerate(small_plan.commands) if "posenc=rope" in c)
    assert rope < tuned


def test_a_cell_names_no_folder_of_the_machine(worked: Any) -> None:
    root = str(worked.runs_root)
    cells = worked.evidence.cells
    found = [path for path in cells.folder.rglob("*.json") if root in path.read_text()]
    assert Path(root).is_absolute() and not found
    (tuned, *_) = [m for m in map(cells.manifest, cells.ids()) if m and "base" in m]
    assert tuned["config"]["init"] == tuned["base"]["path"] == f"default/{tuned['base']['run_id']}"


def test_cells_count_without_the_runs_and_a_new_evaluation_trains_what_it_needs(
    small_plan: Any,
) -> None:
    small_plan.work()
    weights = {m: Cells(small_plan.root / "cells").manifest(m) for m in small_plan.cells.ids()}
    shutil.rmtree(small_plan.runs_root)
    assert small_plan.missing() == []
    assert small_plan.work() == [] and small_plan.commands == []
    tuned = small_plan.experiments["tuned"]
    more = Evaluation(("eval.lengths=[64]", "eval.docs=2"))
    small_plan.experiments["tuned"] = replace(tuned, evals=(*tuned.evals, more))
    left = small_plan.missing()
    # the run that it goes on from comes first, and only because of it
    assert [(one.job.experiment, one.train, len(one.evals)) for one in left] == [
        ("core", True, 0),
        ("tuned", True, 1),
    ]
    assert small_plan.work() == []
    trained = [c for c in small_plan.commands if c[0] == "train"]
    assert [any("init=" in o for o in c) for c in trained] == [False, True]
    # equal settings train the same weights, so the rows that were there stay
    again = Cells(small_plan.root / "cells")
    for run_id, before in weights.items():
        assert again.manifest(run_id)["weights_sha256"] == before["weights_sha256"]
    tuned_id = next(one for one in again.ids() if "pi@2" in one)
    assert len(again.asked(tuned_id)) == 2


def test_rows_of_other_weights_are_measured_again(small_plan: Any) -> None:
    del small_plan.experiments["tuned"]
    small_plan.work()
    shutil.rmtree(small_plan.runs_root)
    run_id = next(one for one in small_plan.cells.ids() if one.startswith("rope"))
    for path in [
        *small_plan.cells.folder_of(run_id).glob("manifest.json"),
        *small_plan.cells.folder_of(run_id).glob("evals/*/manifest.json"),
    ]:  # as if another machine had trained it
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "weights_sha256": "0" * 64}))
    core = small_plan.experiments["core"]
    more = Evaluation(("eval.lengths=[64]", "eval.docs=2"), presets=("rope",))
    small_plan.experiments["core"] = replace(core, evals=(*core.evals, more))
    assert small_plan.work() == []
    cells = Cells(small_plan.root / "cells")
    assert cells.manifest(run_id)["weights_sha256"] != "0" * 64
    assert len(cells.asked(run_id)) == 2
    assert len(list(cells.folder_of(run_id).glob("evals/*"))) == 2


def test_what_went_on_from_other_weights_is_done_again(small_plan: Any) -> None:
    small_plan.work()
    rope, tuned = (
        next(one for one in small_plan.cells.ids() if one.startswith(name))
        for name in ("rope-", "rope+")
    )
    others = json.dumps("0" * 64)
    for path in small_plan.cells.folder.glob(f"{rope}*/**/manifest.json"):
        mine = json.loads(path.read_text())["weights_sha256"]
        path.write_text(path.read_text().replace(json.dumps(mine), others))
    file = small_plan.cells.folder_of(tuned) / "manifest.json"
    file.write_text(file.read_text().replace(json.dumps(mine), others))
    core = small_plan.experiments["core"]
    more = Evaluation(("eval.lengths=[64]", "eval.docs=2"), presets=("rope",))
    small_plan.experiments["core"] = replace(core, evals=(*core.evals, more))
    assert [one.job.experiment for one in small_plan.work()] == ["tuned"]
    assert not file.exists()
    assert small_plan.work() == []
    cells = Cells(small_plan.root / "cells")
    again, base = cells.manifest(tuned), cells.manifest(rope)
    assert again and base
    assert again["config"]["base"]["weights_sha256"] == base["weights_sha256"] != "0" * 64


def test_a_run_that_is_there_is_measured_and_kept_without_training(
    small_plan: Any, tiny: list[str], anywhere: Callable[..., Any]
) -> None:
    del small_plan.experiments["tuned"]
    root = f"runs_root={small_plan.runs_root}"
    assert anywhere("train", "posenc=rope,alibi", "-m", *tiny, root).code == 0
    assert [(one.train, len(one.evals)) for one in small_plan.missing()] == [(False, 1)] * 2
    assert small_plan.work() == []
    assert [command[0] for command in small_plan.commands] == ["eval-lengths"] * 2


def test_a_run_that_diverges_is_kept_as_such_and_not_tried_again(
    small_plan: Any, tiny: list[str], make_experiment: Make
) -> None:
    wild = [*tiny, "posenc=rope", "train.lr=1e30"]
    small_plan.experiments = {"wild": make_experiment("wild", wild, ("eval.lengths=[64]",))}
    assert small_plan.work() == []
    evidence = small_plan.evidence
    assert [m["status"] for m in evidence.manifests("wild")] == ["diverged"]
    assert evidence.runs("wild") == [] and evidence.missing("wild", 1) == []
    assert [command[0] for command in small_plan.commands] == ["train"]
    assert small_plan.work() == [] and small_plan.commands == []


def test_an_error_is_told_and_leaves_the_others_alone(small_plan: Any) -> None:
    core = small_plan.experiments["core"]
    bad = Evaluation(("eval.lengths=[64]", "eval.docs=4000"))
    small_plan.experiments["core"] = replace(core, evals=(bad, *core.evals))
    left = small_plan.work(["core"])
    assert [one.evals for one in left] == [(bad,)] * 2 and not any(one.train for one in left)
    assert any("eval.docs=4000: the targets hold" in line for line in small_plan.said)


def test_an_experiment_that_shares_runs_gets_them_without_work(
    small_plan: Any, tiny: list[str], make_experiment: Make
) -> None:
    small_plan.work(["core"])
    shutil.rmtree(small_plan.runs_root)
    core = small_plan.experiments["core"]
    same = replace(core, name="same", train=(*tiny, "posenc=alibi"))
    small_plan.experiments["same"] = same
    assert small_plan.work(["same"]) == [] and small_plan.commands == []
    assert [path.name[:5] for path in small_plan.evidence.runs("same")] == ["alibi"]
    assert len(small_plan.evidence.runs("core")) == 2


class Endless:
    """A process that runs until it is stopped."""

    def __init__(self) -> None:
        self.stopped = 0

    def poll(self) -> None:
        return None

    def stop(self) -> None:
        self.stopped += 1

    def word(self) -> str:
        return ""


def test_when_the_time_is_over_what_runs_is_stopped_and_nothing_new_begins(
    small_plan: Any,
) -> None:
    begun: list[Endless] = []

    def start(command: tuple[str, ...]) -> Endless:
        begun.append(Endless())
        return begun[-1]

    before = time.monotonic()
    left = work.run(
        small_plan.experiments, small_plan.cells, 1, 0.01, small_plan.said.append,
        runs_root=small_plan.runs_root, start=start,
    )  # fmt: skip
    assert time.monotonic() - before < 20
    assert [one.stopped for one in begun] == [1, 1]
    assert len(left) == 3
    assert sum("interrupted" in line for line in small_plan.said) == 2


@pytest.mark.slow
def test_a_training_that_is_interrupted_goes_on_from_its_checkpoint(
    small_plan: Any, tiny: list[str], make_experiment: Make
) -> None:
    steps = ["train.steps=2000", "train.checkpoint_every=50", "train.log_every=50"]
    own = [*tiny, "posenc=rope", *steps, "train.val_every=500"]
    small_plan.experiments = {"core": make_experiment("core", own, ("eval.lengths=[64]",))}
    (job,) = small_plan.experiments["core"].jobs(1)
    folder = Path(small_plan.runs_root) / "default" / str(job.run_id)

    class UntilSaved:
        """Ctrl-C, as soon as there is a checkpoint."""

        def __init__(self, command: tuple[str, ...]):
            self.inner = processes.started(command)
            self.stop, self.word = self.inner.stop, self.inner.word

        def poll(self) -> int | None:
            if (folder / "checkpoint").is_dir():
                raise KeyboardInterrupt
            return self.inner.poll()

    how: dict[str, Any] = {"runs_root": small_plan.runs_root}
    rest = (small_plan.experiments, small_plan.cells, 1, 2.0, small_plan.said.append)
    with pytest.raises(KeyboardInterrupt):
        work.run(*rest, start=UntilSaved, **how)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "interrupted"
    assert work.run(*rest, **how) == []
    log = (folder / "train.jsonl").read_text().splitlines()
    steps_seen = [json.loads(line)["step"] for line in log]
    assert steps_seen == sorted(set(steps_seen)) and steps_seen[-1] == 2000
    # of two legs the second begins past step 0: its first line is one after a multiple of 50
    assert any(step % 50 == 1 and step > 1 for step in steps_seen)


def test_the_plan_prints_what_is_left_and_its_hours(small_plan: Any) -> None:
    lines = work.plan(small_plan.experiments, small_plan.cells, 1, None, small_plan.runs_root)
    left = small_plan.missing()
    assert lines[0].split()[:5] == ["core", "2", "trainings", "2", "evaluations"]
    assert lines[1].split()[:5] == ["tuned", "1", "trainings", "1", "evaluations"]
    assert lines[2].split()[:5] == ["all", "3", "trainings", "3", "evaluations"]
    assert "2 side by side" in lines[3] and "assumed" in lines[4]
    assert max(map(len, lines)) <= 80
    assert all(one.seconds > 0 and math.isfinite(one.seconds) for one in left)
    small_plan.work()
    assert small_plan.said[:4] == lines[:4]
    after = work.plan(small_plan.experiments, small_plan.cells, 1, None, small_plan.runs_root)
    assert after[0] == "nothing is left to do" and "measured" in after[1]
