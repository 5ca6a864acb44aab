"""The task functions: a composed config -> checked settings -> a run folder.

Hydra stops here. `prepare` writes nothing below `runs_root`, so that bad input costs nothing.
"""

import dataclasses
import multiprocessing
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posbench import console, finetune, machine, plugins, registry, runs
from posbench.errors import ConfigError, PosbenchError, RunError
from posbench.settings import RunConfig, SweepConfig, run_id


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start."""

    config: RunConfig
    data: Any
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """What became of a training job: finished, reused, diverged or failed."""

    folder: str
    status: str
    val_loss: float | None = None
    message: str = ""


@lru_cache(maxsize=4)
def _dataset(key: str) -> Any:
    """The dataset of a data config given as canonical YAML; sweeps share it."""
    from posbench.data import dataset

    stored = OmegaConf.create(key)
    cls = registry.get("data", stored.name)
    return dataset.load(OmegaConf.to_object(OmegaConf.merge(cls.Config, stored)))


Settings = TypeVar("Settings")


def _typed(cfg: DictConfig, schema: type[Settings]) -> Settings:
    """The dataclass that a composed config describes; its own checks run here."""
    try:
        missing = sorted(OmegaConf.missing_keys(cfg))
        if missing:
            raise ConfigError(f"{missing[0]} must be given")
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), cfg))
    except OmegaConfBaseException as error:
        key, reason = getattr(error, "full_key", None), str(error).splitlines()[0]
        unknown = key and "not in" in reason
        raise ConfigError(f"{key} is unknown" if unknown else reason) from None
    assert isinstance(config, schema)
    for key in _extra(cfg, config):
        raise ConfigError(f"{key} is unknown")
    return config


def _extra(cfg: DictConfig, config: Any, prefix: str = "") -> Iterator[str]:
    """Keys of a composed config that are no fields of its dataclass."""
    known = {f.name for f in dataclasses.fields(config)}
    for key in map(str, cfg):
        if key not in known:
            yield prefix + key
        elif dataclasses.is_dataclass(value := getattr(config, key)):
            yield from _extra(cfg[key], value, f"{prefix}{key}.")


def run_config(cfg: DictConfig, preset: str) -> RunConfig:
    """Settings of a composed train config, checked."""
    config = _typed(cfg, RunConfig)
    config.preset = preset
    return config


def sweep_config(cfg: DictConfig) -> SweepConfig:
    """Settings of a composed eval-lengths config, checked."""
    config = _typed(cfg, SweepConfig)
    registry.get("rescale", config.rescale.name)(config.rescale)
    return config


def prepare(cfg: DictConfig, preset: str) -> Prepared:
    """Check everything a run needs: settings, the scheme on this model, data, device."""
    from posbench import devices, model
    from posbench.data import skipped

    config = run_config(cfg, preset)
    base = finetune.base_of(config) if config.base else None
    finetune.check_options(config)
    encoding = model.build_posenc(replace(config, rescale=None))
    if preset == encoding.name:
        config.preset = encoding.label  # says what a combined scheme consists of
    devices.pick(config.train.device, "train.device")
    if base is None:
        data = _dataset(OmegaConf.to_yaml(OmegaConf.structured(config.data), sort_keys=True))
    else:
        data = finetune.load_dataset(config, base)
        finetune.settle(config, base, data)
    data.validation_windows(config.shape, 1)
    skipped.training_batch(data, model.build_sampler(config), config.shape, 1, 0, 0)
    config.data = registry.get("data", config.data.name).located(config.data)
    identity = run_id(config, data.content_sha256, plugins.used(config))
    folder = Path(config.runs_root) / config.name / identity
    _check_place(folder, config.runs_root)
    return Prepared(config, data, folder)


def _check_place(folder: Path, runs_root: str) -> None:
    """ConfigError where a run folder could not be made."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise ConfigError(f"runs_root={runs_root}: cannot write below {place}")


def train_job(cfg: DictConfig) -> Outcome:
    """One training job of a sweep; failures come back as an Outcome, so that the others go on."""
    from hydra.core.hydra_config import HydraConfig

    from posbench import devices, train

    devices.make_fast()
    if worker := multiprocessing.parent_process():
        machine.end_with(worker.pid)
    hydra = HydraConfig.get()
    ready = prepare(cfg, hydra.runtime.choices["posenc"])
    folder = str(ready.folder)
    try:
        done = finished(ready)
    except PosbenchError as error:
        return Outcome(folder, "failed", message=str(error))
    if done is not None:
        return Outcome(folder, "reused", done.manifest.get("val_loss"))
    argv = ["posbench", "train", *finetune.typed(hydra.overrides.task, ready.config)]
    alone = hydra.runtime.choices["hydra/launcher"] == "basic"
    if not alone and ready.config.train.threads == "auto":
        together = int(hydra.launcher.get("n_jobs") or 1)
        ready.config.train.threads = max(1, machine.cores() // max(1, together))
    with console.training(ready.config, ready.folder, alone) as report:
        try:
            record = train.run(ready.config, ready.folder, ready.data, report, argv)
        except PosbenchError as error:
            status = "diverged" if error.exit_code == 1 else "failed"
            return Outcome(folder, status, message=str(error))
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}:{last.lineno}"
            message = f"{type(error).__name__}: {error} ({place}; all of it in {runs.MANIFEST})"
            return Outcome(folder, "failed", message=message)
    return Outcome(folder, "finished", record.manifest["val_loss"])


def finished(ready: Prepared) -> runs.Run | None:
    """The run if it is already there and finished; `fresh=true` empties its folder first."""
    if not (ready.folder / runs.MANIFEST).is_file():
        return None
    if ready.config.fresh:
        if console.leading():
            runs.clear(ready.folder)
        return None
    run = runs.Run.open(ready.folder)
    if run.status != "finished":
        return None
    try:
        _ = run.weights
    except RunError as error:
        raise RunError(f"{error}; --fresh trains it again") from None
    if run.manifest.get("code", {}).get("sources") != runs.code_version()["sources"]:
        console.note(
            f"{ready.folder}: reused, though trained by other code; --fresh trains it again"
        )
    return run
