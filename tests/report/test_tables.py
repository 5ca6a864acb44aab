import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest

from posbench.report.collect import collect
from posbench.report.markdown import markdown_table
from posbench.report.orders import order_lines
from posbench.report.sections import Cell, sections
from posbench.report.tables import ratio_cell, terminal_table, value_cell

from .conftest import LENGTHS, PLAIN, Rule, Runs, demo_curves

CURVE = [27.0, 24.5, 26.3, 29.8, 38.3, 46.9]


def _lines(text: str, start: str, end: str) -> list[str]:
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(start))
    last = next(i for i in range(first, len(lines)) if lines[i].startswith(end) or not lines[i])
    return lines[first:last]


def test_six_lengths_fit_80_columns(demo_rows: pd.DataFrame) -> None:
    table = terminal_table(demo_rows)
    assert max(len(line) for line in table.splitlines()) <= 80
    head = _lines(table, "perplexity", "n-gram")[0]
    for length, multiple in zip(LENGTHS, ("0.5x", "1x", "2x", "4x", "8x", "16x"), strict=True):
        assert f"{length} {multiple}" in head
    assert re.search(r"^rope +27\.0 ±0\.\d 24\.5 ±0\.\d 26\.3 ±0\.\d", table, re.M)
    assert "± is the 95 % half width over documents" in " ".join(table.split())
    assert "tier demo, same_targets, sotu bpe1024, L = 128, 22 documents, 1408 tokens a" in table
    assert "n-gram reference: perplexity 23.9 per token (same targets)" in table


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_asked(runs: Runs, width: int) -> None:
    curves: dict[Rule, list[float | str]] = {
        PLAIN: [2.71, 2.5, 1e5, 1e12, 1e200, "nonfinite"],
        ("ntk_by_parts", "auto", "beta=auto"): [99.96, 9999.7, 12345.0, 3.0, 1e300, 5.0],
        ("yarn", "8", "beta=auto"): [12.0, 12.0, 12.0, 12.0, "out_of_memory", 12.0],
    }
    dirs = [
        runs.add("rope_matched", curves, stamp="demo: below n-gram"),
        runs.add("a_very_long_name_of_a_preset", {PLAIN: CURVE}, stamp="demo: below n-gram"),
    ]
    table = terminal_table(collect(dirs).pooled, width)
    assert max(len(line) for line in table.splitlines()) <= width
    for length in LENGTHS:
        assert f" {length} " in table
    assert "nan = nonfinite" in table and "oom = out_of_memory" in table.replace("\n  ", " ")


def test_rescalings_are_indented_under_their_run(demo_rows: pd.DataFrame) -> None:
    names = [line[:20].rstrip() for line in _lines(
        terminal_table(demo_rows), "ratio to 128", "*"
    )]  # fmt: skip
    start = names.index("rope")
    assert names[start : start + 5] == ["rope", "  pi@8", "  pi@auto", "  ntk@8", "  ntk@auto"]
    assert names[-1] == "  yarn_paper@auto"[:20]


def test_ratios_are_to_the_unscaled_model_at_L(demo_rows: pd.DataFrame) -> None:
    block = _lines(terminal_table(demo_rows), "ratio to 128", "*")
    for preset in ("none", "alibi", "rope_matched"):
        curve = demo_curves()[preset][PLAIN]
        line = next(line for line in block if line.split()[0] == preset)
        expected = [f"{float(value) / float(curve[1]):.2f}" for value in curve]
        assert line.split()[1:] == expected
    rope = demo_curves()["rope"]
    line = next(line for line in block if line.startswith("  yarn@8"))
    assert line.split()[1:] == [f"{float(v) / 24.5:.2f}" for v in rope[("yarn", "8", "")]]


def test_refusals_are_words_with_a_legend(demo_rows: pd.DataFrame) -> None:
    table = terminal_table(demo_rows)
    learned = next(line for line in table.splitlines() if line.startswith("learned"))
    assert learned.split()[-4:] == ["len"] * 4
    assert "len = unsupported_length" in table
    assert table.count("unsupported_rescale: pi@8 (of none, t5)") == 1
    assert not re.search(r"\bresc\b", table)


def test_stamps_are_marked_and_explained(runs: Runs) -> None:
    dirs = [
        runs.add("alibi", {PLAIN: CURVE}, stamp="demo: below n-gram; smoke run"),
        runs.add("rope", {PLAIN: CURVE}),
    ]
    pooled = collect(dirs).pooled
    table = terminal_table(pooled)
    assert "alibi* " in table and "rope* " not in table
    assert "* demo: below n-gram (alibi)" in table and "* smoke run (alibi)" in table
    markdown = markdown_table(pooled)
    assert "| alibi \\*" in markdown and "- \\* smoke run (alibi)" in markdown


def test_each_protocol_has_its_own_section(runs: Runs) -> None:
    run = runs.add("rope", {PLAIN: CURVE})
    other = Runs(runs.root / "b").add(
        "rope", {PLAIN: CURVE}, protocol="nonoverlapping", evaluation="e1111111"
    )
    (other / "evals" / "e1111111").rename(run / "evals" / "e1111111")
    table = terminal_table(collect([run]).pooled)
    assert table.count("perplexity    ") == 2
    assert table.index("same_targets") < table.index("nonoverlapping")


def test_runs_of_one_preset_are_told_apart(runs: Runs) -> None:
    dirs = [runs.add("rope", {PLAIN: CURVE}, seed=seed) for seed in (0, 1)]
    table = terminal_table(collect(dirs).rows)
    assert "rope s0" in table and "rope s1" in table
    assert "2 seeds" in terminal_table(collect(dirs).pooled)


def variant(runs: Runs, name: str, seed: int, **config: dict[str, object]) -> Path:
    """A run of rope with other settings, its id ending in `name`."""
    made = runs.add("rope", {PLAIN: CURVE}, seed=seed)
    renamed = made.with_name(f"rope-L128-s{seed}-{name}")
    made.rename(renamed)
    for file in ("manifest.json", "evals/e0000000/lengths.csv"):
        text = (renamed / file).read_text().replace(made.name, renamed.name)
        (renamed / file).write_text(text)
    manifest = json.loads((renamed / "manifest.json").read_text())
    manifest["config"] |= config
    (renamed / "manifest.json").write_text(json.dumps(manifest))
    return renamed


def test_variants_of_a_preset_are_named_by_their_settings(runs: Runs) -> None:
    adamw = {"name": "adamw"}
    dirs = [
        variant(runs, "11111111", 0, optimizer=adamw, model={"qk_norm": True}),
        variant(runs, "00000000", 1, optimizer=adamw),
        variant(runs, "22222222", 2, optimizer={"name": "muon"}),
        variant(runs, "33333333", 3, optimizer=adamw, train={"seq_len": 128, "clip": 0.12345678}),
    ]
    pooled = collect(dirs).pooled
    table, markdown = terminal_table(pooled), markdown_table(pooled)
    names = ["rope", "rope 333333", "rope muon", "rope qk_norm=true"]
    rows = _lines(table, "perplexity", "n-gram")[1:]
    assert sorted(row[:17].rstrip() for row in rows) == names and rows[0].startswith("rope  ")
    for text in (table, markdown):
        assert "rope 333333: train.clip=0.12345678" in text
        assert text.count("rope 222222") == text.count("adamw") == 0


def test_another_configuration_is_not_another_seed(runs: Runs) -> None:
    dirs = [
        variant(runs, "00000000", 0, model={"qk_norm": True, "qkv_bias": True, "tied": False}),
        variant(runs, "11111111", 1, model={"qk_norm": True, "qkv_bias": False, "tied": False}),
    ]
    table = terminal_table(collect(dirs).pooled)
    assert "rope qkv_bias=true" in table and "rope s" not in table


def test_lengths_that_were_not_evaluated_are_dashes(runs: Runs) -> None:
    dirs = [
        runs.add("rope", {PLAIN: CURVE}),
        runs.add("alibi", {PLAIN: CURVE[:2]}, lengths=(64, 128)),
    ]
    table = terminal_table(collect(dirs).pooled)
    assert next(x for x in table.splitlines() if x.startswith("alibi")).split()[-4:] == ["-"] * 4
    assert "- = not evaluated" in table


def test_a_run_with_only_rescalings_keeps_its_heading(runs: Runs) -> None:
    table = terminal_table(collect([runs.add("rope", {("yarn", "8", ""): CURVE})]).pooled)
    lines = table.splitlines()
    assert lines[lines.index("rope") + 1].startswith("  yarn@8")


def test_one_document_says_that_it_has_no_interval(runs: Runs) -> None:
    table = terminal_table(collect([runs.add("rope", {PLAIN: CURVE}, docs=1)]).pooled)
    assert "no intervals" in table and "±" not in table and "1 document," in table


def test_markdown_has_whole_intervals_crop_and_bits(demo_rows: pd.DataFrame) -> None:
    markdown = markdown_table(demo_rows)
    row = next(line for line in markdown.splitlines() if line.startswith("| rope "))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert re.fullmatch(r"24\.5 \[2\d\.\d, 2\d\.\d\]", cells[2])
    bits = math.log(24.5) * 32 / 94 / math.log(2)
    assert cells[-2:] == ["24.8", f"{bits:.3f}"]
    assert "tier demo" in markdown and "| learned" in markdown and "len = " in markdown
    widths = {line.count("|") for line in markdown.splitlines() if line.startswith("| ")}
    assert widths == {5, 6, 8, 10}  # longest lengths, verdicts, ratios, perplexities


def _cell(value: float, half: float = math.nan, status: str = "ok") -> Cell:
    nll = math.log(value)
    lo, hi = (math.log(value - half), math.log(value + half)) if half < value else (nll, math.inf)
    if math.isnan(half):
        lo = hi = math.nan
    return Cell(status, nll, lo, hi, 0.0, 0.0, 0.0, 0.0, 22, 32, 1)


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [
        (18.6, 0.4, "18.6 ±0.4"),
        (2.714, 0.03, "2.71 ±.03"),
        (18.6, 0.04, "18.6 ±.04"),
        (9.996, 0.4, "10.0 ±0.4"),
        (104.2, 3.1, "104 ±3"),
        (18.6, 12.3, "18.6±12.3"),
        (4000, 107, "4000 ±107"),
        (9999, 999, "9999 ±999"),
        (12345, 300, "1.2e4±3e2"),
        (1e12, 3e11, "1e12±3e11"),
        (1e100, 1e99, "1.0e100"),
        (18.6, math.nan, "18.6"),
    ],
)
def test_values_take_the_best_form_that_fits(value: float, half: float, text: str) -> None:
    cell = value_cell(_cell(value, half), 9)
    assert cell == text
    assert len(cell) <= 9


def test_a_wider_column_shows_more() -> None:
    assert value_cell(_cell(12345, 300), 11) == "1.2e4 ±3e2"


def test_overflow_is_a_number_not_an_error() -> None:
    huge = Cell("ok", 5000.0, 4000.0, 6000.0, 3.0, 3.0, 3.0, 1.0, 22, 32, 1)
    assert value_cell(huge, 9) == ">1e300"
    assert ratio_cell(huge) == ">1e300"


def test_an_order_is_one_line_only_where_the_runs_agree(runs: Runs) -> None:
    def curves(pi: float, yarn: float) -> dict[Rule, list[float | str]]:
        """Both rescalings equal up to L = 128; `pi` and `yarn` at 256; equal order beyond."""
        return {
            PLAIN: CURVE,
            ("pi", "8", ""): [25.0, 25.0, pi, 40.0, 50.0, "nonfinite"],
            ("yarn", "8", ""): [25.0, 25.0, yarn, 30.0, 40.0, 45.0],
            ("yarn", "8", "beta=auto"): [1.0] * 6,
        }

    dirs = [runs.add("rope", curves(26.0, 27.0)), runs.add("rope_matched", curves(27.0, 26.0))]
    lines = order_lines(sections(collect(dirs).pooled)[0])
    assert [line.split() for line in lines[1:]] == [
        ["@8", "2x", "rope", "pi", "<", "yarn"],
        ["rope_matched", "yarn", "<", "pi"],
        ["@8", "4x", "all", "runs", "yarn", "<", "pi"],
        ["@8", "8x", "all", "runs", "yarn", "<", "pi"],
    ]
