"""`posbench claims` seen from outside."""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import refused
from invented import Invented

from posbench import complete
from posbench.evidence import cells, decide, plan, printed, tables, work
from posbench.evidence.claims import Claim, load

Command = Callable[..., Any]


def test_without_cells_all_is_undecided(posbench: Command) -> None:
    done = posbench("claims")
    assert done.code == 0 and done.err.startswith("no evidence here, so nothing is decided")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    ids = [line.split()[0] for line in lines[2:] if line[:1].isalpha() and line[:1].isupper()]
    assert ids == [claim.id for claim in load()]
    assert "no runs" in done.out
    assert "holds" not in done.out.replace("published", "")
    assert f"{len(load())} undecided" in lines


def test_the_file(posbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(evidence: Any, out: Path, seeds: int, root: str) -> list[str]:
        assert (out / "claims.csv").is_file() and (seeds, root) == (3, "runs")
        return ["verdicts.csv"]

    monkeypatch.setattr(tables, "write", write)
    done = posbench("claims", "--out", "made", "--csv", "more/all.csv")
    assert done.code == 0
    assert done.errors[-1] == "wrote made/verdicts.csv"
    assert (tmp_path / "made/claims.csv").read_text() == (tmp_path / "more/all.csv").read_text()
    rows = list(csv.DictReader((tmp_path / "made/claims.csv").read_text().splitlines()))
    assert list(rows[0])[:8] == [
        "id", "source", "verdict", "effect", "lo", "hi", "n_seeds", "command",
    ]  # fmt: skip
    by_id = {row["id"]: row for row in rows}
    assert len(by_id) == len(rows) == len(load())
    assert by_id["S23a"]["verdict"] == "undecided"
    assert by_id["S23a"]["command"] == "posbench claims S23a"
    assert by_id["S23a"]["effect"] == by_id["S23a"]["n_seeds"] == ""
    assert {row["verdict"] for row in rows} == {"undecided"}


def test_one_claim_in_full(posbench: Command) -> None:
    done = posbench("claims", "S23a")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    text = " ".join(done.out.split())
    for words in (
        "NTK-aware scaling is better than PI",
        "survey 2.4.3.2",
        "an interval above 0.01, in each of 3 cases under rope and rope_matched; 3 seeds",
        "difference: better = rope ntk@auto at 2 L; worse = rope pi@auto at 2 L",
        "(first of 6 cases)",
        "39.3 %",
        "undecided: no runs",
        "rope_matched at 8 L: undecided, no runs",
        "posbench claims S23a --run",
        "posbench train experiment=evidence posenc=none,rope,alibi seed=0,1,2 -m",
    ):
        assert words in text, (words, text)


def test_parts_of_a_claim(posbench: Command) -> None:
    done = posbench("claims", "S06")
    assert [line for line in done.out.splitlines() if line.startswith("claim ")][2].split()[1] == (
        "S06c"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("X99",), "claim X99 is none of S01a, "),
        (("--seeds", "0"), "--seeds=0: must be at least 1"),
        (("--minutes", "0", "--run"), "--minutes=0: must be above 0"),
        (("S23a", "--out", "made"), "--out=made: of all claims; leave out S23a"),
        (("--csv", "."), "--csv=.: cannot be written (a folder has that name)"),
        (("--cells", "file"), "a file, not a folder of cells"),
        (("S01A",), "claim S01A (did you mean S01a?) is none of"),
        (("--csv", "/proc/x/y.csv"), "--csv=/proc/x/y.csv: cannot be written"),
        (("--cells", "nowhere"), "--cells=nowhere: no such folder; only --run makes one"),
    ],
)
def test_bad_input_is_one_line(
    posbench: Command, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "file").touch()
    refused(posbench("claims", *words), message)


def test_the_plan_and_the_work_are_of_the_claims_alone(
    posbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def planned(experiments: Any, store: Any, seeds: int, names: Any, root: str) -> list[str]:
        asked.append((seeds, names, root))
        return ["shorter  3 trainings"]

    def worked(
        experiments: Any, store: Any, seeds: int, minutes: float, report: Any, names: Any, root: str
    ) -> None:
        asked.append((seeds, minutes, names, root))
        report("working")

    monkeypatch.setattr(work, "plan", planned)
    monkeypatch.setattr(work, "run", worked)
    done = posbench("claims", "S05a", "--plan", "--seeds", "4")
    assert (done.out, done.code) == ("shorter  3 trainings\n", 0)
    done = posbench("claims", "S05a", "--run", "--minutes", "7", "--runs-root", "there")
    assert done.code == 0 and done.err == "working\n"
    assert posbench("claims", "--plan").code == 0
    assert asked == [
        (4, ["schemes", "core", "shorter"], "runs"),
        (3, 7.0, ["schemes", "core", "shorter"], "there"),
        (3, None, "runs"),
    ]


def test_evidence_that_decides(posbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Invented()
    for preset, nll in (("rope", 3.0), ("rope_matched", 2.9)):
        for rule, more in (("ntk", 0.1), ("pi", 0.6)):
            losses = {2: nll + more, 4: nll + 2 * more, 8: nll + 3 * more}
            name = "core" if preset == "rope" else "matched"
            source.add(name, preset, losses, rescale=rule, factor="auto")
    monkeypatch.setattr(cells, "Evidence", lambda *_: source)
    done = posbench("claims", "S23a", "S21a", "S04a", "S09")
    assert max(map(len, done.out.splitlines())) <= 80
    row = next(line for line in done.out.splitlines() if line.startswith("S23a"))
    assert row.split()[1] == "holds"
    assert re.search(r" 0\.(4[89]|5)\d* \[0\.4\S+ \S+ nats ", row), row
    full = " ".join(posbench("claims", "S23a").out.split())
    wanted = r"rope at 2 L: 0\.\S+ \[\S+ \S+ nats, holds, 3 seeds, 22 documents"
    assert re.search(wanted, full), full
    assert "takes an interval above 0.01 nats, in each of 3 cases" in full


# ---- what is printed


def outcome(**more: Any) -> decide.Outcome:
    claim = Claim("Z1", "nowhere", "It is so.", "1 against 2", "read", check="difference")
    return decide.Outcome(claim, **{"verdict": "undecided", **more})


def test_long_cells_are_wrapped() -> None:
    effect = printed.Effect(-1234.5678, -2e-9, float("inf"), 12, 0.5, "steps")
    claim = Claim("KE4b", "s" * 200, "It is so. " * 20, "word " * 60, "read", check="difference")
    one = decide.Outcome(claim, "undecided", "reason " * 50, effect)
    text = printed.table([one])
    assert max(map(len, text.splitlines())) <= 80
    assert "-1235 [-2e-09, inf] steps" in " ".join(text.split())
    case = decide.Case("at 2 L", "undecided", "because", effect)
    one = decide.Outcome(claim, "undecided", "reason " * 50, effect, (case,))
    assert " ".join(["reason"] * 50) in " ".join(printed.details(one, {}, 3).split())


def test_numbers_of_the_file_are_whole() -> None:
    effect = printed.Effect(1 / 3, 0.1, 0.5, 3, 0.2, "nats")
    (row,) = csv.DictReader(io.StringIO(printed.as_csv([outcome(effect=effect, reason="a, b")])))
    assert float(row["effect"]) == 1 / 3 and row["reason"] == "a, b"
    nothing = printed.Effect(1.0)
    (row,) = csv.DictReader(io.StringIO(printed.as_csv([outcome(effect=nothing)])))
    assert (row["lo"], row["n_seeds"]) == ("", "")


def test_ids_are_completed() -> None:
    assert complete.claims(None, [], "S23a") == ["S23a"]
    assert complete.claims(None, [], "A02") == ["A02a", "A02b"]
    assert len(complete.claims(None, [], "")) == len(load())


def test_commands_name_experiments_of_the_plan() -> None:
    experiments = plan.load()
    for claim in load(experiments=experiments):
        if claim.check:
            out = decide.Outcome(claim, "undecided", "no runs")
            text = printed.details(out, experiments, 3)
            assert max(map(len, text.splitlines())) <= 80, claim.id
