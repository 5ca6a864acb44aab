"""The run directory: manifest, checkpoint, lock, and finding runs again.

A run directory may come from a stranger: it is read as plain data, never as code.
"""

import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import posbench
from posbench import plugins, registry
from posbench.errors import ConfigError, DataError, NotWritable, RunError
from posbench.files import file_sha256, write_json
from posbench.settings import SCHEMA, RunConfig, changed, digest

MANIFEST = "manifest.json"
CHECKPOINT = "checkpoint"
WEIGHTS = "model.safetensors"


def now() -> str:
    """UTC time to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def code_version() -> dict[str, Any]:
    """Version of posbench and, in a checkout, its commit and whether files differ from it."""
    here = Path(__file__).parent

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *args], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    inside = git("ls-files", "--error-unmatch", str(Path(__file__))) is not None
    return {
        "posbench": posbench.__version__,
        "sources": _sources(),
        "commit": git("rev-parse", "HEAD") if inside else None,
        "dirty": bool(git("status", "--porcelain", "--", str(here))) if inside else None,
    }


@cache
def _sources() -> str:
    """Hash of the package's source files."""
    here = Path(__file__).parent
    files = sorted(here.rglob("*.py"))
    return digest([[p.relative_to(here).as_posix(), file_sha256(p)] for p in files], 16)


def environment() -> dict[str, Any]:
    """Versions and machine facts that a result may depend on."""
    import torch

    from posbench import linear

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "matrix_products": linear.LIBRARY,
    }


@dataclass
class Run:
    """A run directory that exists."""

    path: Path
    manifest: dict[str, Any]
    #: False in the helper processes of a distributed run
    writes: bool = True

    @classmethod
    def open(cls, path: Path) -> "Run":
        """Read a run directory; RunError if it is not one."""
        if not path.is_dir():
            raise RunError(f"{path}: no such folder")
        file = path / MANIFEST
        if not file.is_file():
            raise RunError(f"{path}: not a run folder (it has no {MANIFEST})")
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
            manifest["run_id"], manifest["status"], manifest["config"]["train"]
        except OSError as error:
            raise RunError(f"{file}: cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{file}: damaged ({error})") from None
        return cls(path, manifest)

    @property
    def status(self) -> str:
        return str(self.manifest["status"])

    @cached_property
    def config(self) -> RunConfig:
        """The run's settings, rebuilt and checked."""
        plugins.check(self.manifest.get("plugins", []), self.path)
        return rebuild(self.manifest["config"], self.path)

    def update(self, **values: Any) -> None:
        """Change fields of the manifest on disk."""
        self.manifest.update(values)
        if self.writes:
            write_json(self.path / MANIFEST, self.manifest)

    def require_finished(self) -> None:
        """RunError unless training reached its end."""
        if self.status != "finished":
            raise RunError(
                f"{self.path}: the run is not finished (status {self.status}); "
                "its train command goes on with it"
            )

    @property
    def weights(self) -> Path:
        """The weights, checked against the hash in the manifest."""
        file = self.path / CHECKPOINT / WEIGHTS
        if not file.is_file():
            raise RunError(f"{self.path}: the checkpoint is missing ({CHECKPOINT}/{WEIGHTS})")
        if file_sha256(file) != self.manifest.get("weights_sha256"):
            raise RunError(f"{file}: damaged checkpoint (its SHA-256 is not the manifest's)")
        return file


def rebuild(stored: dict[str, Any], where: Path) -> RunConfig:
    """Settings from a manifest's plain data; RunError where they do not fit this version."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        base = OmegaConf.structured(RunConfig)
        for group in ("posenc", "positions", "data"):
            cls = registry.get(group, stored[group]["name"])
            base[group] = OmegaConf.structured(cls.Config)
        if stored.get("rescale"):
            cls = registry.get("rescale", stored["rescale"]["name"])
            base["rescale"] = OmegaConf.structured(cls.Config)
        config = OmegaConf.to_object(OmegaConf.merge(base, OmegaConf.create(stored)))
    except (ConfigError, OmegaConfBaseException, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{where / MANIFEST}: settings cannot be read ({reason})") from None
    assert isinstance(config, RunConfig)
    return config


def new_manifest(config: RunConfig, run_id: str, argv: Sequence[str]) -> dict[str, Any]:
    """What is known of a run before it starts."""
    return {
        "run_id": run_id,
        "schema": SCHEMA,
        "name": config.name,
        "preset": config.preset,
        "tier": config.tier,
        "seed": config.seed,
        "status": "running",
        "started": now(),
        "finished": None,
        "argv": list(argv),
        "code": code_version(),
        "environment": environment(),
        "config": asdict(config),
        "plugins": plugins.used(config),
        "config_sha256": digest(changed(config), 64),
        "dtype": config.train.precision,
    }


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; RunError if another process writes there. Made if missing."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"{folder}: another process is writing to this folder") from None
    except OSError as error:
        raise NotWritable(f"{folder}: cannot be written ({error.strerror or error})") from None
    try:
        yield
    finally:
        lock.release()


def replace_folder(aside: Path, target: Path) -> None:
    """Put a finished folder in the place of an old one."""
    old = target.with_name(f".{target.name}.old")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(target, old)
    os.replace(aside, target)
    shutil.rmtree(old, ignore_errors=True)


def checkpoint_folder(run: Path) -> Path | None:
    """The last whole checkpoint; also finds one whose swap was interrupted."""
    for name in (CHECKPOINT, f".{CHECKPOINT}.old", f".{CHECKPOINT}.new"):
        if (run / name / WEIGHTS).is_file():
            return run / name
    return None


def find(arguments: Sequence[str], runs_root: str) -> tuple[list[Run], list[Run]]:
    """Runs named on the command line: a run folder, a folder of runs, or a name below runs_root.

    Of a folder of runs the unfinished ones come apart, second.
    """
    found: dict[Path, Run] = {}
    unfinished: dict[Path, Run] = {}
    for argument in arguments:
        place, below = Path(argument), Path(runs_root) / argument
        if below.is_dir() and place.name == argument:  # a name, not a path
            place = below
        if not place.exists():
            raise RunError(f"{argument}: no such folder, and no name below runs_root={runs_root}")
        if (place / MANIFEST).is_file():
            found.setdefault(place.resolve(), Run.open(place))
            continue
        inside = [Run.open(p.parent) for p in sorted(place.glob(f"*/{MANIFEST}"))]
        if not inside:
            raise RunError(f"{argument}: not a run folder, and it holds no runs")
        for run in inside:
            group = found if run.status == "finished" else unfinished
            group.setdefault(run.path.resolve(), run)
    return list(found.values()), list(unfinished.values())


def load_dataset(run: Run, path: str | None = None) -> Any:
    """The run's data; DataError unless corpus, tokenizer and targets are those of its training.

    `path` is where the run's own text lies now, if it was moved.
    """
    from posbench.data import dataset
    from posbench.data.tokenizer import Tokenizer

    config = run.config
    file = run.path / "tokenizer.json"
    recorded = run.manifest.get("data", {})
    if not file.is_file():
        raise DataError(f"{run.path}: tokenizer.json is missing")
    tokenizer = Tokenizer.load(file)
    if tokenizer.sha256 != recorded.get("tokenizer_sha256"):
        raise DataError(f"{file}: the tokenizer's hash differs from the run's")
    if path is not None:
        if not hasattr(config.data, "path"):
            raise ConfigError(
                f"data.path={path}: {run.path} was trained on data={config.data.name}"
            )
        config = replace(config, data=replace(config.data, path=path))
    data = dataset.load(config.data, tokenizer)
    for what in ("content_sha256", "targets_sha256"):
        if facts(data)[what] != recorded.get(what):
            raise DataError(
                f"data={config.data.name}: its {what} is {facts(data)[what][:12]}, the run's is "
                f"{str(recorded.get(what))[:12]}; the text has changed since training"
            )
    return data


def facts(data: Any) -> dict[str, Any]:
    """What the manifest keeps of a dataset."""
    return {
        "corpus": data.name,
        "content_sha256": data.content_sha256,
        "tokenizer_sha256": data.tokenizer.sha256,
        "targets_sha256": data.targets.sha256,
        "longest": data.targets.longest,
        "split": data.split,
    }


def argv() -> list[str]:
    """What was typed, without the folder of the program."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def clear(folder: Path) -> None:
    """Empty a run folder, under its lock and those of its evaluations."""
    with ExitStack() as held:
        for place in (folder, *folder.glob("evals/*/")):
            held.enter_context(locked(place))
        for item in folder.iterdir():
            if item.is_dir():
                shutil.rmtree(item)
            elif item.name != ".lock":
                item.unlink()
