"""The run directory: manifest, checkpoint, lock, finding runs, and refusing damaged ones."""

import json
import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posbench import runs
from posbench.errors import DataError, PosbenchError, RunError

Copy = Callable[..., Any]


def damage(path: Path, at: int | None = None) -> None:
    """Change one byte, by default in the middle."""
    content = bytearray(path.read_bytes())
    at = len(content) // 2 if at is None else at
    content[at] ^= 0x40
    path.write_bytes(bytes(content))


def edit(run: Any, change: Callable[[dict[str, Any]], object]) -> Any:
    """The run with its manifest changed on disk."""
    file = run.path / runs.MANIFEST
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_text(json.dumps(manifest))
    return runs.Run.open(run.path)


def test_a_finished_manifest_says_what_the_result_depends_on(trained_here: Any) -> None:
    found = trained_here.manifest
    assert found["run_id"] == trained_here.path.name
    assert found["status"] == "finished"
    assert found["started"] <= found["finished"]
    assert found["schema"] == 1
    assert set(found["code"]) == {"posbench", "commit", "dirty", "sources"}
    assert found["argv"] == ["posbench", "train"]
    assert set(found["environment"]) >= {"python", "torch", "platform", "threads"}
    assert found["config"]["train"]["steps"] == 60 and found["config"]["seed"] == 0
    assert found["data"]["split"]["train"]["tokens"] > 0
    for what in ("content_sha256", "tokenizer_sha256", "targets_sha256"):
        assert len(found["data"][what]) == 64
    assert found["parameters"]["total"] > found["parameters"]["blocks"] > 0
    assert found["parameters"]["positional"] == 0
    assert found["tokens"] == 60 * 4 * 64
    assert 0 < found["val_loss"] < 6
    assert found["seconds"] > 0 and found["tokens_per_s"] > 0
    assert found["device"] == "cpu"
    assert len(found["weights_sha256"]) == 64


@pytest.mark.parametrize("field", ["config_sha256", "dtype", "train_loss"])
def test_a_finished_manifest_has_the_rest_of_the_promised_fields(
    trained_here: Any, field: str
) -> None:
    """The hash of the config, the dtype and the last training loss."""
    assert field in {**trained_here.manifest, **trained_here.manifest["environment"]}


def test_a_run_folder_holds_what_was_typed_and_what_it_needs(trained_here: Any) -> None:
    assert trained_here.manifest["argv"] == ["posbench", "train"]
    names = {p.name for p in trained_here.path.iterdir()}
    assert {"manifest.json", "tokenizer.json", "train.jsonl", "checkpoint"} <= names


def test_settings_come_back_from_the_manifest(trained_here: Any, settings_of: Copy) -> None:
    assert trained_here.config == settings_of(train={"steps": 60, "lr": 5e-3})


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        runs.Run.open(tmp_path / "nothing")
    with pytest.raises(RunError, match="not a run folder"):
        runs.Run.open(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "3", '{"run_id": "x"}', '{"run_id": 1, "status": 2, "config": 3}'],
)
def test_a_damaged_manifest_is_one_clear_line(tmp_path: Path, content: str) -> None:
    (tmp_path / runs.MANIFEST).write_text(content)
    with pytest.raises(RunError, match="manifest.json") as caught:
        runs.Run.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_manifest_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / runs.MANIFEST).write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(RunError, match="manifest.json"):
        runs.Run.open(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["config"]["posenc"].update(name="nosuch"),
        lambda m: m["config"]["posenc"].update(name="../rope"),
        lambda m: m["config"]["posenc"].update(invented=1),
        lambda m: m["config"].pop("posenc"),
        lambda m: m["config"].update(posenc="rope"),
        lambda m: m["config"].update(data=None),
        lambda m: m["config"]["train"].update(steps="many"),
        lambda m: m["config"]["train"].update(steps=-5),
        lambda m: m["config"]["model"].update(d_model=31),
        lambda m: m["config"].update(train=7),
        lambda m: m["config"]["posenc"].update(_target_="os.system"),
    ],
)
def test_settings_that_do_not_fit_are_refused(trained: Any, change: Callable[..., object]) -> None:
    run = edit(trained, change)
    with pytest.raises(RunError, match="manifest.json: settings cannot be read") as caught:
        _ = run.config
    assert "\n" not in str(caught.value)


def test_only_a_finished_run_is_evaluated(trained: Any) -> None:
    trained.require_finished()
    for status in ("running", "interrupted", "diverged", "failed"):
        run = edit(trained, lambda m, status=status: m.update(status=status))
        with pytest.raises(RunError, match=f"not finished .*{status}"):
            run.require_finished()


def test_weights_are_checked(trained: Any) -> None:
    file = trained.weights
    whole = file.read_bytes()
    damage(file)
    with pytest.raises(RunError, match="damaged checkpoint"):
        _ = trained.weights
    file.write_bytes(whole[:-100])
    with pytest.raises(RunError, match="damaged checkpoint"):
        _ = trained.weights
    file.unlink()
    with pytest.raises(RunError, match="checkpoint is missing"):
        _ = trained.weights


def test_the_data_must_be_those_of_the_training(trained: Any, corpus: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "moved"
    shutil.copytree(corpus, elsewhere)
    run = edit(trained, lambda m: m["config"]["data"].update(path=str(elsewhere)))
    assert runs.load_dataset(run).content_sha256 == run.manifest["data"]["content_sha256"]
    with (elsewhere / "doc00.txt").open("a") as file:
        file.write("one more word")
    with pytest.raises(DataError, match="content_sha256.*changed since training"):
        runs.load_dataset(run)
    shutil.rmtree(elsewhere)
    with pytest.raises(DataError, match="data.path"):
        runs.load_dataset(run)


def test_the_tokenizer_must_be_that_of_the_training(trained: Any) -> None:
    file = trained.path / "tokenizer.json"
    whole = file.read_text()
    changed = json.loads(whole)
    vocabulary = changed["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(changed))
    with pytest.raises(DataError, match="tokenizer"):
        runs.load_dataset(trained)
    file.write_text(whole[:100])
    with pytest.raises(DataError, match="tokenizer"):
        runs.load_dataset(trained)
    file.unlink()
    with pytest.raises(DataError, match="tokenizer.json is missing"):
        runs.load_dataset(trained)


def test_find_takes_folders_names_and_folders_of_runs(
    trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = [trained.path.resolve()]
    root = str(tmp_path / "runs")
    for argument in (str(trained.path), str(trained.path.parent), "default"):
        found, unfinished = runs.find([argument], root)
        assert [r.path.resolve() for r in found] == expected and not unfinished
    both = [str(trained.path), "default", str(trained.path.relative_to(tmp_path))]
    assert [r.path.resolve() for r in runs.find(both, root)[0]] == expected


def test_find_sets_unfinished_runs_of_a_folder_apart(trained: Any, tmp_path: Path) -> None:
    other = tmp_path / "runs" / "default" / "half"
    shutil.copytree(trained.path, other)
    runs.Run.open(other).update(status="interrupted")
    found, unfinished = runs.find(["default"], str(tmp_path / "runs"))
    assert [r.path.name for r in found] == [trained.path.name]
    assert [r.path.name for r in unfinished] == ["half"]
    named, nothing = runs.find([str(other)], "runs")
    assert [r.path.name for r in named] == ["half"] and not nothing


def test_find_refuses_what_holds_no_run(trained: Any, tmp_path: Path) -> None:
    root = str(tmp_path / "runs")
    with pytest.raises(RunError, match="nosuch: no such folder, and no name below runs_root"):
        runs.find(["nosuch"], root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="not a run folder"):
        runs.find([str(tmp_path / "empty")], root)
    with pytest.raises(RunError, match="not a run folder"):
        runs.find([str(trained.path / "train.jsonl")], root)


def _write_there(folder: str, answers: Any) -> None:
    try:
        with runs.locked(Path(folder)):
            answers.put("entered")
    except PosbenchError as error:
        answers.put(str(error))


def test_the_lock_refuses_a_second_writer(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with runs.locked(folder):
        with pytest.raises(RunError, match="another process is writing"), runs.locked(folder):
            pass
        context = multiprocessing.get_context("spawn")
        answers = context.Queue()
        other = context.Process(target=_write_there, args=(str(folder), answers))
        other.start()
        assert "another process is writing" in answers.get(timeout=30)
        other.join(30)
    with runs.locked(folder):
        pass


def test_replacing_a_folder(tmp_path: Path) -> None:
    target, aside = tmp_path / "checkpoint", tmp_path / ".checkpoint.new"
    for content in ("first", "second"):
        aside.mkdir()
        (aside / runs.WEIGHTS).write_text(content)
        runs.replace_folder(aside, target)
        assert (target / runs.WEIGHTS).read_text() == content
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_a_checkpoint_whose_swap_was_interrupted_is_found(tmp_path: Path) -> None:
    assert runs.checkpoint_folder(tmp_path) is None
    old = tmp_path / ".checkpoint.old"
    old.mkdir()
    (old / runs.WEIGHTS).write_text("weights")
    assert runs.checkpoint_folder(tmp_path) == old
    (tmp_path / "checkpoint").mkdir()
    assert runs.checkpoint_folder(tmp_path) == old
    (tmp_path / "checkpoint" / runs.WEIGHTS).write_text("weights")
    assert runs.checkpoint_folder(tmp_path) == tmp_path / "checkpoint"


def test_clear_waits_for_no_evaluation_and_takes_none_away(trained: Any) -> None:
    folder = trained.path / "evals" / "e0000000"
    with runs.locked(folder), pytest.raises(RunError, match="e0000000: another process is writing"):
        runs.clear(trained.path)
    assert runs.Run.open(trained.path).weights.is_file() and folder.is_dir()


def test_clear_empties_a_run_folder(trained: Any) -> None:
    runs.clear(trained.path)
    assert {p.name for p in trained.path.iterdir()} <= {".lock"}
