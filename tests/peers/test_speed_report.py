"""The speed bench's tables and command, on numbers that are made up."""

import json
from pathlib import Path

import pytest

from peers.speed import __main__ as driver
from peers.speed import measure, report
from peers.speed.bench import OURS, PRODUCT
from peers.speed.task import Shape


def test_the_fastest_peer_depends_on_the_length_of_the_run():
    rows = {
        OURS: {"samples": [0.1], "first": 0.1, "compiled": True},
        "a": {"samples": [3.0, 1.0, 2.0], "first": 2.0, "compiled": False},
        "b": {"samples": [1.0, 1.0, 1.0], "first": 11.0, "compiled": True},
        "c": {"reason": "not installed"},
    }
    assert measure.rivals(rows) == ["a", "b"]
    assert measure.total(rows["b"], 4) == 14.0
    assert measure.fastest(rows, lambda row: measure.total(row, 4)) == "a"
    assert measure.fastest(rows, lambda row: measure.total(row, 40)) == "b"
    assert measure.fastest({OURS: rows[OURS]}, measure.median) == ""


def made_up():
    """A record of two rounds as `everything` gives it: what is asserted below is by hand."""
    about = {"tokens": 4096, "first": 1.0, "parameters": 1000, "compiled": False}
    rows = {
        OURS: {**about, "samples": [0.5, 0.25], "first": 20.5, "operations": 1e9, "compiled": True},
        "x-transformers": {**about, "samples": [0.75, 0.5], "operations": 1e9},
        "nanoGPT": {"reason": "not given"},
        PRODUCT: {"samples": [0.25, 0.125], "operations": 2 * 2048**3},
    }
    shape = vars(Shape("small", 4, 128, 4, 384, 128, 32))
    rates = {OURS: [300.0, 400.0], "x-transformers": [200.0, 200.0]}
    packing = {"threads": 1, "firsts": [20.0, 5.0], "compiled": True, "rates": rates}
    run = {"seconds": 50.0, "loss": 3.5, "process": 60.0, "compiled": True}
    swept = {
        OURS: {"samples": [1.0, 1.0], "lengths": [[0.25, 0.75]] * 2},
        "transformers Llama": {"samples": [2.0, 3.0], "lengths": [[0.5, 1.5], [1.0, 2.0]]},
        "x-transformers": {"reason": "it broke"},
    }
    limited = {"limit": 8 * 2**30, "tried": [4096], "stopped": ""}
    alibi = {"length": 4096, "seconds": 9.0, "row": {"samples": [1.0, 2.0, 1.5]}}
    return {
        "training": [{"shape": shape, "rows": rows, "steps": 5, "packing": packing}],
        "whole": {
            "steps": 425,
            "peer": "x-transformers",
            "tokens": 425 * 4096,
            OURS: run,
            "x-transformers": {**run, "process": 90.0, "seconds": 75.0},
        },
        "sweep": {"lengths": [128, 256], "shape": shape, "rows": swept},
        "longest": [
            {**limited, "scheme": "alibi", **alibi},
            {**limited, "scheme": "t5", "reason": "no length survived", "stopped": "killed"},
        ],
        "versions": {"ours": {"torch": "2.13.0", "library": "0.1.0"}},
        "idle": [0.0, 0.02],
        "corpus": "sotu",
        "rounds": 2,
        "machine": {
            "processor": "a processor",
            "threads": 2,
            "system": "Linux x86_64",
            "python": "3.11.0",
            "minutes": 7.0,
            "load": 0.25,
        },
    }


def cells(shown: str, start: str) -> list[list[str]]:
    """Cells of the lines that begin with a first cell."""
    lines = [line for line in shown.splitlines() if line.startswith(f"| {start} |")]
    return [[c.strip() for c in line.strip("|").split("|")] for line in lines]


def test_the_tables_hold_what_was_measured():
    shown = report.markdown(made_up())
    ratio = "1.75 (1.50 to 2.00)"  # 0.75 / 0.5 and 0.5 / 0.25
    training = cells(shown, "x-transformers")[0]
    assert training[1:4] == ["1,000", "1.0", "6,827 (5,461 to 8,192)"] and training[5] == ratio
    # 1e9 / 0.75 of 2 * 2048^3 / 0.25, and 1e9 / 0.5 of 2 * 2048^3 / 0.125: 1.9 % and 1.5 %
    assert training[4] == "2%"
    assert "Matrix product by round: 69, 137 GFLOP/s" in shown
    assert cells(shown, "nanoGPT")[0][3] == "not run: not given"
    assert cells(shown, "training step, small")[0][1:] == ["x-transformers", ratio]
    assert cells(shown, "two workers side by side, small")[0][2] == "1.75 (1.50 to 2.00)"
    # 1.0 + 424 * 0.625 over 20.5 + 424 * 0.375, and 1,700 steps
    assert cells(shown, "x-transformers")[2][1:] == ["0.4", "266", "1.48", "1063", "1.62"]
    assert cells(shown, "1,700 steps, small, compiling included")[0][2] == "1.62"
    assert cells(shown, "a real run of 425 steps")[0][2] == "1.50"
    assert "| x-transformers | 90.0 | 75.0 | 19,342 | 3.50 |" in shown
    assert "| 256 | 750.0 | 1,750.0 |" in shown and "x-transformers: not run: it broke" in shown
    assert cells(shown, "sweep over lengths")[0][2] == "2.50 (2.00 to 3.00)"
    assert cells(shown, "alibi at 4,096 tokens")[0][2] == "6.0 (4.5 to 9.0)"
    assert cells(shown, "t5")[0][4:] == ["not run: no length survived", "killed"]
    assert "at most 2.0% of a core" in shown


def test_nothing_measured_is_a_table_of_reasons():
    record = made_up()
    for rows in [record["training"][0]["rows"], record["sweep"]["rows"]]:
        for name in rows:
            rows[name] = {"reason": "broken"}
    record["longest"][0]["row"] = {"reason": "broken"}
    record["training"][0]["packing"] = record["whole"] = {"reason": "no peer ran"}
    shown = report.markdown(record)
    assert shown.count("not run: broken") >= 4 and shown.count("not run: no peer ran") == 2


@pytest.mark.parametrize("options", [["--rounds", "1"], ["--nanogpt", "nowhere"]])
def test_bad_options_are_refused_before_anything_is_made(options, monkeypatch):
    monkeypatch.setattr(driver, "ready", lambda *_: pytest.fail("an environment was made"))
    with pytest.raises(SystemExit, match="2"):
        driver.main(options)


def test_it_writes_the_tables_and_their_numbers(tmp_path, monkeypatch, capsys):
    absent = {}
    monkeypatch.setattr(driver, "pythons", lambda *_: ({"nanogpt": Path("python")}, absent))

    def everything(bench):
        assert "nanogpt" not in bench.pythons and bench.absent["nanogpt"].startswith("not given")
        assert bench.size.rounds == 2
        record = made_up()
        record.pop("machine")
        return record

    monkeypatch.setattr(driver, "everything", everything)
    out = tmp_path / "new" / "speed.md"
    assert driver.main(["--rounds", "2", "--out", str(out)]) == 0
    assert out.read_text(encoding="utf-8") in capsys.readouterr().out
    numbers = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert numbers["training"][0]["rows"][OURS]["samples"] == [0.5, 0.25]
    assert numbers["machine"]["threads"] == driver.machine.cores()
    assert driver.rounded({"a": [1 / 3, 2]}) == {"a": [0.333333, 2]}
