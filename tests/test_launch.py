"""Sweeps of training runs and lists of an evaluation, through the command.

One file: the tests share one sweep, which is trained once for the file's worker.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers import SWEPT
from hydra import initialize_config_dir
from omegaconf import OmegaConf
from oracles import SCHEMES

from posbench import launch, registry
from posbench.errors import ConfigError

Command = Callable[..., Any]
Tree = Callable[[Path], dict[str, Any]]


def manifests(place: Path) -> dict[str, dict[str, Any]]:
    """Preset -> manifest of every run below a folder."""
    found = [json.loads(p.read_text()) for p in place.glob("runs/*/*/manifest.json")]
    return {m["preset"]: m for m in found}


def evaluations(run: Path) -> list[pd.DataFrame]:
    files = sorted((run / "evals").glob("*/lengths.csv"))
    return [pd.read_csv(f, dtype=str, keep_default_na=False) for f in files]


def row_names(table: pd.DataFrame) -> list[str]:
    """`rescale@factor options` of the rows, in their order, each once."""
    names = table["rescale"] + "@" + table["factor"] + " " + table["options"]
    return list(dict.fromkeys(n.replace("@ ", " ").strip() for n in names))


# --- sweeps of training ---------------------------------------------------------------------------


def test_a_sweep_trains_every_scheme_it_names(swept_here: tuple[Path, Any]) -> None:
    place, done = swept_here
    assert done.code == 0, done.err
    found = manifests(place)
    named = SWEPT.removeprefix("posenc=").split(",")
    labels = {"stack": "rope+fox", "layers": "rope-none"}
    assert set(found) == {labels.get(name, name) for name in named}
    assert {m["status"] for m in found.values()} == {"finished"}
    assert [line.split()[0] for line in done.out.splitlines()] == ["finished"] * len(found)
    assert "Traceback" not in done.err


def test_a_glob_means_every_scheme_and_preset_of_texts(anywhere: Command) -> None:
    done = anywhere("config", "train", "posenc=glob(*)", "-m")
    assert done.code == 0, done.err
    found = [line for line in done.out.splitlines() if line.startswith("preset: ")]
    names = {x.removeprefix("preset: ") for x in found}
    assert len(names) == len(found)
    assert names == {*SCHEMES, *(set(registry.options("posenc")) - set(registry.names("posenc")))}


def test_a_tied_hyper_parameter_is_printed_with_the_papers_value(
    swept_here: tuple[Path, Any],
) -> None:
    _, done = swept_here
    assert "t5: posenc.max_distance = 32 at L = 64 (paper: 128)" in done.errors
    assert any(e.startswith("rope_matched: posenc.base = ") for e in done.errors)


def test_what_is_done_is_reused_and_nothing_of_it_is_rewritten(
    swept_here: tuple[Path, Any],
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tree: Tree,
    anywhere: Command,
) -> None:
    place, _ = swept_here
    monkeypatch.chdir(place)
    before = tree(place / "runs" / "default")
    again = anywhere("train", SWEPT, "-m", *tiny)
    assert again.code == 0
    assert {line.split()[0] for line in again.out.splitlines()} == {"reused"}
    assert tree(place / "runs" / "default") == before


def test_a_single_and_a_swept_run_share_a_folder(
    swept_here: tuple[Path, Any],
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tree: Tree,
    anywhere: Command,
) -> None:
    place, _ = swept_here
    monkeypatch.chdir(place)
    before = tree(place / "runs" / "default")
    alone = anywhere("train", "posenc=alibi", *tiny)
    assert alone.code == 0 and alone.out.startswith("reused ")
    assert "alibi-L64-s0-" in alone.out
    assert tree(place / "runs" / "default") == before


def test_a_run_elsewhere_has_the_same_folder_name(
    swept_here: tuple[Path, Any], tiny: list[str], posbench: Command, tmp_path: Path
) -> None:
    done = posbench("train", "posenc=alibi", "name=mine", "runs_root=there", *tiny)
    assert done.code == 0 and done.out.startswith("finished ")
    ours = {p.name for p in (tmp_path / "there" / "mine").iterdir()}
    theirs = {p.name for p in (swept_here[0] / "runs" / "default").glob("alibi-*")}
    assert ours == theirs


def test_the_same_command_twice_trains_once_and_fresh_trains_again(
    tiny: list[str], posbench: Command, tmp_path: Path, tree: Tree
) -> None:
    first = posbench("train", "posenc=none", *tiny)
    assert first.code == 0 and first.out.startswith("finished ")
    before = tree(tmp_path / "runs")
    assert posbench("train", "posenc=none", *tiny).out.startswith("reused ")
    assert tree(tmp_path / "runs") == before
    run = next((tmp_path / "runs" / "default").iterdir())
    (run / "evals").mkdir()
    (run / "evals" / "old").write_text("an evaluation of the old weights")
    again = posbench("train", "posenc=none", "--fresh", *tiny)
    assert again.out.startswith("finished ")
    after = tree(tmp_path / "runs")
    weights = str(run.relative_to(tmp_path / "runs") / "checkpoint" / "model.safetensors")
    assert after[weights][1] == before[weights][1] and after[weights][0] > before[weights][0]
    assert not (run / "evals").exists()


def test_a_run_of_another_version_is_reused_with_a_warning(
    tiny: list[str], posbench: Command, tmp_path: Path
) -> None:
    posbench("train", "posenc=none", *tiny)
    file = next((tmp_path / "runs" / "default").glob("*/manifest.json"))
    manifest = json.loads(file.read_text())
    manifest["code"]["sources"] = "0" * 16
    file.write_text(json.dumps(manifest))
    again = posbench("train", "posenc=none", *tiny)
    assert again.code == 0 and again.out.startswith("reused ")
    assert "trained by other code" in again.err and "--fresh" in again.err


def test_a_diverged_job_does_not_stop_the_others(
    tiny: list[str], posbench: Command, tmp_path: Path
) -> None:
    done = posbench("train", "train.lr=1e30,1e-3", "-m", *tiny)
    assert done.code == 1
    assert [line.split()[0] for line in done.out.splitlines()] == ["diverged", "finished"]
    assert "Traceback" not in done.err
    errors = [line for line in done.errors if line.startswith("posbench: error:")]
    assert len(errors) == 1 and "train.lr" in errors[0]
    files = (tmp_path / "runs" / "default").glob("*/manifest.json")
    found = {json.loads(f.read_text())["status"] for f in files}
    assert found == {"diverged", "finished"}


def test_a_single_run_that_diverges_exits_1(tiny: list[str], posbench: Command) -> None:
    done = posbench("train", "train.lr=1e30", *tiny)
    assert done.code == 1 and done.out.startswith("diverged ")
    assert "Traceback" not in done.err


def test_a_crashing_job_is_a_failed_outcome_and_the_others_run(
    tiny: list[str], posbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posbench import train

    whole = train.run

    def crash(config: Any, *rest: Any, **named: Any) -> Any:
        if config.seed == 0:
            raise ZeroDivisionError("by the test")
        return whole(config, *rest, **named)

    monkeypatch.setattr(train, "run", crash)
    done = posbench("train", "seed=0,1", "-m", *tiny)
    assert done.code == 1
    assert [line.split()[0] for line in done.out.splitlines()] == ["failed", "finished"]
    assert "ZeroDivisionError: by the test" in done.err


def test_an_interrupt_exits_130_and_the_same_command_goes_on(
    tiny: list[str], posbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posbench import train

    def interrupted(*arguments: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train, "run", interrupted)
        done = posbench("train", *tiny)
    assert done.code == 130
    assert "Traceback" not in done.err
    assert "interrupted; type the same command again to go on" in done.err
    assert posbench("train", *tiny).out.startswith("finished ")


def test_hydra_leaves_nothing_in_the_current_folder(
    tiny: list[str], posbench: Command, tmp_path: Path
) -> None:
    posbench("train", *tiny)
    posbench("train", "seed=0,1", "-m", *tiny)
    assert os.listdir(tmp_path) == ["runs"]
    assert set(os.listdir(tmp_path / "runs")) <= {"default", ".sweeps"}
    run_files = {p.name for p in (tmp_path / "runs" / "default").glob("*/*")}
    assert run_files == {"manifest.json", "tokenizer.json", "train.jsonl", "checkpoint", ".lock"}


def test_a_sweep_over_presets_and_values_makes_every_combination() -> None:
    found = launch.train_configs(["posenc=rope,rope_matched", "seed=0,1", "experiment=smoke"], True)
    assert [(p, c.seed) for c, p in found] == [
        ("rope", 0), ("rope", 1), ("rope_matched", 0), ("rope_matched", 1),
    ]  # fmt: skip
    assert {c.tier for c, _ in found} == {"smoke"}
    assert found[2][0].posenc.base == "matched"


def test_an_experiment_is_overridden_by_what_is_typed() -> None:
    ((cfg, _),) = launch.train_configs(
        ["experiment=demo", "train.steps=7", "optimizer=adamw"], False
    )
    assert (cfg.name, cfg.train.steps, cfg.optimizer.name) == ("demo", 7, "adamw")
    preset = OmegaConf.load(registry.conf_root() / "experiment" / "smoke.yaml")
    ((cfg, _),) = launch.train_configs(["experiment=smoke", "seed=3"], False)
    assert (cfg.tier, cfg.seed, cfg.train.steps) == ("smoke", 3, preset.train.steps)


# --- lists of an evaluation -----------------------------------------------------------------------


def names_of(*overrides: str) -> list[str]:
    from posbench.evaluate.plan import row_name

    found = launch.sweeps(overrides)
    return [row_name(registry.get("rescale", s.rescale.name)(s.rescale)) for s in found]


def test_lists_are_composed_once_per_element() -> None:
    assert names_of() == ["none"]
    assert names_of("rescale=yarn") == ["yarn@auto"]
    assert names_of("rescale=[pi,yarn]", "rescale.factor=[8,auto]") == [
        "pi@8", "pi@auto", "yarn@8", "yarn@auto",
    ]  # fmt: skip
    assert names_of("rescale=yarn", "rescale.factor=4.5") == ["yarn@4.5"]


def test_what_takes_no_factor_appears_once() -> None:
    names = names_of("rescale=[none,dynamic_ntk,pi]", "rescale.factor=[8,auto]")
    assert names == ["none", "dynamic_ntk", "pi@8", "pi@auto"]
    names = names_of("rescale=[none,pi,yarn]", "rescale.factor=[2,4]", "rescale.beta=[32,auto]")
    assert names == [
        "none", "pi@2", "pi@4",
        "yarn@2", "yarn@2 beta=auto", "yarn@4", "yarn@4 beta=auto",
    ]  # fmt: skip


@pytest.mark.parametrize("twice", ["rescale=[pi,pi]", "rescale.factor=[8,8.0]"])
def test_a_repeated_element_gives_one_row(twice: str) -> None:
    names = names_of("rescale=pi", "rescale.factor=8", twice)
    assert names == ["pi@8"]


def rules_of(*overrides: str) -> list[Any]:
    """The rescalings themselves."""
    found = launch.sweeps(overrides)
    return [registry.get("rescale", s.rescale.name)(s.rescale) for s in found]


def test_an_option_that_is_a_list_takes_one_list_or_a_list_of_them() -> None:
    (one,) = rules_of("rescale=longrope", "rescale.long_factor=[1,2.5]")
    assert one.config.long_factor == [1.0, 2.5]
    several = rules_of(
        "rescale=longrope", "rescale.long_factor=[[1,2],[3,4]]", "rescale.factor=[8,auto]"
    )
    assert [(r.config.long_factor, r.config.factor) for r in several] == [
        ([1.0, 2.0], 8), ([1.0, 2.0], "auto"), ([3.0, 4.0], 8), ([3.0, 4.0], "auto"),
    ]  # fmt: skip
    stacks = rules_of("rescale=[stack,pi]", "rescale.parts=[[yarn,logn],[rerope,logn]]")
    assert [[r.label, *r.options] for r in stacks] == [
        ["stack", "yarn@auto+logn"], ["stack", "rerope+logn"], ["pi@auto"],
    ]  # fmt: skip


def test_null_is_a_value_among_others() -> None:
    found = rules_of("rescale=yarn", "rescale.attention_factor=[null,1]")
    assert [r.config.attention_factor for r in found] == [None, 1.0]


@pytest.mark.parametrize(
    "written",
    [
        ["rescale.options={yarn:{factor:8,beta:auto}}"],
        ["rescale.options={yarn:{factor:8}}", "rescale.options.yarn.beta=auto"],
        ["rescale.options.yarn={factor:8,beta:auto}"],
        ["rescale.options.yarn.factor=8", "rescale.options.yarn.beta=auto"],
        ["+rescale.options.yarn.factor=8", "+rescale.options.yarn.beta=auto"],
    ],
)
def test_options_of_a_stack_by_part(written: list[str]) -> None:
    (found,) = rules_of("rescale=stack", "rescale.parts=[yarn,logn]", *written)
    assert found.config.options == {"yarn": {"factor": 8, "beta": "auto"}}
    assert found.options == ["yarn@8+logn", "yarn.beta=auto"]


def test_lists_of_a_part_are_rows_unless_the_part_takes_a_list() -> None:
    found = rules_of(
        "rescale=stack", "rescale.parts=[yarn,logn]", "rescale.options.yarn.factor=[8,auto]"
    )
    assert [r.options for r in found] == [["yarn@8+logn"], ["yarn@auto+logn"]]
    found = rules_of(
        "rescale=stack", "rescale.parts=[yarn,logn]",
        "rescale.options=[{yarn:{factor:8}},{yarn:{factor:4}}]",
    )  # fmt: skip
    assert [r.options for r in found] == [["yarn@8+logn"], ["yarn@4+logn"]]
    key = "rescale.options.longrope.long_factor"
    for value, wanted in (("[1,2]", [[1, 2]]), ("[[1,2],[3,4]]", [[1, 2], [3, 4]])):
        found = rules_of("rescale=stack", "rescale.parts=[longrope,logn]", f"{key}={value}")
        assert [r.config.options["longrope"]["long_factor"] for r in found] == wanted


def test_protocols_multiply_too() -> None:
    found = launch.sweeps(["rescale=[none,pi]", "eval.protocol=[same_targets,nonoverlapping]"])
    assert [(s.rescale.name, s.eval.protocol) for s in found] == [
        ("none", "same_targets"), ("none", "nonoverlapping"),
        ("pi", "same_targets"), ("pi", "nonoverlapping"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rescale=dynamic_ntk", "rescale.factor=8"], ["rescale.factor", "dynamic_ntk", "yarn"]),
        (["rescale=none", "rescale.factor=8"], ["rescale.factor", "none"]),
        (["rescale=[pi,ntk]", "rescale.beta=32"], ["rescale.beta", "yarn"]),
        (["rescale=pi", "rescale.invented=1"], ["rescale.invented", "no rescaling has it"]),
        (["rescale=[]"], ["rescale=[]", "empty"]),
        (["rescale=pi,yarn"], ["rescale=pi,yarn", "write a list"]),
        (["eval.lengths=64,128"], ["eval.lengths", "write a list"]),
        (["rescale=yran"], ["rescale=yran", "did you mean yarn", "dynamic_ntk"]),
        (["rescale=pi", "rescale.factor=0.5"], ["rescale.factor=0.5", "at least 1"]),
        (["rescale=pi", "rescale.factor=much"], ["rescale.factor=much", "auto"]),
        (["rescale=pi", "rescale.factor=[8,much]"], ["rescale.factor=much"]),
        (["eval.protocol=[same_targets,rolling]"], ["eval.protocol=rolling", "nonoverlapping"]),
        (["rescale=stack", "rescale.parts=pi"], ["rescale.parts", "a list is written"]),
        (["rescale=stack", "rescale.parts=[]"], ["rescale.parts=[]", "the list is empty"]),
        (["rescale=stack", "rescale.parts=[pi,lgn]"], ["lgn", "did you mean logn"]),
        (["rescale=stack", "rescale.parts=[pi,ntk]"], ["pi and ntk both act on frequencies"]),
        (["rescale=stack", "rescale.options.yarn.factor=8"], ["rescale.options=yarn", "logn"]),
        (["rescale=stack", "rescale.options.rerope.size=8"], ["rescale.options.rerope=size"]),
        (["rescale=stack", "rescale.options.lgn.a=1"], ["rescale=lgn", "did you mean logn"]),
        (["rescale=pi", "rescale.options.pi.factor=8"], ["rescale.options.pi.factor", "stack"]),
        (
            ["rescale=longrope", "rescale.long_factor=2"],
            ["rescale.long_factor", "a list is written"],
        ),
        (["rescale=longrope", "rescale.long_factor=[1,a]"], ["rescale.long_factor", "'a'"]),
        (["rescale=[[pi,ntk]]"], ["['pi', 'ntk']", "unknown"]),
    ],
)
def test_a_wrong_list_is_one_line(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        launch.sweeps(overrides)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("=5", "=5: not an option; write OPTION=VALUE"),
        ("hydra=5", "hydra=5: not an option"),
        ("eval.lengths.0=5", "eval.lengths.0=5: not an option"),
        ("name=\u00fc", "not a valid override (quote what is no plain word: \"name='\u00fc'\")"),
        ("name=a(1)", "quote what is no plain word: \"name='a(1)'\""),
        ("eval.lengths=[64", "eval.lengths=[64: not a valid override ("),
        ("yarn", "yarn: not a valid override (write rescale=yarn)"),
    ],
)  # fmt: skip
def test_what_hydra_cannot_read_is_one_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        launch.sweeps([text])
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("train:\n  stepz: 3\n", "experiment/odd: train.stepz is unknown"),
        ("train:\n  steps: many\n", "experiment/odd: train.steps: Value 'many'"),
        ("train: [\n", 'odd.yaml", line 3'),
    ],
)
def test_a_mistake_in_a_file_of_settings_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: str, said: str
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "odd.yaml").write_text("# @package _global_\n" + written)
    (tmp_path / "train.yaml").write_text("defaults: [train_schema, _self_, experiment: odd]\n")

    def here(module: str, **more: Any) -> Any:
        return initialize_config_dir(str(tmp_path), **more)

    monkeypatch.setattr(launch, "initialize_config_module", here)
    with launch._hydra(), pytest.raises(ConfigError) as caught:
        launch._compose("train", [])
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_every_combination_becomes_rows_of_one_folder(
    settings_of: Callable[..., Any], text_data: Any, posbench: Command, tmp_path: Path
) -> None:
    from posbench import train

    run = tmp_path / "runs" / "default" / "rope"
    train.run(settings_of(train={"steps": 2, "seq_len": 128}), run, text_data)
    done = posbench(
        "eval-lengths",
        "default",
        "rescale=[none,pi,yarn,dynamic_ntk]",
        "rescale.factor=[8,auto]",
        "rescale.beta=[32,auto]",
        "eval.protocol=[same_targets,nonoverlapping]",
        "eval.lengths=[128,256]",
        "eval.docs=2",
        "eval.blocks=2",
        "eval.threads=1",
    )
    assert done.code == 0, done.err
    (table,) = evaluations(run)
    assert row_names(table) == [
        "none", "pi@8", "pi@auto",
        "yarn@8", "yarn@8 beta=auto", "yarn@auto", "yarn@auto beta=auto", "dynamic_ntk",
    ]  # fmt: skip
    keys = ["rescale", "factor", "options", "protocol", "test_len"]
    assert len(table) == 8 * 2 * 2 and not table.duplicated(keys).any()
    assert set(table["status"]) == {"ok"}
    assert table.loc[table["rescale"] == "pi", "scale"].astype(float).to_list() == [
        8.0, 8.0, 8.0, 8.0, 1.0, 2.0, 1.0, 2.0,
    ]  # fmt: skip
    for name in ("yarn@8", "yarn@auto", "dynamic_ntk"):
        assert name in done.out


def test_position_maps_stacks_and_lists_become_rows_with_names_of_their_own(
    settings_of: Callable[..., Any], text_data: Any, posbench: Command, tmp_path: Path
) -> None:
    from posbench import train

    run = tmp_path / "runs" / "default" / "rope"
    train.run(settings_of(train={"steps": 2, "seq_len": 64}), run, text_data)
    chosen = [
        "rescale=[rerope,leaky_rerope,self_extend,longrope,stack]",
        "rescale.factor=4",
        "rescale.long_factor=[[2],[1,1.2,1.5,2,2.2,2.5,3,4]]",
        "rescale.parts=[[rerope,logn],[yarn,self_extend]]",
    ]
    shown = posbench("config", "eval-lengths", *chosen)
    assert shown.code == 0 and shown.out.count("long_factor:") == 2
    assert len(shown.out.split("---\n")) == 7
    sizes = ["eval.lengths=[64,128,512]", "eval.docs=1", "eval.blocks=1", "eval.threads=1"]
    done = posbench("eval-lengths", "default", *chosen, *sizes)
    assert done.code == 0, done.err
    (table,) = evaluations(run)
    keys = ["rescale", "factor", "options", "protocol", "test_len"]
    assert len(table) == 7 * 3 and not table.duplicated(keys).any()
    assert len(set(row_names(table))) == 7
    assert set(table["status"]) == {"ok"}
    scale = table.groupby("rescale", sort=False)["scale"].agg(list)
    assert [float(x) for x in scale["self_extend"]] == [1, 4, 16]  # (512 - 32) / (64 - 32) = 15
    assert [float(x) for x in scale["leaky_rerope"]] == pytest.approx([1, 95 / 31, 479 / 31])
    again = posbench("eval-lengths", "default", "rescale=longrope", *sizes)
    assert again.code == 2
    assert "rescale.long_factor must be given: rescale=longrope needs 8" in again.err


def test_every_run_of_a_sweep_is_evaluated(
    swept_here: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, anywhere: Command
) -> None:
    """One command measures all; refusals are rows, and the exit code is 0."""
    place, _ = swept_here
    monkeypatch.chdir(place)
    done = anywhere(
        "eval-lengths", "default", "rescale=[none,pi]", "eval.lengths=[64,128]",
        "eval.docs=2", "eval.blocks=1", "eval.threads=1",
    )  # fmt: skip
    assert done.code == 0, done.err
    rotary = {"rope", "rope_matched", "rope+fox", "rope-none"}
    for run in (place / "runs" / "default").iterdir():
        preset = json.loads((run / "manifest.json").read_text())["preset"]
        (table,) = evaluations(run)
        status = {(r.rescale, r.test_len): r.status for r in table.itertuples()}
        past = "unsupported_length" if preset == "learned" else "ok"
        refused = "ok" if preset in rotary else "unsupported_rescale"
        assert status == {
            ("none", "64"): "ok", ("none", "128"): past,
            ("pi", "64"): refused, ("pi", "128"): refused,
        }  # fmt: skip
        assert preset in done.out
