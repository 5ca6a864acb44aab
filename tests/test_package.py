"""The list of packages against the disk, and a wheel that works from elsewhere."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import posbench

ROOT = Path(posbench.__file__).parent.parent
pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="installed without its sources"
)


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def on_disk() -> set[str]:
    """Packages with an __init__.py, and folders of configs."""
    found = {
        str(p.parent.relative_to(ROOT)).replace(os.sep, ".")
        for p in (ROOT / "posbench").rglob("__init__.py")
    }
    folders = {p.parent.relative_to(ROOT / "conf") for p in (ROOT / "conf").rglob("*.yaml")}
    return found | {".".join(("posbench", "conf", *folder.parts)) for folder in folders}


def test_the_package_list_is_what_lies_on_disk() -> None:
    listed = project()["tool"]["setuptools"]["packages"]
    assert set(listed) == on_disk()
    assert listed == sorted(set(listed))


def test_every_config_folder_ships_its_files() -> None:
    shipped = project()["tool"]["setuptools"]["package-data"]
    for name in on_disk():
        if name.startswith("posbench.conf"):
            assert shipped[name] == ["*.yaml"]


def test_the_names_that_must_stay() -> None:
    meta = project()["project"]
    assert meta["name"] == "posbench-harness"
    assert meta["version"] == posbench.__version__
    assert meta["scripts"] == {"posbench": "posbench.cli:main"}
    assert any(d.replace(" ", "") == "hydra-core>=1.3.2,<1.4" for d in meta["dependencies"])


def run(*arguments: str, **options: Any) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, **options
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources."""
    source = tmp_path_factory.mktemp("source")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("posbench", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    out = tmp_path_factory.mktemp("wheel")
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source))
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_everything_and_nothing_else(wheel: Path) -> None:
    assert wheel.name.startswith("posbench_harness-")
    with zipfile.ZipFile(wheel) as archive:
        held = {n for n in archive.namelist() if ".dist-info/" not in n}
    ignored = {"__pycache__"}
    code = {
        str(p.relative_to(ROOT))
        for p in (ROOT / "posbench").rglob("*")
        if p.is_file() and ignored.isdisjoint(p.parts)
    }
    configs = {
        f"posbench/{p.relative_to(ROOT)}"
        for p in (ROOT / "conf").rglob("*")
        if p.is_file() and ignored.isdisjoint(p.parts)
    }
    assert held == code | configs


def test_a_wheel_installed_elsewhere_finds_its_configs_and_frozen_data(
    wheel: Path, tmp_path: Path
) -> None:
    target, folder = tmp_path / "target", tmp_path / "empty"
    folder.mkdir()
    run("-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    options = {"cwd": folder, "env": os.environ | {"PYTHONPATH": str(target)}}
    listed = run("-m", "posbench", "list", **options)
    assert "rope_matched" in listed and "demo" in listed
    printed = run("-m", "posbench", "config", "train", "experiment=smoke", **options)
    assert yaml.safe_load(printed)["tier"] == "smoke"
    code = (
        "import posbench\n"
        "from posbench import registry\n"
        "from posbench.data import pinned\n"
        "print(posbench.__file__, registry.conf_root(), pinned.FOLDER, sep='\\n')\n"
        "for name in pinned.sums(pinned.FOLDER):\n"
        "    folder, file = name.split('/')\n"
        "    assert pinned.read(*folder.split('-'), file)\n"
        "    print(name)\n"
    )
    places = run("-c", code, **options).splitlines()
    assert all(Path(place).is_relative_to(target) for place in places[:3])
    sums = (ROOT / "posbench/data/frozen/SHA256SUMS").read_text(encoding="ascii").splitlines()
    assert places[3:] == [line.split("  ")[1] for line in sums]
    assert not os.listdir(folder)
