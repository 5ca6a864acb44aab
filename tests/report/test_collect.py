"""What a report reads of runs: one file, since all of it is about `collect`."""

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from posbench.errors import RunError
from posbench.files import hashes
from posbench.report.collect import collect, model_hash, read_rows
from posbench.report.write import write_report

from .conftest import PLAIN, Runs, demo_curves

CURVE = [27.0, 24.5, 26.3, 29.8, 38.3, 46.9]


def test_rows_are_complete_and_ordered(demo: list[Path]) -> None:
    rows = collect(demo).rows
    assert list(dict.fromkeys(rows["preset"])) == list(demo_curves())
    assert len(rows) == sum(len(c) * 6 for c in demo_curves().values())
    rope = rows[(rows["preset"] == "rope") & (rows["test_len"] == 64)]
    assert list(zip(rope["rescale"], rope["factor"], strict=True)) == [
        ("none", ""), ("pi", "8"), ("pi", "auto"), ("ntk", "8"), ("ntk", "auto"),
        ("ntk_by_parts", "8"), ("ntk_by_parts", "auto"), ("dynamic_ntk", ""), ("yarn", "8"),
        ("yarn", "auto"), ("yarn_paper", "8"), ("yarn_paper", "auto"),
    ]  # fmt: skip
    plain = rows[(rows["preset"] == "rope") & (rows["rescale"] == "none")]
    assert list(plain["test_len"]) == [64, 128, 256, 512, 1024, 2048]


def test_other_presets_come_after_the_survey(runs: Runs) -> None:
    names = ["zebra", "rope_500k", "alibi", "kerple", "rope", "none"]
    rows = collect([runs.add(name, {PLAIN: CURVE}) for name in names]).rows
    assert list(dict.fromkeys(rows["preset"])) == [
        "none", "alibi", "rope", "rope_500k", "kerple", "zebra",
    ]  # fmt: skip


def test_numeric_factors_sort_as_numbers_and_before_auto(runs: Runs) -> None:
    curves = {("yarn", f, ""): CURVE for f in ("auto", "16", "8.0", "2")}
    rows = collect([runs.add("rope", {PLAIN: CURVE, **curves})]).rows
    yarn = rows[(rows["rescale"] == "yarn") & (rows["test_len"] == 64)]
    assert list(yarn["factor"]) == ["2", "8", "16", "auto"]


def test_the_latest_evaluation_wins(runs: Runs) -> None:
    old = runs.add("rope", {PLAIN: CURVE}, evaluation="f0000000")
    run = old / "evals"
    again = Runs(runs.root / "again").add("rope", {PLAIN: [30.0] * 6}, evaluation="a0000000")
    (again / "evals" / "a0000000").rename(run / "a0000000")

    def finished(name: str, when: str) -> None:
        manifest = json.loads((run / name / "manifest.json").read_text())
        (run / name / "manifest.json").write_text(json.dumps(manifest | {"finished": when}))

    finished("f0000000", "2026-11-30T10:00:00+00:00")
    finished("a0000000", "2026-11-29T23:00:00+00:00")
    os.utime(run / "f0000000" / "lengths.csv", (1_500_000_000,) * 2)  # as a checkout may leave it
    rows = collect([old]).rows
    assert len(rows) == 6
    assert rows["nll"].to_numpy() == pytest.approx(np.log(CURVE))
    finished("a0000000", "2026-12-01T00:00:00+00:00")
    collected = collect([old, old])
    assert collected.rows["nll"].to_numpy() == pytest.approx(math.log(30))
    assert set(collected.blocks["eval_id"]) == {"a0000000"}


def test_an_unfinished_evaluation_is_left_out_and_named(runs: Runs) -> None:
    done = runs.add("rope", {PLAIN: CURVE})
    running = runs.add("alibi", {PLAIN: CURVE}, status="running")
    collected = collect([done, running])
    assert set(collected.rows["preset"]) == {"rope"}
    assert collected.skipped[running.name].startswith("not evaluated")
    assert f"{running.name}/e0000000" in collected.skipped


def test_errors_are_one_clear_line(runs: Runs, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        collect([tmp_path])
    running = runs.add("alibi", {PLAIN: CURVE}, status="running")
    with pytest.raises(RunError, match="posbench eval-lengths RUN"):
        collect([running])
    with pytest.raises(RunError, match="posbench eval-lengths RUN"):
        collect([])
    run = runs.add("rope", {PLAIN: CURVE})
    lengths = run / "evals" / "e0000000" / "lengths.csv"
    whole = lengths.read_text()
    lengths.write_text(whole.replace("nll_lo", "other", 1))
    with pytest.raises(RunError, match="no column nll_lo"):
        collect([run])
    lengths.write_text(whole.replace("22", "many", 1))
    with pytest.raises(RunError, match="damaged"):
        collect([run])
    (run / "manifest.json").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        collect([run])


def test_one_seed_keeps_its_own_numbers(demo: list[Path]) -> None:
    collected = collect(demo)
    assert (collected.pooled["n_seeds"] == 1).all()
    for name in ("nll", "nll_lo", "gain", "ppl", "run_id", "stamp"):
        pd.testing.assert_series_equal(collected.pooled[name], collected.rows[name])


def _three_seeds(runs: Runs) -> list[Path]:
    yarn = ("yarn", "8", "")
    curves = [{PLAIN: [v * k for v in CURVE], yarn: [25.0 * k] * 6} for k in (1.0, 1.05, 0.98)]
    stamps = ["", "demo: below n-gram", "smoke run"]
    return [
        runs.add("rope", c, seed=s, stamp=t, docs=7, blocks=3, crop=24.0 + s)
        for s, (c, t) in enumerate(zip(curves, stamps, strict=True))
    ]


def test_seeds_are_pooled_over_documents(runs: Runs) -> None:
    dirs = _three_seeds(runs)
    pooled = collect([*dirs, runs.add("alibi", {PLAIN: CURVE}, docs=7)]).pooled
    assert len(pooled) == 18
    assert set(pooled.loc[pooled["preset"] == "alibi", "n_seeds"]) == {1}
    row = pooled[(pooled["rescale"] == "yarn") & (pooled["test_len"] == 512)].iloc[0]

    total, count, gains = 0.0, 0, []
    for run in dirs:
        blocks = pd.read_csv(run / "evals" / "e0000000" / "blocks.csv", keep_default_na=False)
        for document in sorted(set(blocks["document"])):
            sums = {}
            for protocol, rescale, length in (("same_targets", "yarn", 512), ("crop", "none", 128)):
                nats = tokens = 0.0
                for _, b in blocks.iterrows():
                    wanted = (document, protocol, rescale, length)
                    if (b["document"], b["protocol"], b["rescale"], b["test_len"]) == wanted:
                        nats, tokens = nats + b["nats"], tokens + b["tokens"]
                sums[protocol] = nats / tokens
            total, count = total + sums["same_targets"], count + 1
            gains.append(sums["crop"] - sums["same_targets"])
    assert row["n_seeds"] == 3
    assert row["nll"] == pytest.approx(total / count, rel=1e-12)
    assert row["ppl"] == pytest.approx(math.exp(total / count), rel=1e-12)
    assert row["gain"] == pytest.approx(sum(gains) / count, rel=1e-9)
    assert row["nll_lo"] < row["nll"] < row["nll_hi"]
    assert row["gain_lo"] < row["gain"] < row["gain_hi"]
    expected = np.mean([math.log(24.5 * k) for k in (1.0, 1.05, 0.98)])
    assert row["base_nll"] == pytest.approx(expected)
    assert row["seed"] == "0+1+2"
    assert row["stamp"] == "demo: below n-gram; smoke run"


def test_a_seed_that_failed_is_not_averaged_away(runs: Runs) -> None:
    good = runs.add("rope", {PLAIN: CURVE}, seed=0)
    bad = runs.add("rope", {PLAIN: [*CURVE[:5], "nonfinite"]}, seed=1)
    last = collect([good, bad]).pooled.iloc[-1]
    assert (last["status"], last["n_seeds"]) == ("nonfinite", 2)
    assert math.isnan(last["nll"])


def test_other_settings_are_not_pooled_but_other_devices_are(runs: Runs) -> None:
    dirs = [runs.add("rope", {PLAIN: CURVE}, seed=seed) for seed in (0, 1, 2)]
    for run, lr, device in zip(dirs, (1, 1, 2), ("cpu", "cuda", "cpu"), strict=True):
        manifest = json.loads((run / "manifest.json").read_text())
        manifest["config"]["train"] |= {"lr": lr, "device": device}
        (run / "manifest.json").write_text(json.dumps(manifest))
    pooled = collect(dirs).pooled
    assert sorted(set(pooled["n_seeds"])) == [1, 2]
    assert len(pooled) == 12


def test_one_document_has_no_interval(runs: Runs) -> None:
    dirs = [runs.add("rope", {PLAIN: CURVE}, seed=seed, docs=1) for seed in (0, 1)]
    pooled = collect(dirs).pooled
    assert pooled[["nll_lo", "nll_hi", "gain_lo"]].isna().all(axis=None)
    assert pooled["nll"].notna().all()


def test_intervals_over_blocks_pool_blocks(runs: Runs) -> None:
    dirs = [runs.add("rope", {PLAIN: CURVE}, seed=seed, docs=1, blocks=12) for seed in (0, 1)]
    for run in dirs:
        path = run / "evals" / "e0000000" / "manifest.json"
        path.write_text(path.read_text().replace("documents", "blocks"))
    pooled = collect(dirs).pooled
    assert pooled["nll_lo"].notna().all()


def test_tables_from_before_windows_had_a_hash_and_lengths_a_shape_are_read(runs: Runs) -> None:
    run = runs.add("rope", {PLAIN: CURVE})
    new = collect([run]).rows
    file = run / "evals" / "e0000000" / "lengths.csv"
    lines = file.read_text().splitlines()
    file.write_text("".join(line.rsplit(",", 10)[0] + "\n" for line in lines))
    assert "windows_hash" not in file.read_text() and "shape" not in file.read_text()
    found = collect([run]).rows
    assert set(found) == set(new)
    pd.testing.assert_frame_equal(found[list(new)], new)


def test_the_csv_holds_every_row_exactly(runs: Runs, tmp_path: Path) -> None:
    curves = {PLAIN: CURVE, ("yarn", "8", "beta=auto"): CURVE}
    demo = [runs.add("rope", curves), runs.add("learned", demo_curves()["learned"])]
    collected = write_report(demo, tmp_path / "out")
    csv = tmp_path / "out" / "lengths.csv"
    source = demo[0] / "evals" / "e0000000" / "lengths.csv"
    header = csv.read_text().splitlines()[0].split(",")
    old = source.read_text().splitlines()[0].split(",")
    assert header[: len(old)] == old and header[-2:] == ["nll_median", "n_seeds"]
    again = read_rows(csv)[collected.columns]
    pd.testing.assert_frame_equal(again, collected.rows[collected.columns])
    written = source.read_text().split("\n")[1]
    nll = written.split(",")[collected.columns.index("nll")]
    assert f",{nll}," in csv.read_text()


def test_equal_input_gives_equal_bytes(runs: Runs, tmp_path: Path) -> None:
    curves = demo_curves()
    demo = [runs.add(name, curves[name]) for name in ("rope", "sinusoidal", "learned")]
    write_report(demo, tmp_path / "one")
    write_report(demo[::-1], tmp_path / "two")
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names == {
        "lengths.csv", "verdicts.csv", "within.csv", "pairs.csv", "lengths.md",
        "perplexity.png", "perplexity.svg", "ratio.png", "ratio.svg", "matrix.png", "matrix.svg",
    }  # fmt: skip
    for name in names:
        one, two = ((tmp_path / folder / name).read_bytes() for folder in ("one", "two"))
        assert one == two, name


def test_what_is_missing_is_said_in_the_report(runs: Runs, tmp_path: Path) -> None:
    done = runs.add("rope", {PLAIN: CURVE})
    missing = runs.add("alibi", {PLAIN: CURVE}, status="running")
    write_report([done, missing], tmp_path / "out")
    assert f"{missing.name}: not evaluated" in (tmp_path / "out" / "lengths.md").read_text()


def test_an_option_that_came_later_makes_no_other_configuration() -> None:
    """Manifests of one configuration from before and after an option was there."""
    before = {
        "posenc": {"name": "alibi"},
        "model": {"d_model": 64},
        "train": {"seq_len": 64, "lr": 0.1, "device": "cpu"},
        "optimizer": {"name": "adamw"},
        "data": {"name": "sotu"},
        "seed": 0,
        "name": "demo",
    }
    after = {
        **before,
        "posenc": {"name": "alibi", "bias_max": 8.0},
        "model": {"d_model": 64, "qk_norm": False},
        "seed": 3,
        "name": "else",
    }
    assert model_hash(before) == model_hash(after)
    for group, options in (
        ("posenc", {"name": "alibi", "bias_max": 16.0}),
        ("posenc", {"name": "t5"}),
        ("model", {"d_model": 64, "qk_norm": True}),
        ("train", {"seq_len": 64, "lr": 0.2, "device": "cpu"}),
        ("optimizer", {"name": "muon"}),
        ("data", {"name": "code"}),
    ):
        assert model_hash({**before, group: options}) != model_hash(before), options
    strange = [{**before, "posenc": {"name": "nowhere_to_be_found", "x": x}} for x in (1, 2)]
    assert len({model_hash(one) for one in strange}) == 2


def test_a_damaged_evaluation_is_named_and_leaves_the_others(runs: Runs) -> None:
    whole, damaged = runs.add("alibi", {PLAIN: CURVE}), runs.add("rope", {PLAIN: CURVE})
    path = damaged / "evals" / "e0000000" / "blocks.csv"
    path.write_text(path.read_text().replace("nats", "other", 1))
    found = collect([whole, damaged])
    assert set(found.rows["preset"]) == {"alibi"}
    assert any("no column nats" in why for why in found.skipped.values())


def test_a_table_that_is_not_as_it_was_written_is_named(runs: Runs) -> None:
    """Though it can be read: cut at the end of a line."""
    whole, cut = runs.add("alibi", {PLAIN: CURVE}), runs.add("rope", {PLAIN: CURVE})
    folder = cut / "evals" / "e0000000"
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"sha256": hashes(folder.glob("*.csv"))}))
    assert set(collect([whole, cut]).rows["preset"]) == {"alibi", "rope"}
    table = folder / "blocks.csv"
    table.write_text("".join(table.read_text().splitlines(True)[:-5]))
    found = collect([whole, cut])
    assert set(found.rows["preset"]) == {"alibi"}
    (why,) = (text for name, text in found.skipped.items() if name.endswith("e0000000"))
    assert why == f"{table.resolve()} is damaged: not as it was written"


def test_what_a_run_took_stands_beside_its_results(runs: Runs) -> None:
    """Operations by hand: two layers of width 64 with an MLP of 256, 256 bytes, 128 tokens."""
    run = runs.add("rope", {PLAIN: CURVE})
    path = run / "manifest.json"
    manifest = json.loads(path.read_text())
    model = {"d_model": 64, "n_layers": 2, "n_heads": 2, "hidden": 256}
    manifest["config"] |= {"model": model, "data": {"name": "sotu", "tokenizer": "bytes"}}
    manifest |= {"tokens": 12_800, "seconds": 3.5, "parameters": {"positional": 7}}
    path.write_text(json.dumps(manifest))
    found = collect([run]).pooled.set_index("test_len")
    assert set(found["positional_parameters"]) == {7} and set(found["train_seconds"]) == {3.5}
    token = 2 * (2 * (4 * 64 * 64 + 3 * 64 * 256) + 64 * 256)  # projections, MLP and output
    pairs = 2 * 2 * 2 * 64 * 128 * 129 / 2  # scores and their sums, causal
    L = manifest["config"]["train"]["seq_len"]
    assert L == 128 and set(found["train_flops"]) == {3 * 100 * (128 * token + pairs)}
    wanted = found.loc[128, "n_blocks"] * (128 * token + pairs)
    assert found.loc[128, "test_flops"] == pytest.approx(wanted)


def test_seeds_that_diverged_are_stamped(runs: Runs) -> None:
    """The mean of those that did not would hide them; another configuration is not concerned."""
    kinds = (("rope", 0), ("alibi", 0), ("rope", 5))
    dirs = [runs.add(name, {PLAIN: CURVE}, seed=seed) for name, seed in kinds]
    path = dirs[2] / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"status": "diverged"}))
    shutil.rmtree(dirs[2] / "evals")
    found = collect(dirs)
    assert found.skipped == {manifest["run_id"]: "not evaluated, status diverged"}
    stamps = found.pooled.groupby("preset")["stamp"].unique()
    assert "1 seed diverged" in stamps["rope"][0] and "diverged" not in stamps["alibi"][0]
