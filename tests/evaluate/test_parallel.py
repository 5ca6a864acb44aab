"""Several runs by one command: the same bytes from one process or many, failures, interrupts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import files, refused

from posbench import runs, settings, train
from posbench.evaluate import lengths, parallel
from posbench.evaluate import plan as planning

Command = Callable[..., Any]
FEW = ["eval.docs=3", "eval.blocks=2", "eval.threads=1", "eval.memory_limit=1"]
LENGTHS = ["eval.lengths=[64,128]", "rescale=[none,yarn]"]


@pytest.fixture
def several(tmp_path: Path, trained_here: Any, copy_run: Callable[..., Any]) -> list[Path]:
    """Three run folders of other names below `runs/default`."""
    first = copy_run(trained_here).path
    found = []
    for i in range(3):
        found.append(first.with_name(f"run{i}"))
        copy_run(trained_here, root=str(i)).path.rename(found[-1])
    first.rename(tmp_path / "spare")
    return found


def evaluation(run: Path) -> Path:
    (folder,) = (run / "evals").iterdir()
    return folder


def locked(run: Path, sweep: Callable[..., Any]) -> Any:
    """The lock of the evaluation that the command is about to write."""
    rules = [sweep(r, lengths=[64, 128], docs=3, blocks=2) for r in ("none", "yarn")]
    return runs.locked(planning.plan(runs.Run.open(run), rules).folder)


def test_processes_give_the_bytes_of_one_and_a_failure_takes_no_other_along(
    several: list[Path], posbench: Command, sweep: Callable[..., Any], tmp_path: Path
) -> None:
    with locked(several[1], sweep):
        done = posbench("eval-lengths", "default", *LENGTHS, *FEW, "-j", "2")
    assert done.code == 1 and "yarn@auto" in done.out
    assert done.errors[-1].startswith("posbench: error: ") and "another process" in done.errors[-1]
    assert [e for e in done.errors if "error" in e] == done.errors[-1:]
    assert not lengths.is_finished(evaluation(several[1]))
    made = [files(evaluation(several[i])) for i in (0, 2)]
    for i in (0, 2):
        evaluation(several[i]).rename(tmp_path / f"kept{i}")
    with locked(several[1], sweep):
        alone = posbench("eval-lengths", "default", *LENGTHS, *FEW)
    assert alone.code == 1 and alone.errors == done.errors
    assert alone.out == done.out
    assert [files(evaluation(several[i])) for i in (0, 2)] == made


@pytest.mark.parametrize("jobs", ["0", "-1", "two", "1.5", "", "+2"])
def test_a_bad_number_of_jobs_is_one_line(posbench: Command, jobs: str) -> None:
    for given in ([f"--jobs={jobs}"], ["-j", jobs]):
        refused(posbench("eval-lengths", "default", *given), f"--jobs={jobs}", "at least 1")


def test_without_joblib_one_line_says_what_to_install(
    posbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "joblib.externals.loky", None)
    refused(
        posbench("eval-lengths", "default", "-j", "2"), "pip install 'posbench-harness[launch]'"
    )


def test_one_run_needs_no_other_process(
    trained: Any, posbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(parallel, "side_by_side")
    done = posbench("eval-lengths", str(trained.path), *FEW, "eval.lengths=[64]", "--jobs=4")
    assert done.code == 0, done.err


def test_the_error_of_a_run_that_is_alone_keeps_its_exit_code(
    trained: Any, posbench: Command, sweep: Callable[..., Any]
) -> None:
    with locked(trained.path, sweep):
        done = posbench("eval-lengths", str(trained.path), *LENGTHS, *FEW)
    assert done.code == 2 and not done.out and "another process" in done.errors[-1]


def test_a_share_is_what_is_not_given(
    sweep: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel.machine, "cores", lambda: 7)
    monkeypatch.setattr(parallel.score, "memory_limit", lambda gib, device: 6.0 * 2**30)
    open_, given = sweep(threads=None), sweep(threads=5, memory_limit=2.0)
    (own,) = parallel.share([open_], 3)
    assert (own.eval.threads, own.eval.memory_limit) == (2, 2.0)
    assert open_.eval.threads is None
    assert parallel.share([open_], 9)[0].eval.threads == 1
    (own,) = parallel.share([given], 3)
    assert (own.eval.threads, own.eval.memory_limit) == (5, 2.0)
    assert settings.changed(own) == settings.changed(given)


def test_an_error_that_nobody_foresaw_is_kept(
    several: list[Path], posbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = lengths._Scorer._sweep

    def crash(self: Any, key: planning.Key, encoding: Any) -> Any:
        if self.todo.run.path.name == "run1" and key.length == 128:
            raise ZeroDivisionError("by nothing")
        return whole(self, key, encoding)

    monkeypatch.setattr(lengths._Scorer, "_sweep", crash)
    done = posbench("eval-lengths", "default", *LENGTHS, *FEW)
    assert done.code == 1 and "run1: ZeroDivisionError: by nothing (test_par" in done.errors[-1]
    stored = (evaluation(several[1]) / "manifest.json").read_text()
    assert '"failed"' in stored and "Traceback" in stored
    monkeypatch.undo()
    os.chdir(several[0].parents[2])
    assert posbench("eval-lengths", "default", *LENGTHS, *FEW).code == 0


# --- processes that end early ---------------------------------------------------------------------

DEADLY = '''
import os
from dataclasses import dataclass

from posbench.registry import register
from posbench.rescale.base import Rescale


@register
class Deadly(Rescale):
    """Ends the process that measures heads of 8."""

    @dataclass
    class Config:
        pass

    def applied(self, encoding, train_length, test_length):
        if os.environ["STARTED_BY"] != str(os.getpid()) and encoding.geometry.head_dim == 8:
            os._exit(9)
        return encoding
'''


@pytest.mark.slow
def test_a_process_that_dies_takes_no_other_run_along(
    several: list[Path],
    tmp_path: Path,
    settings_of: Callable[..., Any],
    text_data: Any,
    posbench: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = settings_of(model={"n_heads": 4}, train={"steps": 2})
    train.run(config, several[0].with_name("dies"), text_data)
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.setenv("STARTED_BY", str(os.getpid()))
    for variable in ("POSBENCH_PLUGINS", "PYTHONPATH"):
        monkeypatch.setenv(variable, "")
    done = posbench(
        "eval-lengths", "default", "rescale=deadly", *FEW, "eval.lengths=[64]", "-j", "2",
        "--plugin", str(tmp_path / "deadly.py"),
    )  # fmt: skip
    assert done.code == 1, done.err
    assert [e for e in done.errors if "error" in e] == done.errors[-1:]
    assert "dies: its process ended without a word" in done.errors[-1]
    assert all(lengths.is_finished(evaluation(run)) for run in several)


@pytest.mark.slow
@pytest.mark.parametrize(
    "whole_group, number",
    [
        (True, signal.SIGINT),
        (False, signal.SIGINT),
        (True, signal.SIGTERM),
        (False, signal.SIGTERM),
    ],
)
def test_an_interrupt_ends_every_process_and_the_command_goes_on_later(
    several: list[Path], tmp_path: Path, whole_group: bool, number: signal.Signals
) -> None:
    long = ["eval.lengths=[64,512,768,1000]", "rescale=[none,yarn]"]
    command = [sys.executable, "-m", "posbench", "eval-lengths", "default", *long, "eval.threads=1"]
    process = subprocess.Popen(
        [*command, "-j", "2"], cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        started = time.monotonic()
        while len(list(tmp_path.glob("runs/default/*/evals/*/cells.jsonl"))) < 2:
            assert process.poll() is None and time.monotonic() - started < 60
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 2
        if whole_group:  # what a terminal does
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert b"type the same command again" in err and b"Traceback" not in err
    assert len(err.splitlines()) <= 4, err
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert again.returncode == 0, again.stderr
