"""Cells: what is kept of a run for good, without its checkpoint, small enough to be committed.

    <run id>/manifest.json        the run's, and under `evidence` its experiments and its key
    <run id>/train.jsonl          the lines with a validation loss or a loss at the target length
    <run id>/evals/<hash>/        manifest.json (and under `asked` the keys of the evaluations that
                                  it answers), lengths.csv, blocks.csv.gz (sums over the blocks of a
                                  document), and what else there is of positions.csv, distances.csv
                                  and the like

A cell is read like a run: `posbench report <cells>` and `collect` take it.
"""

import gzip
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from posbench import runs, trainlog
from posbench.errors import ConfigError, RunError
from posbench.evaluate import lengths, rows
from posbench.evidence import headroom, rates
from posbench.evidence.plan import Evaluation, Experiment
from posbench.files import read_json, write_atomic, write_json
from posbench.report.collect import Collected, collect
from posbench.train import LOG

#: columns that are equal in the blocks that are summed
_NAMES = [
    "rescale", "factor", "options", "protocol", "test_len", "test_shape", "document", "distance",
]  # fmt: skip
_SUMS = ["nats", "tokens", "bytes", "correct"]


class Cells:
    """The cells below a folder, by run id."""

    def __init__(self, folder: Path):
        self.folder = folder

    @cached_property
    def _manifests(self) -> dict[str, dict[str, Any]]:
        """Run id -> manifest; RunError for a damaged one."""
        found = sorted(self.folder.glob(f"*/{runs.MANIFEST}"))
        return {path.parent.name: runs.Run.open(path.parent).manifest for path in found}

    def ids(self) -> list[str]:
        """Run ids of all cells."""
        return list(self._manifests)

    def folder_of(self, run_id: str) -> Path:
        """Where a run's cell is, or would be."""
        return self.folder / run_id

    def manifest(self, run_id: str) -> dict[str, Any] | None:
        """A cell's manifest, if there is one."""
        return self._manifests.get(run_id)

    def find(self, key: str) -> str | None:
        """The run id of the job of this key."""
        if key in self._manifests:
            return key
        return self._keys.get(key)

    @cached_property
    def _keys(self) -> dict[str, str]:
        return {_evidence(m)["key"]: run_id for run_id, m in self._manifests.items()}

    def of(self, experiment: str) -> list[str]:
        """Run ids of an experiment's cells, in the order of their names."""
        found = self._manifests.items()
        return [run_id for run_id, m in found if experiment in _evidence(m)["experiments"]]

    def asked(self, run_id: str) -> dict[str, Path]:
        """Keys of evaluations -> their folders, of those made with the weights of the manifest."""
        weights = (self.manifest(run_id) or {}).get("weights_sha256")
        found: dict[str, Path] = {}
        for path in sorted(self.folder_of(run_id).glob(f"evals/*/{runs.MANIFEST}")):
            manifest = read_json(path)
            if manifest.get("weights_sha256") == weights:
                found |= dict.fromkeys(manifest.get("asked", []), path.parent)
        return found

    def has(self, run_id: str, evals: Sequence[Evaluation] = ()) -> bool:
        """Whether a run needs nothing more: all evaluations are there, or it did not train."""
        manifest = self.manifest(run_id)
        if manifest is None:
            return False
        known = self.asked(run_id) if manifest["status"] == "finished" else None
        return known is None or all(one.key in known for one in evals)

    def join(self, run_id: str, experiment: str) -> None:
        """Count a run that is there as one of an experiment's too."""
        manifest = self._manifests[run_id]
        own = _evidence(manifest)
        if experiment not in own["experiments"]:
            own["experiments"] = sorted([*own["experiments"], experiment])
            write_json(
                self.folder_of(run_id) / runs.MANIFEST, {**_without(manifest), "evidence": own}
            )
            manifest["evidence"] = own

    def add(
        self,
        run: runs.Run,
        experiment: str,
        key: str | None = None,
        asked: Mapping[str, Sequence[str]] | None = None,
    ) -> Path:
        """Keep a run and its complete evaluations; what was made with other weights goes.

        So do runs that went on from other weights of this one: they are to go on from these.

        `asked`: evaluation folder -> keys of the evaluations that it answers; by default every
        complete one is kept, without keys.
        """
        run_id = str(run.manifest["run_id"])
        target, before = self.folder_of(run_id), self.manifest(run_id)
        if before and before.get("weights_sha256") != run.manifest.get("weights_sha256"):
            shutil.rmtree(target)
            self._drop_tunings(run)
        own = _evidence(before or {})
        own["experiments"] = sorted({*own["experiments"], experiment})
        own["key"] = key or own["key"] or run_id
        target.mkdir(parents=True, exist_ok=True)
        _thin(run.path / LOG, target / LOG)
        if asked is None:
            asked = {path.parent.name: () for path in run.path.glob(f"evals/*/{runs.MANIFEST}")}
        for name, keys in asked.items():
            if lengths.is_finished(run.path / "evals" / name):
                _keep(run.path / "evals" / name, target / "evals" / name, keys)
        manifest = {**_without(run.manifest), "evidence": own}
        write_json(target / runs.MANIFEST, manifest)
        self._manifests[run_id] = manifest
        self._keys[own["key"]] = run_id
        return target

    def _drop_tunings(self, base: runs.Run) -> None:
        """Remove the cells of runs that went on from other weights of this one."""
        now = base.manifest.get("weights_sha256")
        for run_id, manifest in list(self._manifests.items()):
            its = manifest.get("base") or {}
            if its.get("run_id") == base.manifest["run_id"] and its.get("weights_sha256") != now:
                shutil.rmtree(self.folder_of(run_id))
                del self._manifests[run_id]
        self.__dict__.pop("_keys", None)


class Evidence:
    """What the cells say of the plan's experiments."""

    def __init__(self, cells: Cells, experiments: Mapping[str, Experiment]):
        self.cells, self.experiments = cells, experiments
        self._collected: dict[str, Collected] = {}

    def runs(self, name: str) -> list[Path]:
        """Cells of an experiment's finished runs."""
        return [self.cells.folder_of(str(m["run_id"])) for m in self._finished(name)]

    def manifests(self, name: str) -> list[dict[str, Any]]:
        """Manifests of an experiment's runs, also of those that diverged or failed."""
        return [self.cells.manifest(run_id) or {} for run_id in self.cells.of(name)]

    def _finished(self, name: str) -> list[dict[str, Any]]:
        return [m for m in self.manifests(name) if m["status"] == "finished"]

    def evaluated(self, name: str) -> list[Path]:
        """Folders of an experiment's own evaluations."""
        keys = {one.key for one in self.experiments[name].evals}
        found = []
        for folder in self.runs(name):
            asked = self.cells.asked(folder.name)
            found += [path.resolve() for key, path in asked.items() if key in keys]
        return found

    def collected(self, name: str) -> Collected:
        """Rows, blocks and pooled rows of an experiment's own evaluations, with its headroom.

        RunError where nothing was evaluated yet, and where a cell is damaged.
        """
        if name not in self._collected:
            only = self.evaluated(name)
            found = collect([path.parents[1] for path in only], only)
            for why in found.skipped.values():
                raise RunError(why)
            own = self.experiments[name]
            longs = [self.collected(other) for other in own.long if self.evaluated(other)]
            self._collected[name] = headroom.joined(found, longs)
        return self._collected[name]

    def log(self, name: str) -> pd.DataFrame:
        """Held-out losses in training: run_id, preset, seed, rescale, step and the losses."""
        columns = ["run_id", "preset", "seed", "rescale", "step", "loss", "val_loss", "target_loss"]
        found = []
        for manifest in self._finished(name):
            rule = manifest["config"].get("rescale") or {}
            what = {c: manifest[c] for c in columns[:3]} | {"rescale": rule.get("name", "")}
            log = self.cells.folder_of(manifest["run_id"]) / LOG
            found += [what | line for line in trainlog.read(log)]
        return pd.DataFrame(found, columns=columns)

    def untuned(self, name: str) -> set[str]:
        """Runs of an experiment at another learning rate than the grid chose for their scheme.

        Those of a scheme for which it has not chosen yet count too; of fine-tunings those whose
        base run is one.
        """
        best, own, found = rates.best(self.cells), self.experiments[name], set[str]()
        if own.init:
            late = self.untuned(own.init)
            return {str(m["run_id"]) for m in self.manifests(name) if m["base"]["run_id"] in late}
        for run_id in self.cells.of(name) if own.tuned else ():
            manifest = self.cells.manifest(run_id) or {}
            if rates.multiple(manifest["config"]) != best.get(own.like or manifest["preset"]):
                found.add(run_id)
        return found

    def missing(self, name: str, seeds: int) -> list[str]:
        """Keys of an experiment's jobs that are not complete; those of runs are run ids."""
        from posbench.evidence import work

        todo = work.missing(self.experiments, self.cells, seeds, [name])
        return [one.job.key for one in todo if one.job.experiment == name]


def _evidence(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a cell's manifest has more than the run's."""
    return {"experiments": [], "key": "", **manifest.get("evidence", {})}


def _without(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest without what tells of the machine alone; runs are named from `runs_root` on."""
    found = {k: v for k, v in manifest.items() if k not in ("argv", "traceback", "evidence")}
    if "config" in found:
        config = found["config"] = {**found["config"], "runs_root": "runs"}
        if config.get("init"):
            config["init"] = _below(config["init"])
    if "path" in (found.get("base") or {}):
        found["base"] = {**found["base"], "path": _below(found["base"]["path"])}
    return found


def _below(folder: str) -> str:
    """`<name>/<run id>` of a run's folder."""
    return "/".join(Path(folder).parts[-2:])


def _thin(log: Path, target: Path) -> None:
    """The lines of a training log that have a loss of held-out text."""
    lines = log.read_text(encoding="utf-8").splitlines(True) if log.is_file() else []
    kept = []
    for line in lines:
        content = json.loads(line)
        if content.get("val_loss") is not None or content.get("target_loss") is not None:
            kept.append(line)
    write_atomic(target, "".join(kept))


def _keep(folder: Path, target: Path, keys: Sequence[str]) -> None:
    """Copy an evaluation; keys that it had are kept."""
    manifest = read_json(folder / runs.MANIFEST)
    place = target / runs.MANIFEST
    if place.is_file():
        keys = [*read_json(place).get("asked", []), *keys]
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.csv")):
        if path.name == rows.BLOCKS:
            _sum_blocks(path, target, str(manifest.get("interval_over")))
        else:
            shutil.copy2(path, target / path.name)
    kept = {k: v for k, v in _without(manifest).items() if k != "sha256"}  # of the whole tables
    write_json(place, {**kept, "asked": sorted(set(keys))})


def _sum_blocks(path: Path, target: Path, over: str) -> None:
    """blocks.csv.gz: one line for each document, block 0; where intervals run over blocks, all."""
    kinds = dict.fromkeys([*_NAMES, "nats"], str)
    blocks = pd.read_csv(path, keep_default_na=False, dtype=kinds)
    blocks["nats"] = [float(text) for text in blocks["nats"]]  # exact, in every version of pandas
    columns = list(blocks.columns)
    if over not in rows.BLOCKWISE:
        blocks = blocks.groupby(_NAMES, sort=False, as_index=False)[_SUMS].sum()
        blocks = blocks.assign(block=0, end="")
    text = io.StringIO()
    blocks[columns].to_csv(text, index=False, lineterminator="\n")
    # no time and no name in it, so that equal rows are equal bytes
    packed = gzip.compress(text.getvalue().encode(), mtime=0)
    write_atomic(target / f"{path.name}.gz", packed)
    os.utime(target / f"{path.name}.gz", (path.stat().st_atime, path.stat().st_mtime))


def opened(folder: Path) -> Cells:
    """The cells below a folder; ConfigError where it is a file."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: a file, not a folder of cells")
    return Cells(folder)
