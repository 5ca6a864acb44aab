"""An evaluation that was interrupted or lacked something, and plans that write nothing."""

import json
import shutil
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers import files

from posbench import runs, train
from posbench.errors import ConfigError, DataError, RunError
from posbench.evaluate import kept, lengths
from posbench.evaluate import plan as planning
from posbench.report.collect import collect

Evaluate = Callable[..., Path]
Rows = Callable[[Path], pd.DataFrame]
Sweep = Callable[..., Any]
FEW = {"docs": 3, "blocks": 2}


# --- going on -------------------------------------------------------------------------------------


class Stop(Exception):
    """Raised by the test."""


def stop_after(n: int) -> Callable[[str], None]:
    """A report function that raises when the cell after the n-th begins."""
    left = n

    def report(item: str) -> None:
        nonlocal left
        if not left:
            raise Stop
        left -= 1

    return report


def test_a_table_that_was_damaged_is_made_anew(trained: Any, sweep: Sweep) -> None:
    todo = planning.plan(trained, [sweep("none", lengths=[64], **FEW)])
    folder = lengths.evaluate(todo)
    table = folder / "lengths.csv"
    whole = table.read_bytes()
    table.write_bytes(whole[:-9])
    assert not lengths.is_finished(folder)
    assert lengths.evaluate(todo) == folder
    assert table.read_bytes() == whole
    assert lengths.is_finished(folder)


def test_an_interrupted_sweep_goes_on_and_ends_byte_identical(
    trained: Any,
    trained_here: Any,
    copy_run: Callable[..., Any],
    sweep: Sweep,
    calls: list[planning.Key],
) -> None:
    rules = [sweep(r, lengths=[64, 128, 256], **FEW) for r in ("none", "pi")]
    whole = lengths.evaluate(planning.plan(copy_run(trained_here, root="whole"), rules))
    everything = list(calls)
    assert len(set(everything)) == len(everything)
    calls.clear()

    todo = planning.plan(trained, rules)
    with pytest.raises(Stop):
        lengths.evaluate(todo, stop_after(4))
    assert calls == everything[:4]
    stored_cells = todo.folder / lengths.CELLS
    assert len(stored_cells.read_text().splitlines()) == 4
    assert not lengths.is_finished(todo.folder)
    with stored_cells.open("a") as file:
        file.write('{"key": {"rule": "pi", "prot')

    calls.clear()
    with pytest.raises(Stop):
        lengths.evaluate(planning.plan(trained, rules), stop_after(6))
    assert calls == everything[4:6]
    calls.clear()
    folder = lengths.evaluate(planning.plan(trained, rules))
    assert calls == everything[6:]
    assert files(folder) == files(whole)
    assert not stored_cells.exists()


def test_cells_that_were_kept_before_lengths_had_a_shape_are_read(
    trained: Any, sweep: Sweep, calls: list[planning.Key]
) -> None:
    todo = planning.plan(trained, [sweep("none", lengths=[64, 128], **FEW)])
    with pytest.raises(Stop):
        lengths.evaluate(todo, stop_after(3))
    stored_cells = todo.folder / lengths.CELLS
    stored = [json.loads(line) for line in stored_cells.read_text().splitlines()]
    for one in stored:
        (one["key"]["length"],) = one["key"].pop("shape")
    stored_cells.write_text("".join(json.dumps(one) + "\n" for one in stored))
    calls.clear()
    lengths.evaluate(todo)
    assert len(calls) == len(todo.keys()) - 3


def test_a_finished_evaluation_is_not_computed_again(
    trained: Any, evaluate: Evaluate, calls: list[planning.Key], tree: Callable[..., Any]
) -> None:
    folder = evaluate(trained, lengths=[64], **FEW)
    before = tree(trained.path)
    calls.clear()
    assert evaluate(trained, lengths=[64], **FEW) == folder
    assert not calls and tree(trained.path) == before


def test_a_swept_length_shares_its_cell_with_the_references(
    trained: Any, evaluate: Evaluate, calls: list[planning.Key]
) -> None:
    evaluate(trained, lengths=[64, 128], **FEW)
    assert len(calls) == len(set(calls))
    assert {(k.protocol, k.length) for k in calls} == {
        ("stride1", 8), ("stride1", 16), ("stride1", 32), ("same_targets", 64), ("stride1", 64),
        ("same_targets", 128),
    }  # fmt: skip


def test_other_weights_are_another_evaluation(
    trained: Any, sweep: Sweep, settings_of: Callable[..., Any], text_data: Any
) -> None:
    rules = [sweep(lengths=[64], **FEW)]
    first = planning.plan(trained, rules).folder
    runs.clear(trained.path)
    other = train.run(settings_of(seed=1), trained.path, text_data)
    assert planning.plan(other, rules).folder != first


def test_a_second_writer_is_refused(trained: Any, sweep: Sweep) -> None:
    todo = planning.plan(trained, [sweep(lengths=[64], **FEW)])
    with runs.locked(todo.folder), pytest.raises(RunError, match="another process"):
        lengths.evaluate(todo)


def test_settings_are_rebuilt_once_not_for_every_row(
    trained: Any, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebuilding a run's settings takes longer than scoring a short row."""
    made: list[Path] = []
    whole = runs.rebuild

    def counted(stored: dict[str, Any], where: Path) -> Any:
        made.append(where)
        return whole(stored, where)

    monkeypatch.setattr(runs, "rebuild", counted)
    evaluate(trained, lengths=[64, 128, 256], **FEW)
    assert len(made) <= 2


# --- planning writes nothing ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"lengths": [64, 2048]}, DataError, "eval.lengths=2048"),
        ({"docs": 11}, ConfigError, "eval.docs=11"),
        ({"blocks": 17}, ConfigError, "eval.blocks=17"),
        ({"device": "abacus"}, ConfigError, "eval.device=abacus"),
    ],
)
def test_a_plan_is_checked_before_anything_is_written(
    trained: Any,
    sweep: Sweep,
    tree: Callable[..., Any],
    options: dict[str, Any],
    error: type[Exception],
    word: str,
) -> None:
    before = tree(trained.path)
    with pytest.raises(error, match=word):
        planning.plan(trained, [sweep(**options)])
    assert tree(trained.path) == before


def test_row_names_carry_the_factor_and_other_options(sweep: Sweep) -> None:
    from posbench import registry

    def name(rule: str, **options: Any) -> str:
        config = sweep(rule, options).rescale
        return planning.row_name(registry.get("rescale", rule)(config))

    assert name("none") == "none"
    assert name("yarn") == "yarn@auto"
    assert name("yarn", factor=8) == name("yarn", factor=8.0) == "yarn@8"
    assert name("pi", factor=2.5) == "pi@2.5"
    assert name("yarn", factor=8, beta="auto") == "yarn@8 beta=auto"
    assert name("dynamic_ntk") == "dynamic_ntk"
    assert name("dynamic_ntk", mode="incremental") == "dynamic_ntk mode=incremental"


def test_a_refusal_for_memory_is_tried_again(
    trained: Any, evaluate: Evaluate, rows: Rows, calls: list[planning.Key]
) -> None:
    folder = evaluate(trained, lengths=[64, 128], memory_limit=1e-9, **FEW)
    assert list(rows(folder).status) == ["out_of_memory"] * 2
    again = evaluate(trained, lengths=[64, 128], **FEW)
    assert again == folder and list(rows(folder).status) == ["ok", "ok"]
    calls.clear()
    assert evaluate(trained, lengths=[64, 128], **FEW) == folder and not calls


def test_the_targets_hash_names_what_is_scored(
    trained: Any, evaluate: Evaluate, rows: Rows
) -> None:
    def hashes(protocol: str = "same_targets", **few: int) -> set[str]:
        return set(
            rows(evaluate(trained, lengths=[64, 128], protocol=protocol, **few)).targets_hash
        )

    two, same, fewer = hashes(docs=3, blocks=2), hashes(docs=3, blocks=2), hashes(docs=2, blocks=2)
    other = hashes("nonoverlapping", docs=3, blocks=2)
    assert two == same and len(two) == 1
    assert len(two | fewer | other | hashes(docs=3, blocks=1)) == 4


def test_nonoverlapping_has_no_base_on_other_targets(
    tmp_path: Path, settings_of: Callable[..., Any], text_data: Any, evaluate: Evaluate, rows: Rows
) -> None:
    """At L = 32 there is no row at T = L, and the crop stands on the frozen targets alone."""
    run = train.run(settings_of(train={"seq_len": 32}), tmp_path / "short", text_data)
    table = rows(evaluate(run, lengths=[64], protocol="nonoverlapping", docs=2, blocks=1))
    assert list(table.base_nll) == [""] and list(table.status) == ["ok"]
    table = rows(evaluate(run, lengths=[64], docs=2, blocks=1))
    assert list(table.base_nll) == list(table.crop_nll) != [""]


def test_an_evaluation_of_other_weights_is_not_reported(trained: Any, evaluate: Evaluate) -> None:
    folder = evaluate(trained, lengths=[64], **FEW)
    trained.update(weights_sha256="0" * 64)
    with pytest.raises(RunError, match="other weights than the run has now"):
        collect([trained.path])
    assert folder.is_dir()


def test_a_text_that_was_moved_is_found_by_data_path(
    tmp_path: Path, corpus: Path, posbench: Callable[..., Any], tiny: list[str]
) -> None:
    shutil.copytree(corpus, tmp_path / "own")
    posbench("train", *tiny[:-1], "data.path=own")
    (tmp_path / "own").rename(tmp_path / "moved")
    few = ["eval.lengths=[64]", "eval.docs=1", "eval.blocks=1"]
    assert posbench("eval-lengths", "default", *few).code == 2
    assert posbench("eval-lengths", "default", "data.path=moved", *few).code == 0
    (tmp_path / "moved" / "doc00.txt").write_text("other")
    changed = posbench("eval-lengths", "default", "data.path=moved", *few)
    assert changed.code == 2 and "content_sha256" in changed.err


def test_other_evaluations_of_a_run_do_not_measure_its_references_again(
    trained: Any,
    trained_here: Any,
    copy_run: Callable[..., Any],
    sweep: Sweep,
    evaluate: Evaluate,
    calls: list[planning.Key],
) -> None:
    pi = sweep("pi", lengths=[64, 128], **FEW)
    alone = evaluate(copy_run(trained_here, root="alone"), pi)
    everything = list(calls)
    evaluate(trained, lengths=[64, 128], **FEW)
    calls.clear()
    folder = evaluate(trained, pi)
    assert calls == [key for key in everything if key.rule.startswith("pi")] != []
    assert files(folder) == files(alone)
    calls.clear()
    evaluate(trained, sweep("pi", lengths=[64, 128], docs=3, blocks=1))
    assert calls == everything  # of other tokens nothing is known


def test_references_of_other_weights_or_other_code_are_not_taken(
    trained: Any, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = planning.plan(trained, [sweep("none", lengths=[64], **FEW)])
    lengths.evaluate(todo)
    assert set(kept.plain(todo, todo.keys())) == set(todo.keys())
    other = replace(todo, run=copy(todo.run))
    other.run.manifest = {**todo.run.manifest, "weights_sha256": "0" * 64}
    assert not kept.plain(other, other.keys())
    monkeypatch.setattr(runs, "code_version", lambda: {"sources": "another"})
    assert not kept.plain(todo, todo.keys())
