"""Shell completion: options of groups, keys, runs, in the form each shell wants."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posbench import complete, registry


def context(*words: str) -> Any:
    """What typer hands over: the words before the one to complete are in `params`."""
    return SimpleNamespace(params=dict.fromkeys(("overrides", "arguments", "where"), [*words]))


def test_keys_and_groups_are_offered() -> None:
    found = complete.train(context(), [], "")
    assert {"posenc=", "data=", "model=", "optimizer=", "experiment=", "positions="} <= set(found)
    assert {"train.steps=", "train.seq_len=", "model.d_model=", "seed=", "name="} <= set(found)
    assert complete.train(context(), [], "train.st") == ["train.steps="]
    assert complete.train(context(), [], "nosuch") == []


@pytest.mark.parametrize("group", ["posenc", "model", "data", "optimizer", "experiment"])
def test_options_of_a_group(group: str) -> None:
    options = list(registry.options(group))
    assert complete.train(context(), [], f"{group}=") == [f"{group}={o}" for o in options]
    first = options[0]
    assert f"{group}={first}" in complete.train(context(), [], f"{group}={first[:2]}")


def test_bash_splits_words_at_the_equals_sign() -> None:
    options = list(registry.options("posenc"))
    assert complete.train(context("posenc"), [], "") == options  # typed: posenc=
    assert complete.train(context("seed=1", "posenc", "="), [], "al") == ["alibi", "alibi_axial"]
    assert complete.train(context("posenc", "="), [], "zz") == []
    assert complete.eval_lengths(context("rescale", "="), [], "p") == ["pi"]
    assert complete.eval_lengths(context("seed", "="), [], "p") == []


def test_rescalings_and_evaluation_keys() -> None:
    assert complete.eval_lengths(context(), [], "rescale=y") == [
        "rescale=yarn",
        "rescale=yarn_paper",
    ]
    found = complete.eval_lengths(context(), [], "eval.")
    assert {"eval.lengths=", "eval.docs=", "eval.blocks=", "eval.protocol="} <= set(found)
    assert "rescale.factor=" in complete.eval_lengths(context(), [], "rescale.")


def test_a_run_to_go_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete.train(context(), [], "init=") == []
    place = "runs/mine/rope-L64-s0-00000000"
    Path(place).mkdir(parents=True)
    Path(place, "manifest.json").write_text("{}")
    assert complete.train(context(), [], "init=runs/") == [f"init={place}"]
    assert complete.train(context("init"), [], "") == [place]  # bash, nothing typed after '='
    assert complete.train(context("seed=1", "init", "="), [], "runs/m") == [place]
    assert complete.train(context(), [], "init=other") == []
    assert complete.train(context(), [], "ini") == ["init="]
    assert complete.train(context(), [], "rescale=dr") == ["rescale=drope"]
    assert complete.train(context(), [], "base") == []


def test_runs_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete.runs(context(), [], "") == []
    run = Path("runs/mine/rope-L64-s0-00000000")
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    Path("runs/.sweeps").mkdir()
    assert complete.runs(context(), [], "") == ["mine", str(run)]
    assert complete.runs(context(), [], "mi") == ["mine"]
    assert complete.runs(context(), [], "runs/") == [str(run)]
    assert str(run) in complete.eval_lengths(context(), [], "runs/")
    assert complete.runs(context("rescale", "="), [], "y") == []


@pytest.mark.parametrize(
    ("words", "index", "expected"),
    [
        ("posbench train posenc = al", 4, ["alibi", "alibi_axial"]),
        ("posbench train seed = 1 model =", 6, ["base", "small", "tiny"]),
        ("posbench eva", 1, ["eval-lengths"]),
        (
            "posbench eval-lengths rescale = ntk_",
            4,
            ["ntk_by_parts", "ntk_fixed", "ntk_mixed", "ntk_old"],
        ),
    ],
)
def test_the_shell_gets_its_words_without_torch(
    words: str, index: int, expected: list[str], tmp_path: Path
) -> None:
    code = (
        "import sys, atexit\n"
        "heavy = ('torch', 'pandas', 'numpy', 'hydra', 'omegaconf')\n"
        "atexit.register(lambda: print([m for m in heavy if m in sys.modules], file=sys.stderr))\n"
        "sys.argv = ['posbench']\n"
        "from posbench.cli import app\n"
        "app(prog_name='posbench')\n"
    )
    environment = os.environ | {
        "_POSBENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(index),
    }
    options: dict[str, Any] = {"env": environment, "cwd": tmp_path, "text": True}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, **options)
    assert done.stdout.split() == expected, done.stderr
    assert done.stderr.strip() == "[]"
