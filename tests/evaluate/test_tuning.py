"""Track `val_tuned`: what is chosen, on which documents, without a look at test losses."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import refused

from posbench import model as models
from posbench import registry
from posbench.data.targets import ends
from posbench.evaluate import lengths, tuning
from posbench.evaluate import plan as planning
from posbench.evaluate.plan import VALIDATION, Cell, Key
from posbench.evaluate.score import Block
from posbench.report.collect import collect
from posbench.report.sections import sections

Evaluate = Callable[..., Path]
Sweep = Callable[..., Any]
Rows = Callable[[Path], pd.DataFrame]
K, L = 32, 64
FEW = {"docs": 2, "blocks": 2, "tune": True, "lengths": [64, 128, 256]}
OPTIONS = [{"factor": f, "beta": b} for f in (2, 8) for b in (2, 32)]


@pytest.fixture
def sweeps(sweep: Sweep) -> list[Any]:
    return [sweep("none", **FEW), *(sweep("yarn", own, **FEW) for own in OPTIONS)]


def read(folder: Path, name: str = "lengths.csv") -> pd.DataFrame:
    return pd.read_csv(folder / name, dtype={"factor": str}, keep_default_na=False)


def test_rows_of_both_tracks(trained: Any, evaluate: Evaluate, sweeps: list[Any]) -> None:
    folder = evaluate(trained, *sweeps)
    table, losses = read(folder), read(folder, "tuning.csv")
    assert table["track"].tolist() == ["strict"] * 15 + ["val_tuned"] * 3
    tuned = table[table["track"] == "val_tuned"]
    assert tuned["test_len"].tolist() == [64, 128, 256]
    assert set(tuned["rescale"]) == {"yarn"} and set(tuned["factor"]) == {"tuned"}
    assert set(tuned["options"]) == {""}
    assert list(losses.columns) == tuning.COLUMNS and len(losses) == 12
    for row in tuned.itertuples():
        own = losses[losses["test_len"] == row.test_len]
        (best,) = own[own["chosen"]].itertuples()
        assert best.val_nll == own["val_nll"].min() < own["val_nll"].max()
        assert row.chosen == f"factor={best.factor} {best.options}".strip()
        strict = table[(table["track"] == "strict") & (table["test_len"] == row.test_len)]
        same = strict[(strict["factor"] == best.factor) & (strict["options"] == best.options)]
        for column in ("nll", "nll_lo", "gain", "scale", "crop_nll", "targets_hash", "status"):
            assert same[column].tolist() == [getattr(row, column)]
    blocks = read(folder, "blocks.csv")
    own = blocks[blocks["factor"] == "tuned"]
    mean = own.groupby("test_len")["nats"].sum() / own.groupby("test_len")["tokens"].sum()
    assert mean.tolist() == pytest.approx(tuned["nll"].astype(float).tolist(), rel=1e-12)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["tuning"] == {"64": 2, "128": 2, "256": 2}


def test_validation_losses_by_hand(
    trained: Any, text_data: Any, evaluate: Evaluate, sweeps: list[Any]
) -> None:
    """Targets as the frozen ones are cut, from the validation documents, at each length."""
    table = read(evaluate(trained, *sweeps), "tuning.csv")
    model = models.build(trained.config, 256)
    models.load_weights(model, trained.weights)
    rule = registry.get("rescale", "yarn")
    test = [t.tobytes() for t in text_data.test.values()]
    for length in (128, 256):
        held = [t for t in text_data.validation if len(t) >= length + 16 * K]
        assert len(held) > 2 and not any(t.tobytes() in test for t in held)
        for own in (OPTIONS[0], OPTIONS[3]):
            encoding = rule(rule.Config(**own)).applied(model.posenc, L, length)
            nats = []
            for document in (held[0], held[-1]):
                for end in ends(len(document), length, 16)[:2]:
                    inputs = torch.as_tensor(document[end - length : end])[None]
                    with torch.no_grad():
                        logs = model.logits(model.hidden(inputs, encoding))[0].log_softmax(-1)
                    labels = document[end - K + 1 : end + 1]
                    nats += [-float(logs[length - K + i, labels[i]]) for i in range(K)]
            options = "" if own["beta"] == 32 else "beta=2"
            found = table[(table["test_len"] == length) & (table["options"] == options)]
            found = found[found["factor"] == str(own["factor"])]
            assert found["val_nll"].tolist() == pytest.approx([np.mean(nats)], abs=1e-5)
            assert (found["n_docs"].tolist(), found["n_blocks"].tolist()) == ([2], [4])


# --- the choice on made losses --------------------------------------------------------------------


def made(todo: planning.Plan, draw: random.Random) -> dict[Key, Cell]:
    """Cells with drawn losses, of the rows and of the choice."""
    return {
        key: Cell("ok", [Block("d", b, 99, draw.uniform(10, 90), K, K) for b in range(3)])
        for key in [*todo.wanted(), *todo.tuning_keys()]
    }


def test_test_losses_have_no_part_in_the_choice(trained: Any, sweeps: list[Any]) -> None:
    todo, moved = planning.plan(trained, sweeps), 0
    for seed in range(40):
        draw = random.Random(seed)
        cells = made(todo, draw)
        first = tuning.chosen(todo, cells)
        assert list(first) == [("yarn", (n,)) for n in (64, 128, 256)]
        for protocol, stays in (("same_targets", True), (VALIDATION, False)):
            keys = [key for key in cells if key.protocol == protocol]
            mixed = [cells[key] for key in draw.sample(keys, len(keys))]
            again = tuning.chosen(todo, {**cells, **dict(zip(keys, mixed, strict=True))})
            assert again == first or not stays
            moved += again != first
        for (name, shape), key in first.items():
            assert key is not None and key.protocol == VALIDATION
            rows = [Key(row, VALIDATION, shape) for row in todo.choices()[name]]
            assert len(rows) == 4
            sums = {k: sum(b.nats for b in cells[k].blocks) for k in rows}
            assert all(sums[key] <= sums[other] for other in rows)
    assert moved > 30


def test_what_could_not_be_scored_is_not_chosen(trained: Any, sweeps: list[Any]) -> None:
    todo = planning.plan(trained, sweeps)
    cells = made(todo, random.Random(0))
    best = tuning.chosen(todo, cells)["yarn", (128,)]
    assert best is not None
    cells[best] = Cell("nonfinite")
    assert tuning.chosen(todo, cells)["yarn", (128,)] not in (best, None)
    for key in todo.tuning_keys():
        cells[key] = Cell("out_of_memory")
    assert set(tuning.chosen(todo, cells).values()) == {None}


# --- documents that are too short -----------------------------------------------------------------


def test_lengths_that_no_validation_document_holds(trained: Any, sweeps: list[Any]) -> None:
    todo = planning.plan(trained, sweeps)
    assert tuning.note(todo) == (
        "val_tuned: validation documents: chosen on 2 of 64 tokens, 2 of 128 tokens, 2 of 256 "
        "tokens, fewer than 20"
    )
    todo.data = replace(todo.data, validation=[t[:700] for t in todo.data.validation])
    assert tuning.note(todo).endswith("2 of 128 tokens, fewer than 20; no choice at 256 tokens")
    folder = lengths.evaluate(todo)
    tuned = read(folder).query("track == 'val_tuned'").set_index("test_len")
    assert tuned["status"].tolist() == ["ok", "ok", "unsupported_length"]
    assert (tuned.loc[256, ["nll", "n_docs", "chosen", "options"]] == "").all()
    assert tuned.loc[256, "rescale"] == "yarn" and tuned.loc[256, "factor"] == "tuned"
    losses = read(folder, "tuning.csv").query("test_len == 256")
    assert set(losses["status"]) == {"unsupported_length"} and not losses["chosen"].any()
    strict = read(folder).query("track == 'strict' and test_len == 256")
    assert set(strict["status"]) == {"ok"}


def test_a_rescaling_that_does_not_fit_the_scheme(
    tmp_path: Path,
    settings_of: Callable[..., Any],
    text_data: Any,
    evaluate: Evaluate,
    sweep: Sweep,
) -> None:
    from posbench import train

    run = train.run(settings_of("alibi"), tmp_path / "run", text_data)
    few = FEW | {"lengths": [128]}
    folder = evaluate(run, *(sweep("pi", {"factor": f}, **few) for f in (2, 4)))
    assert read(folder)["status"].tolist() == ["unsupported_rescale"] * 3


def test_an_interrupted_choice_goes_on(
    trained: Any, sweeps: list[Any], monkeypatch: pytest.MonkeyPatch, calls: list[Key]
) -> None:
    todo = planning.plan(trained, sweeps)
    table = tuning.table

    def stop(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "table", stop)
    with pytest.raises(KeyboardInterrupt):
        lengths.evaluate(todo)
    monkeypatch.setattr(tuning, "table", table)
    made = len(calls)
    folder = lengths.evaluate(todo)
    assert len(calls) == made > 0 and len(read(folder, "tuning.csv")) == 12


# --- words and the report -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["rescale=yarn"],
        ["rescale=[none,yarn,pi]"],
        ["rescale.factor=[2,4]", "rescale=pi", "prefix"],
    ],
)
def test_nothing_to_choose_from_is_refused(
    posbench: Callable[..., Any], trained: Any, words: list[str]
) -> None:
    words = [f"eval.protocol={word}" if word == "prefix" else word for word in words]
    done = posbench("eval-lengths", str(trained.path), "eval.tune=true", *words)
    refused(done, "eval.tune=true", "nothing to choose from", "rescale.factor=[4,8]")


def test_the_command_and_the_table(posbench: Callable[..., Any], trained: Any) -> None:
    done = posbench(
        "eval-lengths", str(trained.path), "eval.tune=true", "rescale=[none,yarn]",
        "rescale.factor=[2,8]", "eval.lengths=[128,256]", "eval.docs=2", "eval.blocks=2",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "chosen on 2 of 128 tokens" in done.err
    assert "yarn@tuned" in done.out and "val_tuned" in done.out


def test_tracks_are_never_in_one_table(trained: Any, evaluate: Evaluate, sweeps: list[Any]) -> None:
    evaluate(trained, *sweeps)
    found = collect([trained.path])
    assert len(found.rows) == 18
    by_track = {s.keys["track"]: s for s in sections(found.pooled)}
    assert set(by_track) == {"strict", "val_tuned"}
    assert [e.rule for e in by_track["val_tuned"].entries] == ["yarn@tuned"]
    assert sorted(by_track["val_tuned"].entries[0].cells) == [64, 128, 256]
    assert len(by_track["strict"].entries) == 5
