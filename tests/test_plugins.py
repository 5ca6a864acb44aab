"""A scheme in a file of one's own: loading, training, evaluating, refusals."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import refused

from posbench import registry
from posbench.errors import ConfigError

Command = Callable[..., Any]

SOURCE = '''
from dataclasses import dataclass

from posbench.encodings.base import PositionalEncoding
from posbench.registry import register


@register
class Mine(PositionalEncoding):
    """A penalty of alpha * sqrt(distance) (Author et al. 2026)."""

    family = "relative bias"
    paper = "arXiv:0000.00000"

    @dataclass
    class Config:
        alpha: float = {alpha}

    def distance_bias(self, distance_N, ctx):
        return -self.config.alpha * distance_N.double().sqrt().expand(self.geometry.n_heads, -1)
'''


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No plug-in of one test is known to the next."""
    monkeypatch.setenv(registry.PLUGINS, "")
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    before = list(sys.path)
    yield
    sys.path[:] = before
    registry._plugin.cache_clear()
    registry._registered.cache_clear()


def written(folder: Path, name: str, alpha: float = 1.0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(SOURCE.replace("{alpha}", str(alpha)))
    return path


def alone(place: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command in a process of its own, which knows no plug-in."""
    return subprocess.run(
        [sys.executable, "-m", "posbench", *arguments],
        capture_output=True,
        text=True,
        cwd=place,
        env={**os.environ, registry.PLUGINS: ""},
    )


def test_a_file_becomes_an_option(tmp_path: Path) -> None:
    assert "mine_a" not in registry.names("posenc")
    assert registry.load_plugin(written(tmp_path, "mine_a")) == ("posenc", "mine_a")
    assert "mine_a" in registry.names("posenc")
    assert registry.get("posenc", "mine_a").name == "mine_a"
    assert registry.get("posenc", "mine_a").Config().alpha == 1.0
    (entry,) = [e for e in registry.catalogue() if e.name == "mine_a"]
    assert entry.summary == "A penalty of alpha * sqrt(distance) (Author et al. 2026)."
    plugin = registry.plugin("posenc", "mine_a")
    assert plugin is not None and plugin.facts["file"] == "mine_a.py"
    assert len(plugin.facts["sha256"]) == 64
    assert registry.plugin("posenc", "rope") is None
    written(tmp_path, "mine_a", alpha=9.0)  # what was imported is what is recorded
    assert registry.plugin("posenc", "mine_a") == plugin


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rope", SOURCE, "posenc=rope is built in; rename the file"),
        ("rope_matched", SOURCE, "posenc=rope_matched is built in; rename the file"),
        ("random", SOURCE, "a module random exists already"),
        ("empty_file", "x = 1\n", "defines no class with @register"),
        ("syntax_error", "def (:\n", "cannot be read"),
        ("not-a-name", SOURCE, "whose name is an identifier"),
    ],
)
def test_refused_files(tmp_path: Path, name: str, content: str, words: str) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(content.replace("{alpha}", "1.0"))
    with pytest.raises(ConfigError, match=words):
        registry.load_plugin(path)
    with pytest.raises(ConfigError, match="no such file"):
        registry.load_plugin(tmp_path / "missing.py")


def test_a_refused_file_is_one_line(anywhere: Command) -> None:
    refused(anywhere("list", "--plugin", "missing.py"), "--plugin=", "no such file")
    refused(anywhere("train", "--plugin", "missing.txt"), "must be a Python file")


def test_a_run_remembers_its_plugin(
    tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch, anywhere: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, "mine_b")
    done = anywhere("train", "--plugin", str(path), "posenc=mine_b", *tiny)
    assert done.code == 0, done.err
    (run,) = (tmp_path / "runs" / "default").iterdir()
    manifest = json.loads((run / "manifest.json").read_text())
    (plugin,) = manifest["plugins"]
    assert (plugin["file"], plugin["name"]) == ("mine_b.py", "mine_b")
    assert (run / "plugins" / "mine_b.py").read_text() == path.read_text()
    options = ["eval.lengths=[64]", "eval.docs=2", "eval.blocks=1"]
    assert anywhere("eval-lengths", "default", "--plugin", str(path), *options).code == 0

    missing = alone(tmp_path, "eval-lengths", "default", *options)
    assert missing.returncode == 2
    assert "trained with a plug-in; add --plugin mine_b.py" in missing.stderr
    written(tmp_path, "mine_b", alpha=2.0)
    other = alone(tmp_path, "eval-lengths", "default", "--plugin", "mine_b.py", *options)
    assert other.returncode == 2 and "mine_b.py has changed since training" in other.stderr
    # a changed file is another run
    again = alone(tmp_path, "train", "--plugin", "mine_b.py", "posenc=mine_b", *tiny)
    assert again.returncode == 0, again.stderr
    assert len(list((tmp_path / "runs" / "default").iterdir())) == 2


def test_worker_processes_know_the_plugin(tmp_path: Path, tiny: list[str]) -> None:
    path = written(tmp_path, "mine_c")
    done = alone(
        tmp_path, "train", "--plugin", str(path), "posenc=mine_c", "posenc.alpha=1,2", "-m",
        "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *tiny,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["finished"] * 2


RULE = '''
from posbench.registry import register
from posbench.rescale.base import Rescale


@register
class Slower(Rescale):
    """Divides every frequency by {by} (Author et al. 2026)."""

    def frequencies(self, ladder, scale):
        return ladder.inv_freq / {by}
'''


def test_a_changed_rescaling_is_another_evaluation(tmp_path: Path, tiny: list[str]) -> None:
    assert alone(tmp_path, "train", "posenc=rope", *tiny).returncode == 0
    tables = []
    for by in (2, 50):
        (tmp_path / "slower.py").write_text(RULE.replace("{by}", str(by)))
        done = alone(
            tmp_path, "eval-lengths", "default", "--plugin", "slower.py", "rescale=slower",
            "eval.lengths=[64]", "eval.docs=2", "eval.blocks=1",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        tables.append(done.stdout)
    assert tables[0] != tables[1]
    assert len(list(tmp_path.glob("runs/default/*/evals/*/lengths.csv"))) == 2


def test_an_installed_package_offers_a_scheme(tmp_path: Path, tiny: list[str]) -> None:
    written(tmp_path, "offered")
    about = tmp_path / "offers-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: offers\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[posbench.encodings]\noffered = offered:Mine\n")
    code = "import sys; sys.argv[0] = 'posbench'; from posbench.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "posenc=offered", *tiny],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, registry.PLUGINS: "", "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs" / "default").iterdir()
    (plugin,) = json.loads((run / "manifest.json").read_text())["plugins"]
    assert (plugin["name"], plugin["file"]) == ("offered", "offered:Mine")
