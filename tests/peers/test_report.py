"""The table, from findings that are made up."""

from peers import report
from peers.compare import Finding, Shown
from peers.contract import Checked
from peers.report import Outcome

AGREES = Finding("rope", "Rotary", "written out", "agrees", inputs=4, tolerance=1e-5, largest=1e-7)
DIFFERS = Finding(
    "alibi",
    "slopes | of " + "a very long name " * 4,
    "the recipe written out",
    "differs",
    inputs=16,
    tolerance=1e-5,
    relative=False,
    largest=0.25,
    largest_at={"heads": 9},
    smallest=Shown(
        {"heads": 3, "distances": list(range(99))}, "slope of head 2", 0.0625, 0.25, 0.25
    ),
    peer_off=0.25,
)
MISSING = Finding("xpos", "Rotary, xPos", "x", "not run", "peer at n=1: ConfigError: unknown")
CHECKS = [
    Checked("made_up_rope", "paper", "Names it", 0.0, "<=", 0, True, ""),
    Checked("made_up_rope", "norm", "Turning keeps norms", 1.3e-7, "<=", 1e-9, False, ""),
    Checked("made_up_rope", "order", "No | trace", 0.31, "<=", 0, False, "at 67 after 128"),
    Checked("made_up_alibi", "paper", "Names it", 0.0, "<=", 0, True, ""),
]
OUTCOMES = [
    Outcome("made-up", "1.2.3", [AGREES, DIFFERS, MISSING]),
    Outcome("absent", "0.1", reason="not installed: No matching distribution found for absent"),
]


def test_markdown():
    text = report.markdown(OUTCOMES)
    assert text.endswith(".\n") and "\n\n\n" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 4
    assert table[2].startswith("| (all) | absent 0.1 |  | not run |  |  | not installed: No match")
    assert "| differs | 16 | 0.25 abs. | heads=3, distances=0..98 | posbench |" in table[3]
    assert "slopes \\| of" in table[3]
    assert table[4] == "| rope | made-up 1.2.3 | Rotary | agrees | 4 | 1e-07 |  | both |"
    flat = " ".join(text.split())
    assert (
        "At heads=3, distances=0..98, slope of head 2 is 0.0625 in made-up 1.2.3 and 0.25 in "
        "posbench; 0.25 by the recipe written out." in flat
    )
    assert "Largest difference over 16 inputs: 0.25 (absolute), at heads=9" in flat


def test_contract():
    outcomes = [Outcome("made-up", "1", [AGREES], checks=CHECKS)]
    outcomes += [Outcome("other", "2", [AGREES], unchecked="ImportError: no")]
    text, shown = report.markdown(outcomes), report.terminal(outcomes)
    assert "| made_up_rope | made-up 1 | 3 | 1 | 1 | order |" in text
    assert "| made_up_alibi | made-up 1 | 1 | 1 | 0 |  |" in text
    assert "| (all) | other 2 |  |  |  | not run: ImportError: no |" in text
    wanted = "- `made_up_rope`, order (No | trace): 0.31, must be <= 0 (at 67 after 128)"
    assert [x for x in text.splitlines() if x.startswith("- ")] == [wanted]
    assert "check made_up_rope: 2 of 3 pass; fail: order 0.31" in shown
    assert "check made_up_alibi: 1 of 1 pass\n" in shown
    assert "check: not run: ImportError: no" in shown


def test_nothing_differs():
    assert "Where they differ" not in report.markdown([Outcome("made-up", "1", [AGREES])])


def test_terminal_fits_80_columns():
    text = report.terminal(OUTCOMES)
    assert max(map(len, text.splitlines())) <= 80
    for wanted in (
        "made-up 1.2.3",
        "absent 0.1",
        "not installed",
        "ConfigError",
        "slope of head 2",
    ):
        assert wanted in text


def test_posbench_off_the_oracle_is_wrong():
    assert report.wrong(OUTCOMES) == []
    off = Finding("rope", "x", "x", "agrees", inputs=1, tolerance=1e-5, posbench_off=1e-3)
    none = Finding("rope", "x", "x", "not run", "posbench at n=1: KeyError: inv_freq")
    assert report.wrong([Outcome("made-up", "1", [AGREES, off, none])]) == [off, none]
