"""Checks of options, and the hash that names a run."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from posbench import registry, settings
from posbench.errors import ConfigError

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: settings.ModelConfig(d_model=-1), ["model.d_model=-1", "at least 1"]),
        (lambda: settings.ModelConfig(n_layers=0), ["model.n_layers=0"]),
        (lambda: settings.ModelConfig(n_heads=-2), ["model.n_heads=-2"]),
        (lambda: settings.ModelConfig(hidden=0), ["model.hidden=0"]),
        (lambda: settings.ModelConfig(style="bert"), ["model.style=bert", "llama, gpt2"]),
        (
            lambda: settings.ModelConfig(d_model=30, n_heads=4),
            ["model.d_model=30", "model.n_heads=4"],
        ),
        (lambda: settings.TrainConfig(steps=0), ["train.steps=0"]),
        (
            lambda: settings.TrainConfig(val_windows=10**9),
            ["train.val_windows=1000000000", "at most 65536"],
        ),
        (lambda: settings.TrainConfig(batch_size=-4), ["train.batch_size=-4"]),
        (lambda: settings.TrainConfig(seq_len=4), ["train.seq_len=4", "at least 8"]),
        (lambda: settings.TrainConfig(lr=0.0), ["train.lr=0.0", "above 0"]),
        (lambda: settings.TrainConfig(lr=float("nan")), ["train.lr=nan"]),
        (lambda: settings.TrainConfig(clip=-1.0), ["train.clip=-1.0"]),
        (lambda: settings.TrainConfig(warmup=1.5), ["train.warmup=1.5", "from 0 to 1"]),
        (
            lambda: settings.TrainConfig(warmup=0.6, decay=0.6),
            ["train.warmup=0.6", "train.decay=0.6", "together"],
        ),
        (lambda: settings.TrainConfig(precision="fp8"), ["train.precision=fp8", "bf16"]),
        (lambda: settings.TrainConfig(threads=0), ["train.threads=0"]),
        (lambda: settings.OptimizerConfig(name="sgd"), ["optimizer.name=sgd", "adamw, muon"]),
        (lambda: settings.OptimizerConfig(weight_decay=-0.1), ["optimizer.weight_decay=-0.1"]),
        (lambda: settings.OptimizerConfig(beta1=1.5), ["optimizer.beta1=1.5"]),
        (lambda: settings.OptimizerConfig(beta2=-0.5), ["optimizer.beta2=-0.5"]),
        (lambda: settings.OptimizerConfig(muon_lr_factor=0.0), ["optimizer.muon_lr_factor=0.0"]),
        (lambda: settings.EvalConfig(lengths=[]), ["eval.lengths"]),
        (lambda: settings.EvalConfig(lengths=[128, 0]), ["eval.lengths=0", "at least 1"]),
        (lambda: settings.EvalConfig(docs=0), ["eval.docs=0"]),
        (lambda: settings.EvalConfig(blocks=-1), ["eval.blocks=-1"]),
        (lambda: settings.EvalConfig(protocol="rolling"), ["eval.protocol=rolling", "same_target"]),
        (lambda: settings.EvalConfig(memory_limit=0.0), ["eval.memory_limit=0.0", "GiB"]),
        (lambda: settings.EvalConfig(batch_tokens=0), ["eval.batch_tokens=0"]),
    ],
)
def test_a_wrong_value_is_refused_by_name(make: Callable[[], object], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert "\n" not in str(caught.value)
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a=b", "a,b", "a b"])
def test_a_name_is_a_plain_folder_name(settings_of: Make, name: str) -> None:
    with pytest.raises(ConfigError, match="name="):
        settings_of(name=name)


@pytest.mark.parametrize(("field", "value"), [("tier", "paperish"), ("seed", -1)])
def test_top_level_values_are_checked(settings_of: Make, field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field}={value}"):
        settings_of(**{field: value})


def test_lengths_are_sorted_and_unique() -> None:
    assert settings.EvalConfig(lengths=[256, 64, 128, 64]).lengths == [64, 128, 256]


def test_geometry_is_the_models(settings_of: Make) -> None:
    found = settings.geometry(settings_of(model={"d_model": 48, "n_heads": 3}))
    assert (found.d_model, found.n_heads, found.n_layers, found.train_length) == (48, 3, 2, 64)
    assert found.head_dim == 16


def test_run_id_ignores_what_changes_no_result(settings_of: Make) -> None:
    reference = settings.run_id(settings_of(), "content")
    aside = [
        settings_of(name="other"),
        settings_of(runs_root="/elsewhere"),
        settings_of(fresh=True),
        settings_of(train={"device": "auto"}),
        settings_of(train={"threads": 7}),
        settings_of(train={"log_every": 1}),
        settings_of(train={"val_every": 3}),
        settings_of(train={"checkpoint_every": 2}),
    ]
    assert {settings.run_id(c, "content") for c in aside} == {reference}


def test_run_id_ignores_where_the_text_lies(settings_of: Make) -> None:
    """The content hash is part of the id, the path is not."""
    here, there = settings_of(path="/here/texts"), settings_of(path="texts")
    assert settings.run_id(here, "content") == settings.run_id(there, "content")
    assert settings.run_id(here, "content") != settings.run_id(here, "other content")


def test_run_id_changes_with_everything_else(settings_of: Make) -> None:
    changed = [
        settings_of(),
        settings_of(seed=1),
        settings_of(tier="smoke"),
        settings_of(train={"steps": 6}),
        settings_of(train={"lr": 1e-3}),
        settings_of(train={"batch_size": 5}),
        settings_of(train={"seq_len": 128}),
        settings_of(train={"precision": "bf16"}),
        settings_of(model={"n_layers": 3}),
        settings_of(model={"qk_norm": True}),
        settings_of(model={"qkv_bias": False}),
        settings_of(optimizer={"name": "muon"}),
        settings_of(optimizer={"name": "muon", "muon_lr_factor": 2.0}),
        settings_of("alibi"),
        settings_of(options={"base": 500.0}),
        settings_of(options={"base": "matched"}),
    ]
    found = [settings.run_id(c, "content") for c in changed]
    assert len(set(found)) == len(found)
    assert found[0].startswith("rope-L64-s0-") and found[1].startswith("rope-L64-s1-")
    assert not any(c in "=, /" for name in found for c in name)


def test_whole_numbers_are_one_setting_however_they_are_written(settings_of: Make) -> None:
    def id_of(**changes: Any) -> str:
        return settings.run_id(settings_of(**changes), "content")

    assert id_of(options={"base": 500}) == id_of(options={"base": 500.0})
    assert id_of(options={"base": 10000}) == id_of()
    assert id_of(optimizer={"muon_lr_factor": 2}) == id_of(optimizer={"muon_lr_factor": 2.0})


def test_factors_8_and_8_0_are_one_evaluation() -> None:
    def changed(factor: object) -> dict[str, Any]:
        rule = registry.get("rescale", "pi").Config(factor=factor)
        return settings.changed(settings.SweepConfig(rescale=rule))

    assert settings.digest(changed(8)) == settings.digest(changed(8.0))
    assert changed("auto") == {"rescale": {"name": "pi"}}


@pytest.mark.parametrize("default", [False, 3, "plain", None])
def test_a_new_option_at_its_default_orphans_no_run(settings_of: Make, default: Any) -> None:
    newer = dataclasses.make_dataclass(
        "TrainConfig",
        [("invented", Any, dataclasses.field(default=default))],
        bases=(settings.TrainConfig,),
    )
    config = settings_of()
    before = settings.run_id(config, "content")
    fields = dataclasses.asdict(config.train)
    config.train = newer(**fields)
    assert settings.run_id(config, "content") == before
    config.train = newer(**fields, invented="other")
    assert settings.run_id(config, "content") != before


def test_preset_is_the_scheme_unless_named(settings_of: Make) -> None:
    assert settings_of("alibi").preset == "alibi"
    named = settings_of(options={"base": "matched"}, preset="rope_matched")
    assert settings.run_id(named, "content").startswith("rope_matched-L64-s0-")


def test_evaluation_settings_that_change_no_row_do_not_enter_its_hash() -> None:
    rule = registry.get("rescale", "none").Config()

    def changed(**options: Any) -> dict[str, Any]:
        evaluation = settings.EvalConfig(**options)
        return settings.changed(settings.SweepConfig(rescale=rule, eval=evaluation))

    plain = changed()
    assert changed(memory_limit=1.0, batch_tokens=64, device="cpu", threads=1) == plain
    assert changed(blocks=2) != plain and changed(docs=2) != plain


def test_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert settings.digest({"a": 1, "b": 2}) == settings.digest({"b": 2, "a": 1})
    assert len(settings.digest({})) == 8
