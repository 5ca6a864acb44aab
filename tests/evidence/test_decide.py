"""Reading entries of the ledger, and the word that effects give."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from invented import Invented, loops

from posbench.errors import ConfigError
from posbench.evidence.claims import CHECKS, Claim, chosen, experiments_of, load
from posbench.evidence.decide import decide, margin, word
from posbench.evidence.effect import Effect

ENTRY: dict[str, Any] = {
    "id": "Z1",
    "source": "nowhere",
    "statement": "ALiBi is better than RoPE.",
    "published": "1 against 2",
    "sure": "read",
    "experiments": ["core"],
    "check": "difference",
    "arguments": {"better": {"preset": "alibi"}, "worse": {"preset": "rope"}},
    "where": {"ratio": 4},
    "smallest": 0.01,
}


@pytest.fixture
def entries(tmp_path: Path) -> Any:
    """Reads entries that are written to a file; changes go into ENTRY, None takes a key out."""

    def read(*changes: dict[str, Any], experiments: Any = None) -> list[Claim]:
        made = [{k: v for k, v in (ENTRY | c).items() if v is not None} for c in changes]
        file = tmp_path / "claims.yaml"
        file.write_text(yaml.safe_dump(made))
        return load(file, experiments)

    return read


@pytest.fixture
def source() -> Invented:
    found = Invented(noise=0.0003)
    found.add("core", "rope", {1: 3.0, 2: 3.3, 4: 3.9})
    found.add("core", "rope_matched", {1: 3.0, 2: 2.9, 4: 3.4})
    found.add("core", "alibi", {1: 3.0, 2: 3.0, 4: 3.0})
    return found


# ---- words


@pytest.mark.parametrize(
    ("claimed", "lo", "hi", "verdict"),
    [
        ("more", 0.11, 0.3, "holds"),
        ("more", 0.09, 0.3, "undecided"),
        ("more", -0.3, 0.09, "contradicted"),
        ("more", 0.02, 0.05, "contradicted"),
        ("no less", -0.09, 0.3, "holds"),
        ("no less", -0.2, -0.05, "undecided"),
        ("no less", -0.3, -0.11, "contradicted"),
        ("same", -0.09, 0.09, "holds"),
        ("same", -0.11, 0.05, "undecided"),
        ("same", -0.05, 0.11, "undecided"),
        ("same", 0.11, 0.3, "contradicted"),
        ("same", -0.3, -0.11, "contradicted"),
    ],
)
def test_the_word_of_an_interval(
    entries: Any, claimed: str, lo: float, hi: float, verdict: str
) -> None:
    (claim,) = entries({"claimed": claimed, "smallest": 0.1})
    effect = Effect((lo + hi) / 2, lo, hi, 3)
    assert word(claim, effect) == verdict
    assert (margin(claim, effect) > 0) == (verdict == "holds")


def test_a_share_must_be_whole(entries: Any) -> None:
    (claim,) = entries({"claimed": "always"})
    assert word(claim, Effect(1.0)) == "holds"
    assert word(claim, Effect(0.999)) == "contradicted"


def test_an_entry_is_decided_by_what_was_measured(entries: Any, source: Invented) -> None:
    (claim,) = entries({})
    outcome = decide(claim, source)
    wanted = loops(source.of("core", "rope", 4) - source.of("core", "alibi", 4))
    assert outcome.verdict == "holds" and outcome.effect
    assert [outcome.effect.effect, outcome.effect.lo] == pytest.approx(wanted[:2])
    (turned,) = entries({"arguments": {"better": {"preset": "rope"}, "worse": {"preset": "alibi"}}})
    assert decide(turned, source).verdict == "contradicted"
    (wide,) = entries({"smallest": wanted[0]})
    undecided = decide(wide, source)
    assert undecided.verdict == "undecided"
    found = undecided.effect
    assert found
    least = wanted[0] + found.detectable  # beyond what it takes
    assert undecided.reason.startswith(f"an effect of {least:.2g} nats")


def test_every_case_must_hold(entries: Any, source: Invented) -> None:
    cases = [{"ratio": 2}, {"ratio": 4}]
    (claim,) = entries({"where": None, "every": cases})
    outcome = decide(claim, source)
    assert outcome.verdict == "holds"
    assert [case.label for case in outcome.cases] == ["at 2 L", "at 4 L"]
    x = source.of("core", "rope", 2) - source.of("core", "alibi", 2)  # the weaker one
    assert outcome.effect is not None
    assert outcome.effect.lo == pytest.approx(loops(x)[1])
    assert outcome.effect.hi == pytest.approx(loops(x)[2])
    (other,) = entries({"where": None, "every": [{"ratio": 1}, {"ratio": 4}]})
    one = decide(other, source)
    assert one.verdict == "contradicted"  # nothing at L
    assert [case.verdict for case in one.cases] == ["contradicted", "holds"]


def test_one_case_of_several_contradicts_at_the_level_for_all(
    entries: Any, source: Invented
) -> None:
    """One that would contradict alone, and is shown with the same interval, does not then."""
    x = source.of("core", "rope", 2) - source.of("core", "alibi", 2)
    alone, together = loops(x)[2], loops(x, 1 - 0.05 / 6)[2]
    assert alone < together
    own = {"where": None, "smallest": (alone + together) / 2}
    assert decide(entries(own | {"every": [{"ratio": 2}]})[0], source).verdict == "contradicted"
    outcome = decide(entries(own | {"every": [{"ratio": 2}] * 6})[0], source)
    assert outcome.verdict == "undecided" and "at the level for all cases" in outcome.reason
    assert outcome.effect and outcome.effect.hi == pytest.approx(alone)


def test_what_depends_on_the_geometry_is_undecided(entries: Any, source: Invented) -> None:
    change = {
        "arguments": {"better": {"preset": "alibi"}, "worse": {}},
        "where": {"ratio": 2},
        "agree": [{"preset": "rope"}, {"preset": "rope_matched"}],
    }
    (claim,) = entries(change)
    outcome = decide(claim, source)
    assert outcome.verdict == "undecided"
    assert outcome.reason == "rope: holds; rope_matched: contradicted"
    (both,) = entries(change | {"where": {"ratio": 4}})
    assert decide(both, source).verdict == "holds"


def test_without_runs_nothing_is_decided(entries: Any) -> None:
    (claim,) = entries({})
    outcome = decide(claim, Invented())
    assert (outcome.verdict, outcome.reason, outcome.effect) == ("undecided", "no runs", None)


def test_what_cannot_be_tested_says_why(entries: Any) -> None:
    (claim,) = entries({"check": None, "arguments": None, "untestable": "no GPU"})
    outcome = decide(claim, Invented())
    assert (outcome.verdict, outcome.reason) == ("not testable here", "no GPU")


def test_too_few_seeds(entries: Any) -> None:
    found = Invented(seeds=2)
    found.add("core", "rope", {4: 4.0})
    found.add("core", "alibi", {4: 3.0})
    (claim,) = entries({})
    outcome = decide(claim, found)
    assert (outcome.verdict, outcome.reason) == ("undecided", "2 of 3 seeds")
    assert outcome.effect and outcome.effect.effect == pytest.approx(1, abs=0.01)
    (two,) = entries({"seeds": 2})
    assert decide(two, found).verdict == "holds"
    assert decide(two, found, seeds=5).reason == "2 of 5 seeds"


def test_too_few_documents(entries: Any) -> None:
    found = Invented(docs=19)
    found.add("core", "rope", {4: 4.0})
    found.add("core", "alibi", {4: 3.0})
    (claim,) = entries({})
    assert decide(claim, found).reason == "19 documents, 20 are needed"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"stamp": "demo: below n-gram"}, "does not pass the gate: t5 of core"),
        ({"tier": "demo"}, "tier demo"),
    ],
)
def test_runs_that_may_not_decide(
    entries: Any, source: Invented, more: dict[str, str], reason: str
) -> None:
    source.add("core", "t5", {4: 3.5}, **more)
    (claim,) = entries({"arguments": {"better": {"preset": "t5"}, "worse": {"preset": "rope"}}})
    outcome = decide(claim, source)
    assert (outcome.verdict, outcome.reason) == ("undecided", reason)
    assert outcome.effect is not None


def test_runs_at_another_rate_than_the_grids_decide_nothing(entries: Any, source: Invented) -> None:
    (claim,) = entries({})
    assert decide(claim, source).verdict == "holds"
    source.late = {"core-rope-code-s1"}
    outcome = decide(claim, source)
    assert outcome.verdict == "undecided"
    assert outcome.reason == "not at a learning rate that the grid chose: rope of core"


def test_a_time_has_no_seeds(entries: Any, tmp_path: Path) -> None:
    from posbench.bench.result import Measurement, Result

    file = tmp_path / "bench.json"
    slow = Measurement("train/rope/compiled", "s", [1.2] * 7)
    Result({}, {}, [slow, Measurement("train/none/compiled", "s", [1.0] * 7)]).write(file)
    arguments = {"file": str(file), "slow": "rope", "fast": "none"}
    change = {"check": "step_time", "where": None, "experiments": [], "smallest": 1}
    (claim,) = entries(change | {"arguments": arguments})
    outcome = decide(claim, Invented())
    assert outcome.verdict == "holds" and outcome.effect
    assert math.isclose(outcome.effect.effect, 1.2)


# ---- reading


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"statment": "x"}, "Z1: statment is unknown; known: id, source"),
        ({"source": None}, "Z1: source must be given"),
        ({"check": None}, "Z1: check must be given"),
        ({"check": "differenz"}, f"Z1: check=differenz: must be one of {', '.join(CHECKS)}"),
        ({"claimed": "less"}, "Z1: claimed=less: must be one of more, no less, same, always"),
        ({"sure": "maybe"}, "Z1: sure=maybe: must be one of read, second hand"),
        ({"arguments": {"better": {}}}, "Z1: check difference: missing a required argument: 'wor"),
        ({"arguments": {"best": {}}}, "Z1: check difference: "),
        ({"id": None}, "entry 0: id must be given"),
    ],
)
def test_entries_that_are_not_sound(entries: Any, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        entries(change)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_files_that_are_no_ledger(entries: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Z1 is there twice"):
        entries({}, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "nowhere.yaml")
    for text, words in (("a: [", "cannot be read"), ("a: 1", "a list of claims"), ("- 1", "no ma")):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ConfigError, match=words):
            load(tmp_path / "bad.yaml")


def test_experiments_that_are_named_must_be_there(entries: Any) -> None:
    inner = {"arguments": {"better": {"in": ["code"]}, "worse": {}}, "agree": [{"in": ["long"]}]}
    (claim,) = entries(inner)
    assert experiments_of([claim]) == ["core", "long", "code"]
    with pytest.raises(ConfigError, match="Z1: experiment long is none of core, code"):
        entries(inner, experiments={"core": 1, "code": 1})


def test_claims_are_chosen_by_id_or_by_the_id_of_their_parts(entries: Any) -> None:
    claims = entries({"id": "A02a"}, {"id": "A02b"}, {"id": "B1"})
    assert chosen(claims, []) == claims
    assert [c.id for c in chosen(claims, ["B1", "A02"])] == ["B1", "A02a", "A02b"]
    assert [c.id for c in chosen(claims, ["A02b", "A02"])] == ["A02b", "A02a"]
    with pytest.raises(ConfigError, match="claim A03 is none of A02a, A02b, B1"):
        chosen(claims, ["A03"])


def test_parts_join_the_selections_which_have_the_last_word(entries: Any) -> None:
    (claim,) = entries(
        {
            "arguments": {"better": {"ratio": 1}, "worse": {}},
            "where": {"preset": "rope", "factor": "8"},
            "every": [{"ratio": 2, "factor": "2"}],
            "agree": [{"preset": "alibi"}],
        }
    )
    ((label, arguments),) = claim.cases(claim.agree[0])
    assert label == "alibi @2 at 2 L"
    common = {"in": ["core"], "preset": "alibi", "factor": "2"}
    assert arguments == {"better": {**common, "ratio": 1}, "worse": {**common, "ratio": 2}}
