"""Accuracy: against a slow loop on text, and on tasks from chance to all right."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import refused

from posbench import model as models
from posbench import registry, runs, settings, train
from posbench.data.dataset import load
from posbench.data.tasks import TaskDataset
from posbench.evaluate import distances, positions
from posbench.evaluate.score import Block

K = 32


@pytest.fixture(scope="module")
def task_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., runs.Run]:
    """Trains a tiny model on a task."""

    def make(
        name: str,
        steps: int,
        posenc: str = "none",
        seq_len: int = 16,
        sampler: str = "standard",
        **options: Any,
    ) -> runs.Run:
        config = settings.RunConfig(
            posenc=registry.get("posenc", posenc).Config(),
            positions=registry.get("positions", sampler).Config(),
            data=registry.get("data", name).Config(**options),
            model=settings.ModelConfig(d_model=32, n_layers=2, n_heads=2),
            train=settings.TrainConfig(
                steps=steps,
                seq_len=seq_len,
                batch_size=32,
                lr=5e-3,
                threads=1,
                device="cpu",
                compile="false",
            ),
        )
        folder = tmp_path_factory.mktemp("task") / "runs" / "default" / f"{name}-{steps}"
        train.run(config, folder, load(config.data), argv=[])
        return runs.Run.open(folder)

    return make


@pytest.fixture(scope="module")
def learnt(task_run: Callable[..., runs.Run]) -> runs.Run:
    return task_run("first_token", 120)


@torch.no_grad()
def _guess(model: models.Decoder, context: list[int]) -> int:
    """The most likely next token."""
    return int(model(torch.tensor(context)[None])[0, -1].argmax())


def test_accuracy_of_text_is_that_of_a_slow_loop(
    trained: Any, evaluate: Callable[..., Path], model: models.Decoder, corpus: Path, text_data: Any
) -> None:
    folder = evaluate(trained, lengths=[64, 128], docs=3, blocks=2)
    table = pd.read_csv(folder / "lengths.csv").set_index("test_len")
    blocks = pd.read_csv(folder / "blocks.csv")
    assert blocks["distance"].isna().all() and not (folder / distances.FILE).exists()
    for length in (64, 128):
        found, counts = [], []
        for document in text_data.targets.documents[:3]:
            text = (corpus / document.id).read_bytes()
            for end in document.ends[:2]:
                begin = end - length
                targets = range(end - K + 1, end + 1)
                hits = [_guess(model, list(text[begin:t])) == text[t] for t in targets]
                counts.append(sum(hits))
                found += hits
        assert 0 < np.mean(found) < 1
        assert table.loc[length, "accuracy"] == pytest.approx(np.mean(found), abs=1e-12)
        assert table.loc[length, "exact"] == np.mean([count == K for count in counts])
        own = blocks[(blocks["protocol"] == "same_targets") & (blocks["test_len"] == length)]
        assert own["correct"].tolist() == counts


def test_a_task_is_learnt_and_found_right_at_every_length(
    learnt: runs.Run, evaluate: Callable[..., Path]
) -> None:
    folder = evaluate(learnt)
    table = pd.read_csv(folder / "lengths.csv", dtype={"factor": str})
    assert table["test_len"].tolist() == [8, 16, 32, 64, 128, 256]
    assert (table["protocol"] == "generated").all() and (table["status"] == "ok").all()
    assert (table["accuracy"][:4] == 1).all() and (table["exact"][:4] == 1).all()
    assert (table["n_docs"] == 256).all() and (table["n_targets"] == 256).all()
    assert table["mean_context"].tolist() == table["test_len"].tolist()
    assert table["targets_hash"].nunique() == 6 and table["windows_hash"].nunique() == 1
    empty = ["crop_nll", "gain", "base_nll", "ngram_nll", "control_nll", "repeat_gain"]
    assert table[empty].isna().all().all()
    manifest = learnt.manifest
    assert manifest["val_loss"] == pytest.approx(table["nll"][1], rel=0.5)


def test_an_untrained_model_is_right_by_chance(
    task_run: Callable[..., runs.Run], evaluate: Callable[..., Path]
) -> None:
    table = pd.read_csv(evaluate(task_run("passkey", 1), lengths=[32, 64]) / "lengths.csv")
    chance = 1 / 20  # of 20 symbols
    spread = math.sqrt(chance * (1 - chance) / (256 * 5))
    assert (table["accuracy"] < 2.5 * chance + 4 * spread).all()
    assert (table["exact"] == 0).all()
    assert (table["nll"] > math.log(20) - 0.2).all()


def test_losses_and_hits_by_distance_add_up(
    task_run: Callable[..., runs.Run], evaluate: Callable[..., Path]
) -> None:
    folder = evaluate(task_run("passkey", 40, digits=1), lengths=[16, 64, 100])
    table = pd.read_csv(folder / "lengths.csv").set_index("test_len")
    blocks, found = pd.read_csv(folder / "blocks.csv"), pd.read_csv(folder / distances.FILE)
    assert list(found.columns) == distances.COLUMNS
    for length, part in found.groupby("test_len"):
        own = blocks[blocks["test_len"] == length]
        assert part["windows"].sum() == 256
        assert part["nats"].sum() == pytest.approx(256 * table.loc[length, "nll"])
        assert part["correct"].sum() == pytest.approx(256 * table.loc[length, "accuracy"])
        assert part["exact"].sum() == 256 * table.loc[length, "exact"]
        assert own["distance"].between(3 - 1, length - 1).all()
        for row in part.itertuples():
            inside = own[own["distance"].between(row.distance_lo, row.distance_hi)]
            assert row.windows == len(inside) and row.correct == inside["correct"].sum()
        assert not ((part["distance_lo"] <= 16) & (part["distance_hi"] > 16)).any()


def test_buckets_of_distances_end_where_those_of_positions_do() -> None:
    made = [Block("d", i, 0, 1.0, 2, 2, 2.0 - i % 2, distance=d) for i, d in enumerate([1, 16, 17])]
    without = Block("d", 9, 0, 1.0, 2, 2)
    found = distances.buckets([*made, without], 16)
    assert [(b["windows"], b["exact"], b["correct"]) for b in found] == [
        (1, 1, 2.0), (1, 0, 1.0), (1, 1, 2.0),
    ]  # fmt: skip
    ends = positions.bounds(16, 17)
    assert [b["distance_hi"] for b in found] == [ends[0], 16, ends[-1]]
    assert found[2]["distance_lo"] == 17
    assert distances.buckets([without], 16) == []


def test_draws_of_positions_are_averaged_and_a_window_is_right_in_all_or_not(
    task_run: Callable[..., runs.Run], evaluate: Callable[..., Path]
) -> None:
    run = task_run("first_token", 12, "rope", sampler="randomized", distractors=False)
    folder = evaluate(run, lengths=[16], draws=3)
    blocks = pd.read_csv(folder / "blocks.csv")
    (row,) = pd.read_csv(folder / "lengths.csv").itertuples()
    thirds = blocks["correct"] * 3
    assert np.allclose(thirds, thirds.round(), atol=1e-9) and blocks["correct"].between(0, 1).all()
    assert row.accuracy == pytest.approx(blocks["correct"].mean())
    assert row.exact == (blocks["correct"] == 1).mean() <= row.accuracy


def test_validation_is_per_scored_token(learnt: runs.Run) -> None:
    data = load(learnt.config.data)
    assert isinstance(data, TaskDataset)
    model = models.build(learnt.config, data.tokenizer.vocab_size)
    models.load_weights(model, learnt.weights)
    inputs, labels = data.validation_windows((16,), learnt.config.train.val_windows)
    with torch.no_grad():
        logs = model.eval()(torch.from_numpy(inputs))[:, -1].log_softmax(-1)
    losses = [-float(logs[i, label]) for i, label in enumerate(labels[:, -1])]
    assert learnt.manifest["val_loss"] == pytest.approx(np.mean(losses), rel=1e-4)


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["data=recall", "train.seq_len=20"], ["train.seq_len=20", "data=recall", "from 24 "]),
        (["data=copy", "data.size=9", "train.seq_len=16"], ["train.seq_len=16", "from 18 "]),
        (["data=indexing", "data.marks=0"], ["data.marks=0", "from 1 to 26"]),
        (["data=flip_flop", "data.tokenizer=bytes"], ["data.tokenizer"]),
    ],
)
def test_a_run_that_cannot_hold_its_task_is_refused(
    posbench: Callable[..., Any], overrides: list[str], words: list[str]
) -> None:
    refused(posbench("train", *overrides, "train.steps=1"), *words)


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["eval.lengths=[1]"], ["eval.lengths=1", "data=first_token", "from 2 to 65536"]),
        (["eval.lengths=[70000]"], ["eval.lengths=70000", "from 2 to 65536"]),
        (["eval.shapes=[4x4]"], ["eval.shapes", "eval.lengths"]),
        (["eval.protocol=prefix"], ["eval.protocol=prefix", "generated only"]),
        (["eval.protocol=repeat"], ["eval.protocol=repeat", "generated only"]),
        (["eval.docs=257"], ["eval.docs=257", "256"]),
        (["eval.blocks=2"], ["eval.blocks=2"]),
    ],
)
def test_what_a_task_does_not_have_is_refused(
    learnt: runs.Run, posbench: Callable[..., Any], overrides: list[str], words: list[str]
) -> None:
    refused(posbench("eval-lengths", str(learnt.path), *overrides), *words)


def test_the_command_measures_a_task(learnt: runs.Run, posbench: Callable[..., Any]) -> None:
    done = posbench("eval-lengths", str(learnt.path), "eval.lengths=[16,48]", "eval.docs=16")
    assert done.code == 0, done.err
    assert "generated (other targets at every length)" in done.out
    assert "16 windows" in done.out and "first_token 19 symbols" in done.out
    lines = done.out.splitlines()
    for title in ("accuracy %", "exact %"):
        (place,) = (i for i, line in enumerate(lines) if line.startswith(title))
        assert lines[place].split()[2:] == ["16", "1x", "48", "3x"]
        assert lines[place + 1].split() == ["none*", "100.0", "100.0"]
