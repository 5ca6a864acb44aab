"""The commands seen from outside: answers at once, and every bad input is one clear line.

Over 320 lines and not split: the list of bad settings, a third of it, is one table, which the tests
around it read.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import refused
from typer.testing import CliRunner

from posbench import __version__, cli, registry, runs

Command = Callable[..., Any]
Tree = Callable[[Path], dict[str, Any]]
HEAVY = ("torch", "pandas", "matplotlib", "scipy", "hydra", "omegaconf", "numpy", "sympy")


def python(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **options)


# --- answers without the heavy libraries ----------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["train", "--help"], ["eval-lengths", "--help"], ["report", "--help"], ["list"],
     ["list", "--json"], ["--version"]],
)  # fmt: skip
def test_help_and_list_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, atexit\n"
        f"sys.argv = ['posbench', *{arguments!r}]\n"
        f"heavy = {HEAVY!r}\n"
        "atexit.register(lambda: print([m for m in heavy if m in sys.modules], file=sys.stderr))\n"
        "from posbench.cli import main\n"
        "main()\n"
    )
    done = python("-c", code)
    assert done.returncode == 0 and done.stdout
    assert done.stderr.strip() == "[]"


def test_help_answers_in_half_a_second() -> None:
    best = 9.0
    for _ in range(5):
        began = time.perf_counter()
        done = python("-m", "posbench", "--help")
        best = min(best, time.perf_counter() - began)
        assert done.returncode == 0
        for name in ("train", "eval-lengths", "report", "list", "config"):
            assert name in done.stdout
        if best < 0.5:
            break
    assert best < 0.5


def test_version() -> None:
    done = CliRunner().invoke(cli.app, ["--version"])
    assert done.exit_code == 0 and done.stdout == f"posbench {__version__}\n"


def test_list_shows_every_name_and_preset() -> None:
    text = CliRunner().invoke(cli.app, ["list"]).stdout
    for group in registry.KINDS:
        assert f"({group}=)" in text
        for name in registry.options(group):
            assert f"\n  {name} " in text
    assert "arXiv:2104.09864" in text
    assert max(map(len, text.splitlines())) <= 80


def test_list_as_json_has_the_same_entries() -> None:
    entries = json.loads(CliRunner().invoke(cli.app, ["list", "--json"]).stdout)
    found = {(e["option"], e["name"]) for e in entries}
    assert found == {(g, n) for g in registry.KINDS for n in registry.options(g)}
    assert all(set(e) == {"kind", "option", "name", "family", "paper", "summary"} for e in entries)


def test_a_command_is_needed(anywhere: Callable[..., Any]) -> None:
    done = anywhere()
    assert (
        done.code == 2
        and "Usage: " in done.out + done.err
        and "eval-lengths" in done.out + done.err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["report", "--output", "x"], "No such option: --output"),
        (["claims", "--minutes", "soon"], "Invalid value for '--minutes'"),
        (["report", "--out"], "Option '--out' requires an argument"),
        (["check", "--json=3"], "Option '--json' does not take a value"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line(
    words: list[str], said: str, anywhere: Callable[..., Any]
) -> None:
    done = anywhere(*words)
    assert done.code == 2 and not done.out
    (line,) = done.err.splitlines()
    assert line.startswith(f"posbench: error: {said}") and line.endswith("--help)")


# --- the composed config --------------------------------------------------------------------------


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def test_config_train_prints_yaml_that_composes_back(posbench: Command) -> None:
    typed = ["posenc=rope_matched", "model=small", "train.steps=7", "optimizer=muon", "seed=3"]
    done = posbench("config", "train", *typed)
    assert done.code == 0 and not done.err
    printed = yaml.safe_load(done.out)
    assert printed["posenc"] == {"name": "rope", "base": "matched"}
    assert printed["preset"] == "rope_matched"
    assert (printed["model"]["d_model"], printed["train"]["steps"]) == (384, 7)
    assert "hydra" not in printed
    groups = {"posenc": "rope_matched", "optimizer": "muon"}
    values = {k: v for k, v in flat(printed).items() if not k.endswith((".name", "preset"))}
    again = [f"{k}={v}" for k, v in groups.items()]
    again += [f"{k}={json.dumps(v)}" for k, v in values.items()]
    assert yaml.safe_load(posbench("config", "train", *again).out) == printed


def test_config_train_prints_one_document_per_job(posbench: Command) -> None:
    done = posbench("config", "train", "posenc=alibi,none", "-m")
    found = list(yaml.safe_load_all(done.out))
    assert [d["posenc"]["name"] for d in found] == ["alibi", "none"]


def test_config_train_shows_tied_values(posbench: Command) -> None:
    done = posbench("config", "train", "posenc=t5", "train.seq_len=256")
    assert "# posenc.max_distance is 128 at train.seq_len=256 (paper: 128)" in done.out


def test_config_eval_lengths_prints_one_document_per_combination(posbench: Command) -> None:
    done = posbench("config", "eval-lengths", "rescale=[pi,yarn]")
    found = list(yaml.safe_load_all(done.out))
    assert [d["rescale"]["name"] for d in found] == ["pi", "yarn"]
    assert found[0]["eval"]["protocol"] == "same_targets"
    done = posbench("config", "eval-lengths", "rescale=pi", "rescale.factor=[8,auto]")
    assert [d["rescale"]["factor"] for d in yaml.safe_load_all(done.out)] == [8, "auto"]


def test_nothing_is_written_by_config(posbench: Command, tmp_path: Path) -> None:
    posbench("config", "train")
    posbench("config", "eval-lengths")
    assert not os.listdir(tmp_path)


# --- bad input: one clear line, exit code 2, nothing written --------------------------------------


KNOWN = ["alibi", "learned", "none", "rope", "rope_matched", "sinusoidal", "t5"]
BAD_SETTINGS = [
    (["posenc=rotary"], ["posenc=rotary is unknown", *KNOWN]),
    (["posenc=alibbi"], ["did you mean alibi?"]),
    (["positions=randomly"], ["positions=randomly", "standard"]),
    (["data=wikitext"], ["data=wikitext", "sotu", "code", "pystdlib", "text"]),
    (["model=huge"], ["model=huge", "tiny", "small", "base"]),
    (["optimizer=sgd"], ["optimizer=sgd", "adamw", "muon"]),
    (["experiment=nosuch"], ["experiment=nosuch", "demo", "smoke"]),
    (["train.stepz=5"], ["train.stepz", "steps"]),
    (["steps=5"], ["steps is unknown"]),
    (["posenc=rope", "posenc.max_distance=5"], ["posenc.max_distance", "t5"]),
    (["+invented=5"], ["invented"]),
    (["+train.invented=5"], ["invented"]),
    (["~posenc"], ["~posenc: posenc cannot be taken away"]),
    (["~train"], ["~train: train cannot be taken away"]),
    (["~train.lr", "seed=1"], ["error: ~train.lr: train cannot be taken away"]),
    (["posenc=null"], ["posenc"]),
    (["train.steps=null"], ["train.steps: a value is needed"]),
    (["train=5"], ["train: has options of its own; write OPTION.KEY=VALUE"]),
    (["posenc=stack", "posenc.options=5"], ["posenc.options: has options of its own"]),
    (["train.steps=many"], ["train.steps: 'many' is not a whole number"]),
    (["train.lr=fast"], ["train.lr: 'fast' is not a number"]),
    (["train.steps=2.5"], ["train.steps: '2.5' is not a whole number"]),
    (["train.steps=[2,3]"], ["train.steps: one value only"]),
    (["model.tied=perhaps"], ["model.tied: 'perhaps' is not true or false"]),
    (["posenc=rope", "posenc.base=[2,3]"], ["posenc.base: one value only"]),
    (["posenc=rope", "posenc.base={a:1}"], ["posenc.base: one value only"]),
    (["posenc=t5", "posenc.max_distance=[1]"], ["posenc.max_distance: one value only"]),
    (["posenc.base=big"], ["posenc.base=big", "matched"]),
    (["posenc.base=0.5"], ["posenc.base=0.5"]),
    (["train.steps=-5"], ["train.steps=-5"]),
    (["train.batch_size=0"], ["train.batch_size=0"]),
    (["model.n_layers=-1"], ["model.n_layers=-1"]),
    (["seed=-1"], ["seed=-1"]),
    (["optimizer.beta1=1.5"], ["optimizer.beta1=1.5"]),
    (["optimizer.weight_decay=nan"], ["optimizer.weight_decay"]),
    (["optimizer.weight_decay=inf"], ["optimizer.weight_decay=inf: must be a number"]),
    (["optimizer.muon_lr_factor=inf"], ["optimizer.muon_lr_factor=inf: must be a number above 0"]),
    (["train.lr=inf"], ["train.lr=inf: must be a number above 0"]),
    (["train.clip=nan"], ["train.clip=nan"]),
    (["model.embed_scale=nan"], ["model.embed_scale=nan: must be a number"]),
    (["model.embed_scale=inf"], ["model.embed_scale=inf"]),
    (["tier=golden"], ["tier=golden", "smoke, demo, evidence, paper"]),
    (["name=a/b"], ["name=a/b"]),
    (["model.d_model=30", "model.n_heads=4"], ["model.d_model=30", "model.n_heads=4"]),
    (["posenc=rope", "model.d_model=30", "model.n_heads=2"], ["heads of 15", "even head size"]),
    (["data.tokenizer=wordpiece"], ["data.tokenizer=wordpiece", "bytes"]),
    (["data.tokenizer=bpe70000"], ["data.tokenizer=bpe70000", "65535"]),
    (["train.seq_len=100000"], ["train.seq_len=100000"]),
    (["train.device=abacus"], ["train.device=abacus"]),
    (["train.precision=int4"], ["train.precision=int4"]),
    (["seed=0,1"], ["seed=0,1", "-m"]),
    (["posenc=rope,alibi"], ["posenc=rope,alibi", "-m"]),
    (["posenc=glob(*)"], ["posenc=glob(*)", "-m"]),
    (["hydra/launcher=joblib"], ["hydra/launcher=joblib", "-m"]),
    (["posenc=glob(zz*)", "-m"], ["glob(zz*)", "no option"]),
    (["seed=0,-1", "-m"], ["seed=-1"]),
    (["posenc=rope,rotary", "-m"], ["posenc=rotary", "alibi"]),
    (["train.steps"], ["train.steps"]),
    (["posenc=[rope"], ["posenc=[rope"]),
    (["train.steps=${nowhere}"], ["nowhere"]),
    (["train.steps=abc", "train.steps=2"], ["train.steps", "abc"]),
    (["posenc=[rope,alibi]"], ["posenc=[rope,alibi]", "-m"]),
    (["model=null"], ["model must be given"]),
    (["rescale=yarn"], ["rescale=yarn", "eval-lengths"]),
    (["eval.lengths=[128]"], ["eval.lengths", "eval-lengths"]),
    (["posenc=rope", "posenc.base=nan"], ["posenc.base", "above 1"]),
    (["posenc=learned", "posenc.rms=nan"], ["posenc.rms", "above 0"]),
    (["+invented=1"], ["invented is unknown"]),
    (["runs_root=/dev/null"], ["runs_root=/dev/null", "cannot write"]),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "words"), BAD_SETTINGS, ids=[" ".join(b) for b, _ in BAD_SETTINGS])
def test_a_bad_setting_is_one_line_and_writes_nothing(
    posbench: Command, tiny: list[str], tmp_path: Path, bad: list[str], words: list[str]
) -> None:
    keys = {b.split("=")[0] for b in bad}
    rest = [t for t in tiny if t.split("=")[0] not in keys]
    refused(posbench("train", *rest, *bad), *words, lines=2)
    assert not os.listdir(tmp_path)


def bad_texts(root: Path) -> dict[str, tuple[str, list[str]]]:
    """Name -> the path to give, and words that the message must hold."""
    (root / "latin.txt").write_bytes("größe ".encode("latin-1") * 500)
    (root / "void.txt").write_text("")
    (root / "short.txt").write_text("not enough\n" * 10)
    for name in ("hollow", "voids", "shorts"):
        (root / name).mkdir()
    for i in range(12):
        (root / "voids" / f"{i}.txt").write_text("")
        (root / "shorts" / f"{i}.txt").write_text(f"only {i} words")
    return {
        "missing": (f"{root}/nosuch.txt", ["nosuch.txt", "no such file"]),
        "glob": (f"{root}/*.zzz", ["*.zzz", "matches no file"]),
        "latin-1": (f"{root}/latin.txt", ["latin.txt", "not UTF-8"]),
        "empty file": (f"{root}/void.txt", ["void.txt", "empty"]),
        "empty folder": (f"{root}/hollow", ["hollow", "no text file"]),
        "empty files": (f"{root}/voids", ["voids", "empty"]),
        "short file": (f"{root}/short.txt", ["short.txt", "too small to split"]),
        "short files": (f"{root}/shorts", ["shorts", "too small to split"]),
        "unset": ("", ["data.path"]),
    }


@pytest.mark.parametrize(
    "case",
    ["missing", "glob", "latin-1", "empty file", "empty folder", "empty files", "short file",
     "short files", "unset"],
)  # fmt: skip
def test_a_bad_text_is_one_line_and_writes_nothing(
    posbench: Command, tiny: list[str], tmp_path: Path, tree: Tree, case: str
) -> None:
    path, words = bad_texts(tmp_path)[case]
    before = tree(tmp_path)
    given = [t for t in tiny if not t.startswith("data.path=")]
    refused(posbench("train", *given, f"data.path={path}"), "data.path", *words, lines=2)
    assert tree(tmp_path) == before


def test_a_glob_that_matches_nothing_is_named_alone(posbench: Command, tiny: list[str]) -> None:
    done = posbench("train", *tiny, "posenc=glob(zz*)", "-m")
    refused(done, "posenc=glob(zz*): no option matches")


def test_an_unknown_launcher_lists_the_known(posbench: Command, tiny: list[str]) -> None:
    refused(posbench("train", *tiny, "-m", "hydra/launcher=nosuch"), "known: ", "basic", lines=2)


def test_report_refuses_overrides_and_a_file_as_its_folder(
    posbench: Command, trained: Any, tmp_path: Path
) -> None:
    refused(posbench("report", "eval.docs=3"), "eval.docs=3", "no overrides")
    (tmp_path / "file").write_text("")
    refused(posbench("report", "default", "--out", "file"), "--out=file")


def test_training_options_are_refused_by_eval_lengths(posbench: Command, trained: Any) -> None:
    refused(posbench("eval-lengths", "default", "train.steps=3"), "train.steps=3", "fixed when")


def test_one_length_needs_no_list(posbench: Command, trained: Any) -> None:
    few = ["eval.docs=1", "eval.blocks=1"]
    assert posbench("eval-lengths", "default", "eval.lengths=64", *few).code == 0


def test_own_text_needs_a_path(posbench: Command, tmp_path: Path) -> None:
    refused(posbench("train", "data=text"), "data.path")
    assert not os.listdir(tmp_path)


def test_one_bad_job_of_a_sweep_stops_all_before_anything_is_written(
    posbench: Command, tiny: list[str], tmp_path: Path
) -> None:
    done = posbench("train", *tiny, "posenc=none,rope", "model.d_model=30", "-m")
    refused(done, "even head size")
    assert not os.listdir(tmp_path)


# --- real processes -------------------------------------------------------------------------------


def test_errors_in_a_real_process(tmp_path: Path) -> None:
    done = python("-m", "posbench", "train", "posenc=rotary", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("posbench: error: posenc=rotary is unknown")
    assert len(done.stderr.splitlines()) == 1
    assert not os.listdir(tmp_path)


def test_an_unknown_command_and_flag_exit_2(posbench: Command) -> None:
    for arguments in (["trian"], ["train", "--nosuch"], ["list", "--yaml"]):
        done = posbench(*arguments)
        assert done.code == 2 and "Traceback" not in done.err and not done.out


def test_the_whole_chain_in_one_process(posbench: Command, tiny: list[str], tmp_path: Path) -> None:
    """train, eval-lengths and report with nothing but the printed folder; results on stdout."""
    done = posbench("train", "posenc=rope", *tiny)
    assert done.code == 0
    folder = done.out.split()[-1]
    done = posbench("eval-lengths", folder, "eval.lengths=[64,128]", "eval.docs=2", "eval.blocks=1")
    assert done.code == 0 and "perplexity" in done.out and "rope" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    done = posbench("report")
    assert done.code == 0 and "perplexity" in done.out
    made = {p.name for p in (tmp_path / "runs" / "default" / "report").iterdir()}
    assert {f"{n}.{e}" for n in ("perplexity", "ratio") for e in ("png", "svg")} <= made
    assert {"lengths.csv", "lengths.md"} <= made
    assert runs.Run.open(tmp_path / folder).status == "finished"
