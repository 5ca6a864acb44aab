"""A small corpus of one's own, tiny runs on it, and the command in this process."""

import contextlib
import hashlib
import io
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import SWEPT

WORDS = ["the", "of", "a", "state", "house", "people", "law", "peace", "year", "work", "nation"]
#: overrides of a run that takes a fraction of a second
TINY = [
    "data=text",
    "data.tokenizer=bytes",
    "model.d_model=32",
    "model.n_layers=2",
    "model.n_heads=2",
    "train.seq_len=64",
    "train.batch_size=4",
    "train.steps=5",
    "train.val_windows=8",
    "train.threads=1",
    "train.device=cpu",
]


@dataclass
class Done:
    """What a command left: its exit code and streams."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """Lines on stderr."""
        return self.err.splitlines()


def prose(seed: int, size: int) -> str:
    """At least `size` characters of words in random order, most of which follow from the last."""
    draw = random.Random(seed)
    word, text = draw.randrange(len(WORDS)), []
    length = 0
    while length < size:
        word = (word * 5 + 3 if draw.random() < 0.7 else draw.randrange(len(WORDS))) % len(WORDS)
        text.append(WORDS[word] + draw.choice([" ", " ", " ", ", ", ".\n"]))
        length += len(text[-1])
    return "".join(text)


@pytest.fixture(autouse=True)
def tiny_numbers_count() -> None:
    """A run in this process has numbers below 1e-38 count as 0, which hypothesis does not bear."""
    import torch

    torch.set_flush_denormal(False)


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keeps the user's own cache out of the tests."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSBENCH_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty files of 1,700 to 2,500 bytes: test lengths up to 1,024 bytes. Not to be changed."""
    root = tmp_path_factory.mktemp("own")
    for i in range(40):
        (root / f"doc{i:02d}.txt").write_text(prose(i, 1700 + 20 * i), encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def tiny(corpus: Path) -> list[str]:
    """Overrides of `posbench train` for a tiny run on the corpus."""
    return [*TINY, f"data.path={corpus}"]


@pytest.fixture(scope="session")
def text_data(corpus: Path) -> Any:
    """The corpus as a dataset of bytes."""
    from posbench import registry
    from posbench.data.dataset import load

    return load(registry.get("data", "text").Config(path=str(corpus), tokenizer="bytes"))


@pytest.fixture(scope="session")
def settings_of(corpus: Path) -> Callable[..., Any]:
    """Makes the RunConfig of a tiny run; `train`, `model`, `optimizer`, `posenc` are dicts."""
    from posbench import registry, settings

    def make(
        posenc: str = "rope",
        options: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        train: dict[str, Any] | None = None,
        optimizer: dict[str, Any] | None = None,
        path: Path = corpus,
        **top: Any,
    ) -> Any:
        shape = {"d_model": 32, "n_layers": 2, "n_heads": 2} | (model or {})
        loop = {"steps": 5, "seq_len": 64, "batch_size": 4, "val_windows": 8, "threads": 1}
        loop |= {"device": "cpu"} | (train or {})
        data = registry.get("data", "text").Config(path=str(path), tokenizer="bytes")
        return settings.RunConfig(
            posenc=registry.get("posenc", posenc).Config(**(options or {})),
            positions=registry.get("positions", "standard").Config(),
            data=data,
            model=settings.ModelConfig(**shape),
            train=settings.TrainConfig(**loop),
            optimizer=settings.OptimizerConfig(**(optimizer or {})),
            **top,
        )

    return make


@pytest.fixture(scope="session")
def trained_here(
    tmp_path_factory: pytest.TempPathFactory, settings_of: Callable[..., Any], text_data: Any
) -> Any:
    """A finished rope run (L = 64, 60 steps). Not to be changed: copy it with `trained`."""
    from posbench import runs, settings, train

    config = settings_of(train={"steps": 60, "lr": 5e-3})
    name = settings.run_id(config, text_data.content_sha256)
    folder = tmp_path_factory.mktemp("trained") / "runs" / "default" / name
    train.run(config, folder, text_data, argv=["posbench", "train"])
    return runs.Run.open(folder)


@pytest.fixture
def copy_run(tmp_path: Path) -> Callable[..., Any]:
    """Copies a run below `<tmp_path>/runs/default`."""
    from posbench import runs

    def copy(run: Any, root: str = "runs") -> Any:
        target = tmp_path / root / "default" / run.path.name
        shutil.copytree(run.path, target)
        return runs.Run.open(target)

    return copy


@pytest.fixture
def trained(trained_here: Any, copy_run: Callable[..., Any]) -> Any:
    """The test's own copy of the session's run."""
    return copy_run(trained_here)


@pytest.fixture(scope="session")
def swept_here(tmp_path_factory: pytest.TempPathFactory, tiny: list[str]) -> tuple[Path, Done]:
    """A sweep over schemes of every kind in a fresh folder: that folder, and what was printed."""
    place = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return place, command("train", SWEPT, "-m", *tiny)


def command(*arguments: str) -> Done:
    """The `posbench` command in this process, through the entry point that maps errors."""
    from posbench import cli

    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    code: Any = 0
    sys.argv = ["posbench", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = before
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def anywhere() -> Callable[..., Done]:
    """`command`, run in whatever folder is the current one."""
    return command


@pytest.fixture
def posbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`command`, run in the test's own folder."""
    monkeypatch.chdir(tmp_path)
    return command


def state(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file below a folder (folders too) with its time of change and hash."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        changed = path.stat().st_mtime_ns if path.is_file() else 0
        found[str(path.relative_to(folder))] = changed, hashlib.sha256(content).hexdigest()
    return found


@pytest.fixture
def tree() -> Callable[[Path], dict[str, tuple[int, str]]]:
    """`state`: what lies in a folder, to compare before and after."""
    return state
