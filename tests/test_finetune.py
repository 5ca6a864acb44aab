"""Going on from a finished run: what is inherited, what is refused, what the loop does.

Over 500 lines and not split: all tests go on from the same trained run, by the same few helpers.
"""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import refused
from safetensors.torch import load_file, save_file

from posbench import finetune, jobs, launch, registry, runs, settings, train
from posbench import model as models
from posbench.data import windows
from posbench.data.dataset import load
from posbench.errors import ConfigError, UnsupportedRescale
from posbench.files import file_sha256

Make = Callable[..., Any]
#: how the base run was trained: 60 steps at L = 64
L, STEPS = 64, 60


@pytest.fixture
def base(trained: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A copy of the session's run below the current folder."""
    monkeypatch.chdir(tmp_path)
    return trained


def ready(run: Any, *words: str, multirun: bool = False) -> Any:
    """The prepared run of `posbench train init=RUN WORDS`; a list of them for a sweep."""
    words = (f"init={run.path}", "train.threads=1", "train.device=cpu", *words)
    found = [jobs.prepare(cfg, preset) for cfg, preset in launch.train_configs(words, multirun)]
    return found if multirun else found[0]


def go(one: Any, report: Callable[..., None] = lambda progress: None) -> runs.Run:
    return train.run(one.config, one.folder, one.data, report)


def begun(one: Any, run: Any) -> models.Decoder:
    """The model of a fine-tuning before its first step."""
    model = models.build(one.config, 256)
    models.load_weights(model, run.weights)
    return model.eval()


def plain(run: Any, posenc: str = "rope") -> models.Decoder:
    """A model of the base run's weights."""
    config = run.config
    config = settings.RunConfig(
        posenc=registry.get("posenc", posenc).Config(),
        positions=config.positions,
        data=config.data,
        model=config.model,
        train=config.train,
    )
    model = models.build(config, 256)
    models.load_weights(model, run.weights)
    return model.eval()


def text(n: int) -> torch.Tensor:
    return torch.randint(97, 122, (2, n), generator=torch.Generator().manual_seed(3))


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / train.LOG).read_text().splitlines()]


def weights(run: Any) -> dict[str, torch.Tensor]:
    return load_file(run.path / runs.CHECKPOINT / runs.WEIGHTS)


# --- what it starts from --------------------------------------------------------------------------


@torch.no_grad()
def test_before_its_first_step_it_is_the_base_run_at_interpolated_positions(base: Any) -> None:
    """PI divides frequencies; the oracle is the base run at the positions 0, 1/8, 2/8, ..."""
    one = ready(base, "rescale=pi", "rescale.factor=8", "train.seq_len=512")
    model, tokens = begun(one, base), text(300)
    found = model(tokens)
    expected = plain(base)(tokens, torch.arange(300, dtype=torch.float64)[None, :, None] / 8)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert (found - plain(base)(tokens)).abs().max() > 0.1


@torch.no_grad()
def test_before_its_first_step_drope_is_nope_with_the_base_runs_weights(base: Any) -> None:
    one, tokens = ready(base, "rescale=drope"), text(200)
    expected = plain(base, "none")(tokens)
    torch.testing.assert_close(begun(one, base)(tokens), expected, rtol=0, atol=1e-6)
    other = ready(base, "posenc=none")
    torch.testing.assert_close(begun(other, base)(tokens), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("posenc", [[], ["posenc.base=300"]])
def test_rules_by_turns_go_by_the_first_training_length(base: Any, posenc: list[str]) -> None:
    words = ["rescale=ntk_by_parts", "rescale.factor=8", "rescale.beta=8", "train.seq_len=512"]
    one = ready(base, *words, *posenc)
    own = []
    for p in range(8):
        theta = (300 if posenc else 10000) ** (-2 * p / 16)
        keep = min(1.0, max(0.0, (L * theta / (2 * math.pi) - 1) / (8 - 1)))
        own.append((1 - keep) * theta / 8 + keep * theta)
    found = begun(one, base).posenc.inv_freq.tolist()
    assert found == pytest.approx(own, rel=1e-12)


def test_a_scheme_that_goes_by_the_training_length_keeps_the_first(settings_of: Make) -> None:
    went_on = settings.BaseRun("", L, L, STEPS)
    for name, options in (("rope", {"base": "matched"}), ("t5", {}), ("learned", {})):
        first = models.build_posenc(settings_of(name, options))
        later = models.build_posenc(
            settings_of(name, options, train={"seq_len": 512}, base=went_on)
        )
        assert later.geometry == first.geometry
        assert [p.shape for p in later.parameters()] == [p.shape for p in first.parameters()]


# --- what it inherits -----------------------------------------------------------------------------


def test_what_is_not_overridden_is_the_base_runs(base: Any) -> None:
    one = ready(base, "rescale=pi", "train.seq_len=512", "train.steps=7")
    config, old = one.config, base.config
    for part in ("posenc", "positions", "data", "model", "optimizer", "seed", "tier", "name"):
        assert getattr(config, part) == getattr(old, part), part
    assert (config.train.lr, config.train.batch_size) == (old.train.lr, old.train.batch_size)
    assert (config.train.seq_len, config.train.steps) == (512, 7)
    assert config.rescale.factor == 8 and config.preset == "rope+pi@8"
    assert one.folder.parent.name == base.config.name
    assert one.data.tokenizer.sha256 == base.manifest["data"]["tokenizer_sha256"]


def test_a_second_leg_keeps_the_rescaling_and_the_first_length(base: Any) -> None:
    first = go(ready(base, "rescale=pi", "train.seq_len=128", "train.steps=2"))
    second = ready(first, "train.seq_len=256", "train.steps=1")
    assert second.config.preset == "rope+pi@2"
    assert second.config.first_length == L and second.config.steps_before == STEPS + 2
    further = ready(first, "rescale=pi", "train.seq_len=256")
    assert further.config.preset == "rope+pi@4"
    assert begun(further, first).posenc.inv_freq[0] == 0.25  # of the first ladder, not of pi's
    assert ready(first, "rescale=none").config.preset == "rope+tuned"


@pytest.mark.parametrize(
    ("words", "preset"),
    [
        ([], "rope+tuned"),
        (["rescale=none"], "rope+tuned"),
        (["posenc.base=500000"], "rope+base500000"),
        (["rescale=drope"], "rope+drope"),
        (["positions=pose", "rescale=pi"], "rope+pi@8+pose"),
        (["positions=pose", "positions.target=128", "rescale=yarn"], "rope+yarn@2+pose.target128"),
        (["positions=randomized"], "rope+randomized"),
        (["rescale=yarn", "rescale.factor=4", "rescale.beta=16"], "rope+yarn@4.beta16"),
    ],
)
def test_tables_call_it_by_what_was_changed(base: Any, words: list[str], preset: str) -> None:
    assert ready(base, *words).config.preset == preset


def test_a_factor_is_swept_like_anything_else(base: Any) -> None:
    found = ready(base, "rescale=pi,yarn", "rescale.factor=4,8", multirun=True)
    wanted = ["rope+pi@4", "rope+pi@8", "rope+yarn@4", "rope+yarn@8"]
    assert [one.config.preset for one in found] == wanted
    assert len({one.folder for one in found}) == 4


def test_its_settings_are_printed_with_what_is_inherited(base: Any, posbench: Make) -> None:
    where = str(base.path.relative_to(Path.cwd()))
    done = posbench("config", "train", f"init={where}", "rescale=pi", "train.seq_len=128")
    assert done.code == 0, done.err
    printed = yaml.safe_load(done.out)
    assert printed["train"]["lr"] == 5e-3 and printed["model"]["d_model"] == 32
    assert printed["init"] == where and printed["rescale"]["name"] == "pi"
    assert "base" not in printed and "# train.lr" not in done.out


# --- how it is named ------------------------------------------------------------------------------


def test_the_id_follows_from_the_base_weights_and_the_settings(base: Any, tmp_path: Path) -> None:
    def id_of(*words: str, run: Any = base) -> str:
        return str(ready(run, "train.seq_len=512", *words).folder.name)

    moved = runs.Run.open(Path(shutil.copytree(base.path, tmp_path / "elsewhere")))
    same = [
        id_of("rescale=pi"),
        id_of("rescale=pi", "rescale.factor=8"),
        id_of("rescale=pi", "rescale.factor=8.0", "train.target_every=3"),
        id_of("rescale=pi", run=moved),
    ]
    assert len(set(same)) == 1
    other = weights(moved)
    other["final_norm.weight"] += 1
    file = moved.path / runs.CHECKPOINT / runs.WEIGHTS
    save_file(other, str(file))
    moved.update(weights_sha256=file_sha256(file))
    others = [
        same[0],
        id_of(),
        id_of("rescale=pi", run=moved),
        id_of("rescale=pi", "rescale.factor=4"),
        id_of("rescale=ntk"),
        id_of("rescale=pi", "train.steps=3"),
        id_of("rescale=pi", "posenc.base=500"),
        id_of("rescale=pi", "seed=1"),
    ]
    assert len(set(others)) == len(others)
    assert id_of() == id_of("rescale=none")


# --- the loop -------------------------------------------------------------------------------------


def test_the_control_is_continued_training(base: Any, text_data: Any) -> None:
    """A loop of plain torch over the batches after the base run's last, optimizer state anew."""
    one = ready(base, "train.steps=3", "optimizer.weight_decay=0.2", "train.lr=0.002")
    record = go(one)
    model = plain(base).train()
    names = dict(model.named_parameters())
    decayed = [p for n, p in names.items() if n.startswith("blocks.") and p.ndim == 2]
    rest = [p for n, p in names.items() if not (n.startswith("blocks.") and p.ndim == 2)]
    groups = [{"params": decayed, "weight_decay": 0.2}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    for step, share in enumerate((1.0, 0.05 + 0.95 / 1.5, 0.05)):
        x, y = (torch.from_numpy(a) for a in windows.training_batch(text_data, L, 4, 0, 60 + step))
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 0.002 * share
        optimizer.step()
        optimizer.zero_grad()
    found = weights(record)
    assert found.keys() <= names.keys() | {"head.weight"}
    for name, tensor in found.items():
        other = names.get(name, names["embedding.weight"])
        torch.testing.assert_close(tensor, other.detach(), rtol=0, atol=2e-6)
    assert not torch.equal(found["final_norm.weight"], weights(base)["final_norm.weight"])


def test_the_loss_at_both_lengths_is_logged_and_in_the_manifest(base: Any, text_data: Any) -> None:
    words = ["rescale=pi", "train.seq_len=128", "train.target=256", "train.target_every=2"]
    record = go(ready(base, *words, "train.steps=5"))
    assert record.config.rescale.factor == 2
    lines = log(record.path)
    assert [line["step"] for line in lines if "target_loss" in line] == [0, 2, 4, 5]

    def loss(model: models.Decoder, length: int, n: int, scale: float) -> float:
        x, y = (torch.from_numpy(a) for a in windows.validation_windows(text_data, length, n))
        pos = torch.arange(length, dtype=torch.float64)[None, :, None] / scale
        with torch.no_grad():
            logits = model(x, pos)[:, -L:]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y[:, -L:].flatten()).item()

    last = plain(base)
    models.load_weights(last, record.weights)
    found = record.manifest["extension"]
    assert (found["length"], found["target"]) == (L, 256)
    for name, length, n in (("target_loss", 256, 2), ("short_loss", L, 8)):
        first = plain(base)
        expected = loss(first, length, n, 1), loss(first, length, n, 2), loss(last, length, n, 2)
        assert list(found[name]) == ["base", "start", "end"]
        assert list(found[name].values()) == pytest.approx(expected, abs=2e-6)
    assert found["tax"] == found["short_loss"]["end"] - found["short_loss"]["base"]
    assert found["aim"] == pytest.approx(crop(plain(base), text_data), abs=2e-6)
    assert lines[0] == {"step": 0, "loss": None, "val_loss": None} | {
        name: found[name]["start"] for name in ("target_loss", "short_loss")
    }
    assert lines[-1]["target_loss"] == found["target_loss"]["end"]
    assert found["short_loss"]["base"] == pytest.approx(base.manifest["val_loss"], abs=1e-6)


def crop(model: models.Decoder, data: Any, start: int | None = None) -> float:
    """Of the last L tokens of the windows for 256, each quarter at the end of a window of L.

    The window's first token is `start`, where one is given.
    """
    x, y = windows.validation_windows(data, 256, 2)
    losses = []
    for window, labels in zip(x, y, strict=True):
        for t in range(256 - L, 256):
            end = 256 - L + (t - (256 - L)) // (L // 4) * (L // 4) + L // 4
            pos = torch.arange(L, dtype=torch.float64)[None, :, None]
            inputs = torch.tensor(window[None, end - L : end])
            if start is not None:
                inputs[:, 0] = start
            with torch.no_grad():
                logits = model(inputs, pos)[0]
            scores = logits[t - (end - L)].log_softmax(-1)
            losses.append(-scores[labels[t]].item())
    return sum(losses) / len(losses)


def test_the_aim_is_of_windows_that_begin_as_in_training(
    tmp_path: Path, settings_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With data.bos the last L tokens have their first one replaced, as every window has."""
    monkeypatch.chdir(tmp_path)
    config = settings_of(train={"steps": 60, "lr": 0.01})
    config.data.bos = True
    data = load(config.data)
    run = train.run(config, tmp_path / "base", data)
    words = ["rescale=pi", "train.seq_len=128", "train.target=256", "train.steps=1"]
    found = go(ready(run, *words)).manifest["extension"]
    model = models.build(config, 257)
    models.load_weights(model, run.weights)
    wanted = crop(model.eval(), data, start=256)
    assert found["aim"] == pytest.approx(wanted, abs=2e-6)
    assert abs(wanted - crop(model, data)) > 1e-4


def test_another_optimizer_may_go_on_and_another_model_may_not(base: Any) -> None:
    assert ready(base, "train.steps=1", "optimizer=muon").config.optimizer.name == "muon"
    with pytest.raises(ConfigError, match="its weights do not fit these settings"):
        ready(base, "train.steps=1", "model=small")


def test_the_manifest_names_the_base_run_and_its_weights(base: Any) -> None:
    record = go(ready(base, "train.steps=1"))
    found = record.manifest["base"]
    assert found["run_id"] == base.manifest["run_id"] and found["path"] == str(base.path)
    assert found["weights_sha256"] == base.manifest["weights_sha256"]
    assert found["steps"] == STEPS and found["train_length"] == L
    assert runs.Run.open(record.path).config.base == record.config.base
    assert "base" not in base.manifest and "extension" not in base.manifest


@pytest.mark.parametrize("words", [["rescale=yarn", "train.seq_len=128"], ["positions=pose"]])
def test_a_resumed_fine_tuning_is_bitwise_the_uninterrupted_one(
    base: Any, words: list[str], tmp_path: Path
) -> None:
    often = ["train.steps=6", "train.log_every=1", "train.checkpoint_every=3"]
    one = ready(base, *words, *often, "train.target_every=2", "train.target=128")
    whole = train.run(one.config, tmp_path / "whole", one.data)

    def stop(at: int) -> Callable[..., None]:
        def report(progress: train.Progress) -> None:
            if progress.step == at:
                raise KeyboardInterrupt

        return report

    for step in (2, 5):  # before the checkpoint and after it
        with pytest.raises(KeyboardInterrupt):
            train.run(one.config, tmp_path / "parts", one.data, stop(step))
    parts = train.run(one.config, tmp_path / "parts", one.data)
    assert whole.manifest["weights_sha256"] == parts.manifest["weights_sha256"]
    assert whole.manifest["extension"] == parts.manifest["extension"]
    lines = [[{**line, "tokens_per_s": 0} for line in log(r.path)] for r in (whole, parts)]
    assert lines[0] == lines[1]
    assert [line["step"] for line in lines[0]] == list(range(7))


def test_a_damaged_checkpoint_goes_back_to_the_base_run(base: Any, tmp_path: Path) -> None:
    one = ready(base, "train.steps=3", "train.log_every=1", "train.checkpoint_every=1")
    whole = train.run(one.config, tmp_path / "whole", one.data)

    def stop(progress: train.Progress) -> None:
        if progress.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.run(one.config, tmp_path / "parts", one.data, stop)
    (tmp_path / "parts" / runs.CHECKPOINT / "optimizer.pt").unlink()
    parts = train.run(one.config, tmp_path / "parts", one.data)
    assert whole.manifest["weights_sha256"] == parts.manifest["weights_sha256"]


def test_a_base_run_that_was_trained_again_is_noticed(base: Any) -> None:
    one = ready(base, "train.steps=1")
    base.update(weights_sha256="0" * 64)
    with pytest.raises(ConfigError, match="damaged checkpoint"):
        go(one)


# --- the evaluation of it -------------------------------------------------------------------------


def test_a_trained_rescaling_takes_no_second_one_of_its_kind(base: Any) -> None:
    def applied(encoding: Any, name: str, **options: Any) -> Any:
        cls = registry.get("rescale", name)
        return cls(cls.Config(**options)).applied(encoding, 512, 1024)

    pi = models.build_posenc(ready(base, "rescale=pi", "train.seq_len=512").config)
    assert applied(pi, "none") is pi
    message = "rope cannot be rescaled by yarn: the run was trained under pi@8, which also acts on"
    with pytest.raises(UnsupportedRescale, match=message):
        applied(pi, "yarn")
    with pytest.raises(UnsupportedRescale, match="trained under pi@8"):
        applied(pi, "stack", parts=["rerope", "yarn"])
    assert "logit_scale" in applied(pi, "logn").hooks
    assert "relative_position" in applied(pi, "rerope").hooks
    control = models.build_posenc(ready(base, "train.seq_len=512").config)
    assert applied(control, "pi").inv_freq[0] == 0.5  # from 512, what it was trained at


def test_the_command_trains_and_measures_it(base: Any, posbench: Make) -> None:
    few = ["train.steps=2", "train.device=cpu", "train.threads=1"]
    where = str(base.path.relative_to(Path.cwd()))
    done = posbench("train", f"init={where}", "rescale=pi,drope", "-m", "train.seq_len=128", *few)
    assert done.code == 0, done.err
    folders = [line.split()[-1] for line in done.out.splitlines()]
    assert len(folders) == 2 and done.out.count("finished") == 2
    run = runs.Run.open(Path(folders[0]))
    assert run.config.preset == "rope+pi@2"
    assert f"init={where}" in run.manifest["argv"]
    again = posbench("train", f"init={where}", "rescale=pi", "train.seq_len=128", *few)
    assert again.out.startswith("reused") and again.out.split()[-1] == folders[0]
    sizes = ["eval.lengths=[64,128]", "eval.docs=2", "eval.blocks=1"]
    done = posbench("eval-lengths", folders[0], "rescale=[none,yarn]", *sizes)
    assert done.code == 0, done.err
    table = next(run.path.glob("evals/*/lengths.csv")).read_text()
    assert "unsupported_rescale" in table and "unsupported_rescale: yarn" in done.out


@pytest.mark.parametrize(
    "words",
    [
        ["rescale=pi,ntk", "rescale.factor=4"],
        ["rescale=ntk_by_parts,yarn", "rescale.factor=4", "rescale.beta=8"],
    ],
)
def test_a_swept_rescaling_takes_its_options(base: Any, posbench: Make, words: list[str]) -> None:
    few = ["train.steps=1", "train.device=cpu", "train.threads=1", "train.seq_len=128", "-m"]
    where = f"init={base.path.relative_to(Path.cwd())}"
    done = posbench("train", where, *words, *few)
    assert done.code == 0, done.err
    found = [runs.Run.open(Path(line.split()[-1])) for line in done.out.splitlines()]
    assert [run.config.rescale.name for run in found] == words[0].split("=")[1].split(",")
    assert all(run.config.rescale.factor == 4 for run in found)
    assert all("rescale.factor=4" in run.manifest["argv"] for run in found)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["init=nowhere"], ["init=nowhere", "runs_root=runs"]),
        (["init=runs"], ["init=runs", "not a run folder"]),
        (["rescale=pi"], ["rescale=pi", "init=RUN"]),
        (["train.target=512"], ["train.target=512", "init=RUN"]),
        (["BASE", "base.steps=3"], ["base.steps=3", "init=RUN"]),
        (["BASE", "data=sotu"], ["data=sotu", "data=text"]),
        (["BASE", "data.tokenizer=bpe300"], ["data.tokenizer=bpe300", "data.tokenizer=bytes"]),
        (["BASE", "model.n_layers=3"], ["weights do not fit", "blocks.2."]),
        (["BASE", "model.tied=false"], ["weights do not fit", "head.weight"]),
        (["BASE", "posenc=learned"], ["weights do not fit", "posenc.table"]),
        (["BASE", "posenc=alibi", "rescale=pi", "rescale.factor=2"], ["alibi", "pi", "not rotary"]),
        (["BASE", "rescale=pi"], ["rescale.factor=auto", "L = 64"]),
        (["BASE", "rescale=pi", "rescale.factor=0.5"], ["rescale.factor=0.5"]),
        (["BASE", "rescale=[pi,yarn]"], ["rescale=[pi,yarn]", "-m"]),
        (["BASE", "rescale=dynamic_ntk"], ["rescale=dynamic_ntk", "every length"]),
        (["BASE", "rescale=dynamic_ntk", "rescale.mode=incremental"], ["every length"]),
        (["BASE", "rescale=self_extend", "train.seq_len=128"], ["self_extend", "every length"]),
        (["BASE", "rescale.factor=8"], ["rescale.factor"]),
        (["BASE", "train.target=9000"], ["train.target=9000", "9001 tokens"]),
        (
            ["BASE", "positions=randomized", "positions.below=64", "train.target=65"],
            ["train.target=65", "64 positions"],
        ),
        (["BASE", "eval.lengths=[64]"], ["eval.lengths", "eval-lengths"]),
    ],
)
def test_what_cannot_go_on_is_refused_in_one_line(
    base: Any, posbench: Make, words: list[str], named: list[str]
) -> None:
    where = f"init={base.path.relative_to(Path.cwd())}"
    words = [where if word == "BASE" else word for word in words]
    before = sorted(Path("runs").rglob("*"))
    refused(posbench("train", *words), *named)
    assert sorted(Path("runs").rglob("*")) == before


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        ({"status": "running"}, "not finished"),
        ({"status": "diverged"}, "not finished"),
        ({"weights_sha256": "0" * 64}, "damaged checkpoint"),
    ],
)
def test_a_base_run_that_is_not_whole_is_refused(
    base: Any, posbench: Make, harm: dict[str, str], named: str
) -> None:
    base.update(**harm)
    refused(posbench("train", f"init={base.path.relative_to(Path.cwd())}"), "init=", named)


def test_a_text_that_has_changed_is_refused(base: Any, posbench: Make, corpus: Path) -> None:
    own = Path(shutil.copytree(corpus, "own"))
    where = f"init={base.path.relative_to(Path.cwd())}"
    one = own / "doc00.txt"
    one.write_text(one.read_text() + "more", encoding="utf-8")
    refused(posbench("train", where, "data.path=own"), "text has changed")


def test_a_table_of_positions_is_not_made_longer(base: Any, tmp_path: Path) -> None:
    config = ready(base).config
    learned = settings.RunConfig(
        posenc=registry.get("posenc", "learned").Config(),
        positions=config.positions,
        data=config.data,
        model=config.model,
        train=settings.TrainConfig(steps=1, seq_len=L, batch_size=4, device="cpu", threads=1),
    )
    data = ready(base).data
    run = train.run(learned, tmp_path / "learned", data)
    assert ready(run, "train.steps=1").config.preset == "learned+tuned"
    with pytest.raises(
        ConfigError, match=r"train\.seq_len=128: posenc=learned .* has 64 positions"
    ):
        ready(run, "train.seq_len=128")
    with pytest.raises(ConfigError, match="has 64 positions"):
        ready(run, "positions=pose")


def test_a_run_below_runs_root_is_found_by_name(base: Any) -> None:
    named = f"{base.path.parent.name}/{base.path.name}"
    assert finetune.find(named, "runs").path.resolve() == base.path.resolve()
