"""The loop: repeatable, resumable bit by bit, honest about how it ended.

Over 320 lines and not split: all of it watches one loop by the same few helpers.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from posbench import devices, optim, runs, train
from posbench.data import windows
from posbench.errors import ConfigError, DataError, RunError, TrainingFailed

Make = Callable[..., Any]
#: a run whose loop stops, logs and saves often
OFTEN = {"steps": 10, "log_every": 1, "checkpoint_every": 4, "val_every": 5}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / runs.CHECKPOINT / runs.WEIGHTS)


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / train.LOG).read_text().splitlines()]


def stop_at(step: int, error: type[BaseException] = KeyboardInterrupt) -> Callable[..., None]:
    """A report function that raises at a step."""

    def report(progress: train.Progress) -> None:
        if progress.step == step:
            raise error("stopped by the test")

    return report


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("posenc", ["rope", "t5"])
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(
    tmp_path: Path, settings_of: Make, text_data: Any, optimizer: str, posenc: str
) -> None:
    config = settings_of(posenc, train=OFTEN, optimizer={"name": optimizer})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train.run(config, whole, text_data)
    for step in (3, 6, 9):  # before the first checkpoint, after it, after the second
        with pytest.raises(KeyboardInterrupt):
            train.run(config, parts, text_data, stop_at(step))
        assert runs.Run.open(parts).status == "interrupted"
    record = train.run(config, parts, text_data)
    assert record.status == "finished"
    assert same(weights(whole), weights(parts))
    assert record.manifest["weights_sha256"] == runs.Run.open(whole).manifest["weights_sha256"]
    assert record.manifest["val_loss"] == runs.Run.open(whole).manifest["val_loss"]
    assert [line["step"] for line in log(parts)] == list(range(1, 11))
    for a, b in zip(log(whole), log(parts), strict=True):
        assert {**a, "tokens_per_s": 0} == {**b, "tokens_per_s": 0}


def test_a_resumed_run_logs_ordered_steps(
    tmp_path: Path, settings_of: Make, text_data: Any
) -> None:
    config = settings_of(train=OFTEN | {"steps": 13, "log_every": 3, "checkpoint_every": 5})
    with pytest.raises(KeyboardInterrupt):
        train.run(config, tmp_path, text_data, stop_at(9))
    train.run(config, tmp_path, text_data)
    steps = [line["step"] for line in log(tmp_path)]
    assert steps == sorted(set(steps)) and steps[-1] == 13
    assert {3, 6, 9, 12} <= set(steps)


def test_a_run_stopped_after_its_last_checkpoint_is_finished_by_the_next_call(
    tmp_path: Path, settings_of: Make, text_data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings_of(train=OFTEN)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train.run(config, whole, text_data)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train._Loop, "_finish", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        train.run(config, parts, text_data)
    record = train.run(config, parts, text_data)
    assert record.status == "finished"
    assert record.manifest["val_loss"] == runs.Run.open(whole).manifest["val_loss"]
    assert same(weights(whole), weights(parts))
    assert len(log(parts)) == len(log(whole))


def test_equal_settings_give_identical_weights_and_another_seed_others(
    tmp_path: Path, settings_of: Make, text_data: Any
) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train.run(settings_of(seed=seed), tmp_path / name, text_data)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_every_validation_is_logged(tmp_path: Path, settings_of: Make, text_data: Any) -> None:
    rare = {"steps": 10, "log_every": 4, "val_every": 3}
    train.run(settings_of(train=rare), tmp_path, text_data)
    found = {line["step"]: line["val_loss"] for line in log(tmp_path)}
    assert [*found] == [1, 3, 4, 6, 8, 9, 10]
    assert [step for step, loss in found.items() if loss is not None] == [3, 6, 9, 10]


def test_a_loss_that_is_no_number_is_named(
    tmp_path: Path, settings_of: Make, text_data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train._Loop, "_validate", lambda loop: math.nan)
    rare = {"steps": 10, "log_every": 4, "val_every": 3}
    with pytest.raises(TrainingFailed, match="the validation loss is nan at step 3; try a lower"):
        train.run(settings_of(train=rare), tmp_path, text_data)


def test_how_often_to_log_validate_and_save_changes_nothing(
    tmp_path: Path, settings_of: Make, text_data: Any
) -> None:
    train.run(settings_of(), tmp_path / "a", text_data)
    often = {"log_every": 1, "val_every": 1, "checkpoint_every": 1}
    train.run(settings_of(train=often), tmp_path / "b", text_data)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_the_batch_is_a_function_of_seed_and_step(text_data: Any) -> None:
    def batch(seed: int, step: int, size: int = 4) -> np.ndarray:
        return np.stack(windows.training_batch(text_data, 64, size, seed, step))

    first = batch(0, 7)
    batch(0, 8), batch(3, 7)
    assert (batch(0, 7) == first).all()
    assert (batch(0, 8) != first).any() and (batch(1, 7) != first).any()
    assert (first[0][:, 1:] == first[1][:, :-1]).all()


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        (runs.WEIGHTS, "cut"),
        (runs.WEIGHTS, "flip"),
        (runs.WEIGHTS, "empty"),
        ("optimizer.pt", "cut"),
        ("optimizer.pt", "empty"),
        ("optimizer.pt", "gone"),
    ],
)
def test_a_damaged_checkpoint_of_an_unfinished_run_restarts_from_zero(
    tmp_path: Path, settings_of: Make, text_data: Any, file: str, harm: str
) -> None:
    config = settings_of(train=OFTEN)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train.run(config, whole, text_data)
    with pytest.raises(KeyboardInterrupt):
        train.run(config, parts, text_data, stop_at(6))
    path = parts / runs.CHECKPOINT / file
    content = bytearray(path.read_bytes())
    if harm == "gone":
        path.unlink()
    elif harm == "flip":
        content[-1001] ^= 0x40  # inside a weight: the file still reads well
        path.write_bytes(bytes(content))
    else:
        path.write_bytes(bytes(content[: len(content) - 500 if harm == "cut" else 0]))
    seen: list[int] = []
    train.run(config, parts, text_data, lambda p: seen.append(p.step))
    assert seen == list(range(1, 11))
    assert [line["step"] for line in log(parts)] == seen
    assert same(weights(whole), weights(parts))


def test_a_torn_log_line_is_dropped_on_resume(
    tmp_path: Path, settings_of: Make, text_data: Any
) -> None:
    config = settings_of(train=OFTEN)
    with pytest.raises(KeyboardInterrupt):
        train.run(config, tmp_path, text_data, stop_at(5))
    with (tmp_path / train.LOG).open("a") as file:
        file.write('{"step": 6, "lo')
    train.run(config, tmp_path, text_data)
    assert [line["step"] for line in log(tmp_path)] == list(range(1, 11))


def test_the_manifest_says_running_while_it_runs_and_a_second_writer_is_refused(
    tmp_path: Path, settings_of: Make, text_data: Any
) -> None:
    config, seen = settings_of(), []

    def report(progress: train.Progress) -> None:
        seen.append(runs.Run.open(tmp_path).status)
        before = (tmp_path / runs.MANIFEST).read_bytes()
        with pytest.raises(RunError, match="another process is writing"):
            train.run(config, tmp_path, text_data)
        assert (tmp_path / runs.MANIFEST).read_bytes() == before

    record = train.run(config, tmp_path, text_data, report)
    assert set(seen) == {"running"} and record.status == "finished"


def test_an_error_in_the_loop_is_recorded_as_failed(
    tmp_path: Path, settings_of: Make, text_data: Any
) -> None:
    with pytest.raises(ZeroDivisionError):
        train.run(settings_of(), tmp_path, text_data, stop_at(1, ZeroDivisionError))
    manifest = runs.Run.open(tmp_path).manifest
    assert manifest["status"] == "failed" and "ZeroDivisionError" in manifest["error"]
    assert train.run(settings_of(), tmp_path, text_data).status == "finished"


def test_a_loss_that_is_not_finite_stops_the_run_as_diverged(
    tmp_path: Path, settings_of: Make, text_data: Any
) -> None:
    with pytest.raises(TrainingFailed, match="train.lr") as caught:
        train.run(settings_of(train={"lr": 1e30}), tmp_path, text_data)
    assert caught.value.exit_code == 1
    manifest = runs.Run.open(tmp_path).manifest
    assert manifest["status"] == "diverged" and manifest["finished"]
    assert "weights_sha256" not in manifest


def test_an_earlier_failure_leaves_no_trace_in_a_finished_manifest(
    tmp_path: Path, settings_of: Make, text_data: Any
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train.run(settings_of(), tmp_path, text_data, stop_at(1))
    assert "error" not in train.run(settings_of(), tmp_path, text_data).manifest


def test_training_lowers_the_loss(trained_here: Any) -> None:
    lines = log(trained_here.path)
    assert lines[0]["step"] == 1 and lines[-1]["step"] == 60
    assert lines[-1]["loss"] < 0.6 * lines[0]["loss"]
    assert lines[-1]["val_loss"] == trained_here.manifest["val_loss"]
    assert abs(lines[0]["loss"] - math.log(256)) < 2


def test_the_validation_loss_is_the_mean_over_fixed_windows(
    trained_here: Any, text_data: Any
) -> None:
    from posbench import model as models

    model = models.build(trained_here.config, 256)
    models.load_weights(model, trained_here.weights)
    x, y = (torch.from_numpy(a) for a in windows.validation_windows(text_data, 64, 8))
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
    assert trained_here.manifest["val_loss"] == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize(("steps", "warmup", "decay"), [(10, 0.2, 0.5), (7, 0.0, 0.0), (5, 1, 0)])
def test_the_rate_rises_stays_and_falls(
    settings_of: Make, steps: int, warmup: float, decay: float
) -> None:
    config = settings_of(train={"steps": steps, "warmup": warmup, "decay": decay}).train
    rates = [optim.rate(config, step) for step in range(steps)]
    assert max(rates) == pytest.approx(1.0) and min(rates) > 0
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    if decay:
        assert rates[-1] == pytest.approx(config.final_lr)


def test_two_precisions_in_one_process(tmp_path: Path, settings_of: Make, text_data: Any) -> None:
    """A sweep over train.precision runs its jobs one after the other."""
    for precision in ("float32", "bf16", "float32"):
        config = settings_of(train={"precision": precision, "steps": 2})
        assert train.run(config, tmp_path / precision, text_data).status == "finished"
    assert not same(weights(tmp_path / "float32"), weights(tmp_path / "bf16"))


def test_the_device_is_checked() -> None:
    assert devices.pick("cpu", "train.device") == torch.device("cpu")
    assert devices.pick("auto", "train.device").type in ("cpu", "cuda", "mps")
    for name in ("abacus", "meta:x", "cuda:99"):
        with pytest.raises(ConfigError, match=f"train.device={name}"):
            devices.pick(name, "train.device")


def test_a_training_length_that_no_document_holds(text_data: Any) -> None:
    with pytest.raises(DataError, match="train.seq_len=4096"):
        windows.training_batch(text_data, 4096, 1, 0, 0)


def test_a_damaged_finished_run_is_not_reused(
    tiny: list[str], posbench: Callable[..., Any], tmp_path: Path
) -> None:
    posbench("train", "posenc=none", *tiny)
    weights = next((tmp_path / "runs").rglob("model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    again = posbench("train", "posenc=none", *tiny)
    assert again.code == 1 and "--fresh" in again.err and again.out.startswith("failed")
    assert posbench("train", "posenc=none", "--fresh", *tiny).code == 0


def test_a_checkpoint_survives_two_interrupted_swaps(tmp_path: Path) -> None:
    """First kill between the two renames, second one before the next swap has moved anything."""
    target = tmp_path / runs.CHECKPOINT
    old = tmp_path / f".{runs.CHECKPOINT}.old"
    old.mkdir()
    (old / runs.WEIGHTS).write_text("1")
    aside = tmp_path / f".{runs.CHECKPOINT}.new"
    aside.mkdir()
    (aside / runs.WEIGHTS).write_text("2")
    assert runs.checkpoint_folder(tmp_path) == old
    with pytest.raises(OSError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.os, "replace", _killed)
        runs.replace_folder(aside, target)
    assert runs.checkpoint_folder(tmp_path) == old
    runs.replace_folder(aside, target)
    assert (runs.checkpoint_folder(tmp_path) / runs.WEIGHTS).read_text() == "2"  # type: ignore[operator]


def _killed(*paths: Path) -> None:
    raise OSError


def test_seconds_add_up_over_legs(tmp_path: Path, settings_of: Make, text_data: Any) -> None:
    config = settings_of(train={"steps": 4, "checkpoint_every": 2, "log_every": 1})

    def stop(progress: Any) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.run(config, tmp_path / "run", text_data, stop)
    states = torch.load(tmp_path / "run" / runs.CHECKPOINT / "optimizer.pt", weights_only=True)
    states["seconds"] = 1000.0
    torch.save(states, tmp_path / "run" / runs.CHECKPOINT / "optimizer.pt")
    assert 1000 <= train.run(config, tmp_path / "run", text_data).manifest["seconds"] < 1100
