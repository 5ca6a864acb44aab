"""The plan of experiments: what is trained and measured for the evidence, in which order.

It is data, `conf/evidence/experiments.yaml`; here it is read, checked and taken apart into jobs:
one training with its seed, and the evaluations that it is for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from posbench import launch, plugins, registry, settings
from posbench.errors import ConfigError
from posbench.settings import RunConfig

#: seeds of an experiment that does not say
SEEDS = 3


@dataclass(frozen=True)
class Evaluation:
    """One `posbench eval-lengths` of an experiment's runs, or of those of some presets."""

    overrides: tuple[str, ...]
    presets: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Names it whatever the order of its overrides."""
        return settings.digest(sorted(self.overrides))


@dataclass(frozen=True)
class Job:
    """One training; `run_id` and `config` are open while the run that it goes on from is not there.

    `base` is that run's id. `key` names the job on every machine: the run id, and of a fine-tuning,
    whose run id depends on the weights that it starts from, a hash of the overrides and the base.
    """

    experiment: str
    overrides: tuple[str, ...]
    key: str
    run_id: str | None = None
    config: RunConfig | None = None
    base: str | None = None

    @property
    def preset(self) -> str | None:
        """What tables call the run; of a fine-tuning, what it goes on from is in front."""
        return self.config.preset if self.config else None


@dataclass(frozen=True)
class Experiment:
    """An entry of the plan; the file says what its keys mean."""

    name: str
    about: str
    train: tuple[str, ...]
    evals: tuple[Evaluation, ...] = ()
    seeds: int = SEEDS
    once: bool = False
    init: str | None = None
    presets: tuple[str, ...] = ()
    long: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    tuned: bool = True
    like: str | None = None

    def count(self, seeds: int) -> int:
        """How many seeds it has where `seeds` are asked for."""
        return 1 if self.once else max(seeds, self.seeds)

    def evaluations(self, preset: str) -> list[Evaluation]:
        """Those that a run of a preset gets."""
        return [one for one in self.evals if not one.presets or preset in one.presets]

    def rate(self, preset: str, rates: Mapping[str, float]) -> float:
        """The multiple of the base learning rate that runs of a preset are to have.

        `rates`: preset -> what the grid chose, of those that it has decided.
        """
        return rates.get(self.like or preset, 1.0) if self.tuned else 1.0

    def jobs(
        self,
        seeds: int,
        rates: Mapping[str, float] | None = None,
        begun: Callable[[str], bool] = lambda run_id: False,
    ) -> list[Job]:
        """Its trainings, seed 0 of all first; of one that goes on from runs see `continued`.

        `rates`: preset -> multiple of the base learning rate that its trainings take, unless one of
        the configuration's seeds was `begun` at the base rate, which is kept then.
        """
        if self.init:
            return []
        lines = [self._line(line) for line in _split(self.train)]
        found = []
        numbers = range(self.count(seeds))
        for job, sha in lines:
            assert job.config is not None
            rate = self.rate(job.config.preset, rates or {})
            plain = [_seeded(job, seed, sha) for seed in numbers]
            if rate == 1.0 or any(begun(one.run_id or "") for one in plain):
                found.append(plain)
            else:
                lr = f"train.lr={(job.config.train.lr or 0.0) * rate:.12g}"
                own_rate, sha = self._line((*job.overrides, lr))
                found.append([_seeded(own_rate, seed, sha) for seed in numbers])
        return [own[seed] for seed in numbers for own in found]

    def _line(self, overrides: tuple[str, ...]) -> tuple[Job, str]:
        """The job of one combination at seed 0, and its data's content hash."""
        config, run_id, sha = _composed(overrides)
        return Job(self.name, overrides, run_id, run_id, config), sha

    def continued(self, base: str) -> list[Job]:
        """The jobs that go on from a run; what they are called is open."""
        return [
            Job(self.name, line, settings.digest([sorted(line), base], 16), base=base)
            for line in _split(self.train)
        ]


@lru_cache(maxsize=256)
def _split(overrides: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The overrides of every combination of a sweep."""
    return [tuple(line) for line in launch.split(overrides)]


@lru_cache(maxsize=4096)
def _composed(overrides: tuple[str, ...]) -> tuple[RunConfig, str, str]:
    """Settings, run id and the content hash of the data."""
    ready = launch.prepared(overrides)
    return ready.config, ready.folder.name, ready.data.content_sha256


def _seeded(job: Job, seed: int, sha: str) -> Job:
    """The job with another seed."""
    assert job.config is not None
    config = replace(job.config, seed=seed)
    run_id = settings.run_id(config, sha, plugins.used(config))
    return replace(
        job, overrides=(*job.overrides, f"seed={seed}"), key=run_id, run_id=run_id, config=config
    )


def load(path: Path | None = None) -> dict[str, Experiment]:
    """The experiments by name, in the plan's order; ConfigError where the file is not one."""
    import yaml

    path = path or registry.conf_root() / "evidence" / "experiments.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: cannot be read ({reason})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a mapping of names to experiments is needed")
    entries = {str(k): v for k, v in content.items() if not str(k).startswith(".")}
    found = {name: _experiment(name, entry, path) for name, entry in entries.items()}
    for one in found.values():
        for other in (*one.long, *one.against, *([one.init] if one.init else [])):
            if other not in found:
                known = ", ".join(found)
                raise ConfigError(f"{path}: {one.name} names {other}, which is none of {known}")
    return found


def _experiment(name: str, entry: Any, path: Path) -> Experiment:
    """One entry, checked."""
    settings.check_name(str(path), name)
    known = [f.name for f in fields(Experiment) if f.name != "name"]
    unknown = sorted(set(entry) - set(known)) if isinstance(entry, dict) else ["?"]
    if unknown or not {"about", "train"} <= set(entry):
        raise ConfigError(
            f"{path}: {name} needs about and train, and may have {', '.join(known[2:])}"
            + (f"; {unknown[0]} is unknown" if unknown else "")
        )
    lists = {key: tuple(entry.get(key) or ()) for key in ("train", "presets", "long", "against")}
    evals = tuple(_evaluation(one) for one in entry.get("evals") or [])
    return Experiment(**{"name": name, **entry, **lists, "evals": evals})


def _evaluation(entry: Any) -> Evaluation:
    """A list of overrides, or a mapping with the presets that it is for."""
    if isinstance(entry, dict):
        return Evaluation(tuple(entry["overrides"]), tuple(entry.get("presets") or ()))
    return Evaluation(tuple(entry))


def named(plan: Mapping[str, Experiment], names: Sequence[str] | None) -> list[Experiment]:
    """The experiments of these names in the plan's order, and what they need; all if None."""
    if names is None:
        return list(plan.values())
    wanted = set(names)
    for name in names:
        if name not in plan:
            raise ConfigError(f"experiment {name} is none of {', '.join(plan)}")
    for one in reversed(list(plan.values())):
        if one.name in wanted:
            wanted |= {*one.long, *([one.init] if one.init else [])}
    return [one for one in plan.values() if one.name in wanted]
