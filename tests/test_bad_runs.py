"""Bad runs, settings of an evaluation and data that changed: one clear line, nothing written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import refused

Command = Callable[..., Any]
Tree = Callable[[Path], dict[str, Any]]

# --- bad runs -------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(bytes(content))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def manifest(run: Any, change: Callable[[dict[str, Any]], object]) -> None:
    file = run.path / "manifest.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


BAD_RUNS: dict[str, tuple[Callable[[Any], object], list[str]]] = {
    "running": (lambda r: manifest(r, lambda m: m.update(status="running")), ["not finished"]),
    "interrupted": (
        lambda r: manifest(r, lambda m: m.update(status="interrupted")),
        ["not finished", "interrupted"],
    ),
    "flipped checkpoint": (lambda r: flip(r.weights), ["damaged checkpoint"]),
    "truncated checkpoint": (lambda r: truncate(r.weights), ["damaged checkpoint"]),
    "no checkpoint": (lambda r: r.weights.unlink(), ["checkpoint is missing"]),
    "no hash": (lambda r: manifest(r, lambda m: m.pop("weights_sha256")), ["damaged checkpoint"]),
    "truncated manifest": (lambda r: truncate(r.path / "manifest.json"), ["manifest.json"]),
    "manifest of another kind": (
        lambda r: (r.path / "manifest.json").write_text("[1, 2]"),
        ["manifest.json", "damaged"],
    ),
    "manifest without data": (
        lambda r: manifest(r, lambda m: m.pop("data")),
        [],
    ),
    "unknown scheme": (
        lambda r: manifest(r, lambda m: m["config"]["posenc"].update(name="nosuch")),
        ["posenc=nosuch", "rope"],
    ),
    "unknown field": (
        lambda r: manifest(r, lambda m: m["config"]["train"].update(nosuch=1)),
        ["nosuch"],
    ),
    "another shape": (
        lambda r: manifest(r, lambda m: m["config"]["model"].update(n_layers=3)),
        [],
    ),
    "odd head size": (
        lambda r: manifest(r, lambda m: m["config"]["model"].update(d_model=30)),
        ["head"],
    ),
    "another tokenizer": (
        lambda r: flip(r.path / "tokenizer.json"),
        ["tokenizer"],
    ),
    "no tokenizer": (
        lambda r: (r.path / "tokenizer.json").unlink(),
        ["tokenizer.json is missing"],
    ),
    "text gone": (
        lambda r: manifest(r, lambda m: m["config"]["data"].update(path="/nosuch")),
        ["data.path=/nosuch"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_RUNS)
def test_a_bad_run_is_one_line_and_writes_nothing(
    posbench: Command, trained: Any, tree: Tree, tmp_path: Path, case: str
) -> None:
    harm, words = BAD_RUNS[case]
    harm(trained)
    before = tree(tmp_path)
    done = posbench("eval-lengths", str(trained.path), "eval.lengths=[64]")
    refused(done, *words, lines=2)
    if case != "text gone":
        assert str(trained.path) in done.err
    assert tree(tmp_path) == before


def test_a_text_that_changed_after_training(
    posbench: Command, trained: Any, corpus: Path, tree: Tree, tmp_path: Path
) -> None:
    moved = tmp_path / "texts"
    shutil.copytree(corpus, moved)
    manifest(trained, lambda m: m["config"]["data"].update(path=str(moved)))
    flip(moved / "doc03.txt")
    before = tree(tmp_path)
    done = posbench("eval-lengths", "default", "eval.lengths=[64]")
    refused(done, "content_sha256", "changed since training")
    assert tree(tmp_path) == before


BAD_EVALUATIONS = [
    (["eval.lengths=[64,4096]"], ["eval.lengths", "4096", "1024"]),
    (["eval.lengths=[32]"], ["eval.lengths=32", "at least 64"]),
    (["eval.lengths=[]"], ["eval.lengths=[]: give at least one"]),
    (["eval.distances=[]"], ["eval.distances=[]: give at least one"]),
    (["eval.distances=[0]"], ["eval.distances=0"]),
    (["eval.lengths=[long]"], ["eval.lengths", "long"]),
    (["eval.lengths=all"], ["eval.lengths"]),
    (["eval.lengths=64,128"], ["eval.lengths", "list"]),
    (["eval.lengthz=[64]"], ["eval.lengthz", "lengths"]),
    (["train.steps=5"], ["train"]),
    (["eval.docs=-1"], ["eval.docs=-1"]),
    (["eval.docs=1000"], ["eval.docs=1000", "10 documents"]),
    (["eval.blocks=0"], ["eval.blocks=0"]),
    (["eval.blocks=100"], ["eval.blocks=100", "16 blocks"]),
    (["eval.memory_limit=-1"], ["eval.memory_limit=-1"]),
    (["eval.device=abacus"], ["eval.device=abacus"]),
    (["eval.protocol=rolling"], ["eval.protocol=rolling", "same_targets", "nonoverlapping"]),
    (["rescale=linear"], ["rescale=linear", "pi", "yarn"]),
    (["rescale=pi", "rescale.factor=0.5"], ["rescale.factor=0.5"]),
    (["rescale=dynamic_ntk", "rescale.factor=8"], ["rescale.factor", "dynamic_ntk"]),
    (["rescale=dynamic_ntk", "rescale.alpha=0.5"], ["rescale.alpha=0.5"]),
    (["rescale=dynamic_ntk", "rescale.mode=half"], ["rescale.mode=half", "full, incremental"]),
    (["rescale=yarn", "rescale.beta=much"], ["rescale.beta=much"]),
    (["rescale=yarn", "rescale.alpha=64"], ["rescale.alpha=64", "rescale.beta"]),
    (["rescale=yarn", "rescale.truncate=perhaps"], ["rescale.truncate", "perhaps"]),
    (["~rescale"], ["~rescale: rescale cannot be taken away"]),
    (["~eval.lengths"], ["~eval.lengths"]),
]


@pytest.mark.parametrize(
    ("bad", "words"), BAD_EVALUATIONS, ids=[" ".join(b) for b, _ in BAD_EVALUATIONS]
)
def test_a_bad_evaluation_is_one_line_and_writes_nothing(
    posbench: Command, trained: Any, tree: Tree, tmp_path: Path, bad: list[str], words: list[str]
) -> None:
    before = tree(tmp_path)
    refused(posbench("eval-lengths", "default", *bad), *words, lines=2)
    assert tree(tmp_path) == before


def test_a_run_must_be_named_and_be_there(posbench: Command, trained: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(posbench("eval-lengths", "rescale=pi"), "RUN is missing")
    refused(posbench("eval-lengths", "nosuch"), "nosuch", "runs_root=runs")
    refused(posbench("eval-lengths", "empty"), "empty", "not a run folder")
    refused(posbench("report", "nosuch"), "nosuch")
    refused(posbench("report", "empty"), "empty", "not a run folder")


def test_one_bad_run_of_many_stops_all_before_anything_is_written(
    posbench: Command, trained: Any, copy_run: Command, tree: Tree, tmp_path: Path
) -> None:
    other = copy_run(trained, root="others")
    flip(other.weights)
    before = tree(tmp_path)
    done = posbench("eval-lengths", str(trained.path), str(other.path), "eval.lengths=[64]")
    refused(done, "others", "damaged checkpoint")
    assert tree(tmp_path) == before
