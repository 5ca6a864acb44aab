"""The tables of verdicts and of longest lengths."""

import re

import numpy as np
import pandas as pd
import pytest

from posbench.report.collect import collect
from posbench.report.judged import verdict_table, within_table
from posbench.report.markdown import markdown_table
from posbench.report.sections import sections

from .conftest import PLAIN, Runs
from .crossed import add, drawn
from .test_pooling import made


def _cells(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[c.strip() for c in line.strip("|").split("|")] for line in lines[:1] + lines[2:]]


def test_a_verdict_has_its_gain_its_interval_and_the_share(runs: Runs) -> None:
    dirs, _ = made(runs, {64: 0.0, 512: 0.05, 1024: -3.0}, headroom=0.1, ngram_nll=4.0)
    pooled = collect(dirs).pooled
    (section,) = sections(pooled)
    head, line = _cells(verdict_table(section))
    assert head[1:] == ["512 4x", "1024 8x"] and line[0] == "rope"
    row = pooled[pooled["test_len"] == 512].iloc[0]
    found = re.fullmatch(
        r"uses (.\d\.\d\d) \[(.\d\.\d\d), (.\d\.\d\d)\], (\d+) % \[(\d+), (\d+)\]", line[1]
    )
    assert found is not None
    shown = [float(part) for part in found.groups()]
    assert shown[:3] == pytest.approx(row[["gain_b", "gain_b_lo", "gain_b_hi"]].tolist(), abs=0.005)
    assert shown[3:] == pytest.approx(
        [100 * v for v in row[["share", "share_lo", "share_hi"]]], abs=0.5
    )
    assert line[2] == "explodes"  # how much says little
    assert verdict_table(section) in markdown_table(pooled)


def test_what_has_no_verdict_says_so(runs: Runs) -> None:
    one, parts = made(runs, {512: 0.05})
    x = parts["512"]
    below = add(
        runs, "alibi", {512: x}, parts["crop"], parts["short"], passed=(False,) * 3, stamp="weak"
    )
    refused = runs.add(
        "learned",
        {PLAIN: [24.0, "unsupported_length"]},
        lengths=(128, 512),
        targets_hash="aa",
        tier="evidence",
    )
    table = verdict_table(sections(collect([*one, *below, refused]).pooled)[0])
    words = {line[0]: line[1] for line in _cells(table)[1:]}
    assert words["alibi \\*"] == "no verdict" and words["rope"].startswith("uses +0.1")
    assert words["learned \\*"] == "len"
    assert verdict_table(sections(collect(below).pooled)[0]) == ""


def test_longest_lengths_within_a_share_of_the_crop_loss(runs: Runs) -> None:
    x = np.full((24, 2), 3.0)
    curve = {64: x, 128: x, 256: 1.005 * x, 512: 1.02 * x, 1024: 1.2 * x}
    dirs = add(runs, "rope", curve, x, x + 0.4, more={"pi": {128: 1.1 * x, 256: x}})
    pooled = collect(dirs).pooled
    (section,) = sections(pooled)
    head, plain, rescaled = _cells(within_table(section))
    assert head[1:] == ["within 1 %", "within 5 %", "tested"]
    assert plain[1:] == ["256 2x", "512 4x", "1024 8x"]
    assert rescaled == ["rope pi@8 \\*", "-", "-", "256 2x"]  # the first length is past it
    assert within_table(section) in markdown_table(pooled)
    no_crop = pooled.assign(crop_nll=np.nan)
    assert within_table(sections(pd.DataFrame(no_crop))[0]) == ""


@pytest.mark.parametrize(("gain", "said"), [(0.05, True), (0.0, False)])
def test_a_window_that_uses_more_than_it_sees_is_said(runs: Runs, gain: float, said: bool) -> None:
    parts = [drawn(k, mean, (0.2, 0.02, 0.01), 22, 3) for k, mean in ((1, 3.0), (2, 3.4))]
    own = {512: parts[0] - gain}
    dirs = add(runs, "rope", own, *parts, more={"window": own})
    text = markdown_table(collect(dirs).pooled)
    words = "control: rope window@8 uses more than the L keys a layer sees"
    assert (words in text) is said
