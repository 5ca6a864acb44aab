"""The ledger that ships: complete, and about rows that the plan's evaluations produce."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from posbench import launch, registry
from posbench.evaluate.protocols import default_lengths
from posbench.evidence import plan
from posbench.evidence.claims import OVER, Claim, load
from posbench.evidence.select import CROP, LENGTHS, PLAIN, fits, full

#: what the ledger must speak of, in parts or whole
WANTED = (
    "S01 S04 S05 S06 S07 S09 S10 S14 S16 S19 S20 S21 S23 S24 S25 S29 S30 S31 S32 S33 S34 "
    "A02 A03 A05 A11 KE4 X02 K01 K02 PI4 Y02 R01 R02 R04 R06 DR1 DR2 SW1 RP1 RP2"
)

EXPERIMENTS = plan.load()
CLAIMS = load(experiments=EXPERIMENTS)


def test_all_are_there() -> None:
    assert {claim.id.rstrip("abcdefgh") for claim in CLAIMS} == set(WANTED.split())
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)


def test_entries_say_enough() -> None:
    for claim in CLAIMS:
        assert claim.statement.endswith("."), claim.id
        assert bool(claim.untestable) != bool(claim.check), claim.id
        assert claim.seeds >= 3
        assert claim.sure == "none" or claim.published, claim.id


def test_small_gaps_at_the_training_length_are_not_decided() -> None:
    within = [
        claim
        for claim in CLAIMS
        if claim.check in ("difference", "contrast", "ordering", "best")
        and all(one.get("ratio", 2) <= 1 for one in selections(claim))
    ]
    assert {"S09", "S14a", "S21b", "DR1a"} <= {claim.id for claim in within}
    assert all(claim.smallest >= 0.01 for claim in within)


class Expected:
    """The runs and rows that an experiment of the plan gives, without training."""

    def __init__(self, name: str) -> None:
        one = EXPERIMENTS[name]
        self.found: list[tuple[dict[str, Any], set[tuple[Any, ...]]]] = []
        for line in launch.split(one.train):
            if one.init is None:
                ((cfg, preset),) = launch.train_configs(list(line), False)
                config: Any = OmegaConf.to_container(cfg)
                self._add(name, preset, config, str(config["data"]["name"]))
                continue
            values = dict(word.split("=", 1) for word in line)
            rule = {"name": values["rescale"]} if "rescale" in values else None
            config = {"rescale": rule, "train": {"seq_len": int(values.get("train.seq_len", 128))}}
            for base in launch.split(EXPERIMENTS[one.init].train):
                (begun,) = (word.partition("=")[2] for word in base if word.startswith("posenc="))
                if not one.presets or begun in one.presets:
                    self._add(name, self._tuned(begun, values), config, "code")

    @staticmethod
    def _tuned(base: str, values: dict[str, str]) -> str:
        """What tables call a fine-tuning."""
        own = {key: value for key, value in values.items() if not key.startswith("train.")}
        if not own:
            return f"{base}+tuned"
        factor = f"@{own['rescale.factor']}" if "rescale.factor" in own else ""
        simple = set(own) <= {"rescale", "rescale.factor"}
        return f"{base}+{own['rescale']}{factor}" if simple else f"{base}+{sorted(own.items())}"

    def _add(self, name: str, preset: str, config: Any, data: str) -> None:
        length, task = config["train"]["seq_len"], registry.get("data", data).family == "task"
        rows: set[tuple[Any, ...]] = set()
        for evaluation in EXPERIMENTS[name].evaluations(preset):
            rows |= set(self._rows(evaluation.overrides, length, task))
        self.found.append(({"preset": preset, "config": config, "data": data}, rows))

    def _rows(self, overrides: Any, length: int, task: bool) -> Iterator[tuple[Any, ...]]:
        for sweep in sweeps(tuple(overrides)):
            rule = registry.get("rescale", sweep.rescale.name)(sweep.rescale)
            protocol = "generated" if task else sweep.eval.protocol
            for n in sweep.eval.lengths or default_lengths(length, 16384):
                known = rule.name, rule.factor, " ".join(rule.options), protocol
                yield *known, "ratio", n / length
                yield *known, "test_len", n


KEPT: dict[Any, Any] = {}


def sweeps(overrides: tuple[str, ...]) -> Any:
    if overrides not in KEPT:
        KEPT[overrides] = launch.sweeps(list(overrides))
    return KEPT[overrides]


@pytest.fixture(scope="module")
def expected() -> dict[str, Expected]:
    names = {n for claim in CLAIMS for s in selections(claim) for n in s["in"]}
    return {name: Expected(name) for name in sorted(names)}


def selections(claim: Claim) -> Iterator[dict[str, Any]]:
    """Every selection of every case, the points of grids and curves one by one."""
    for part in claim.agree or ({},):
        for _, arguments in claim.cases(part) if claim.check else ():
            over = arguments.get(OVER, [{}])
            for key, value in arguments.items():
                for one in value if isinstance(value, list) else [value]:
                    if not isinstance(one, Mapping) or key == OVER:
                        continue
                    if "written" in arguments:
                        yield from ({**one, arguments["key"]: w} for w in arguments["written"])
                    elif "ratios" in arguments:
                        yield from ({**one, "ratio": r} for r in arguments["ratios"])
                    else:
                        yield from ({**one, **more} for more in over)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_selections_are_rows_of_the_plan(claim: Claim, expected: dict[str, Expected]) -> None:
    for selection in selections(claim):
        own = full(selection)
        runs = [
            (manifest, rows)
            for name in own["in"]
            for manifest, rows in expected[name].found
            if fits(manifest, own) and manifest["data"] == own["data"]
        ]
        if claim.check == "steps_until":
            assert len(runs) == 1, selection
            continue
        if own["protocol"] == CROP:
            assert len(runs) == 1, selection
            continue
        (length,) = set(own) & set(LENGTHS)
        wanted = (*(own[key] for key in PLAIN), length, own[length])
        having = [manifest for manifest, rows in runs if wanted in rows]
        assert len(having) == 1, (claim.id, selection, len(runs))


def test_grids_are_as_written() -> None:
    for claim in CLAIMS:
        for part in claim.agree or ({},):
            for _, arguments in claim.cases(part) if claim.check == "argmin" else ():
                assert len(arguments["grid"]) == len(arguments["written"])
                for value, word in zip(arguments["grid"], arguments["written"], strict=True):
                    assert float(word.rpartition("=")[2]) == value
                assert arguments["grid"] == sorted(arguments["grid"])


def test_a_misspelt_row_would_be_found(expected: dict[str, Expected]) -> None:
    claim = next(c for c in CLAIMS if c.id == "S23a")
    wrong = SimpleNamespace(**vars(claim))
    wrong.cases = lambda part: [
        ("", {"better": {"in": ["core"], "preset": "rope", "rescale": "ntk", "ratio": 3}})
    ]
    with pytest.raises(AssertionError):
        test_selections_are_rows_of_the_plan(wrong, expected)  # type: ignore[arg-type]
