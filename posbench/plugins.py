"""The plug-in files that a run uses: known by name and hash, and kept beside it.

A run directory may come from a stranger, so the copy in it is never imported.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posbench import registry
from posbench.errors import RunError
from posbench.files import write_atomic
from posbench.settings import RunConfig


def used(config: RunConfig) -> list[dict[str, str]]:
    """File name and hash of every plug-in that a run's settings name."""
    groups = ("posenc", "positions", "data", "rescale")
    return [found for g in groups for found in named(g, getattr(config, g))]


def named(group: str, config: Any) -> list[dict[str, str]]:
    """The same for the settings of one group; parts of something combined are named there too."""
    if config is None:
        return []
    found = [registry.plugin(group, name) for name in sorted(set(_texts(asdict(config))))]
    return [{"group": p.group, "name": p.name, **p.facts} for p in found if p is not None]


def _texts(value: Any) -> Iterator[str]:
    """Every text in a config's values; `a+b` names two."""
    if isinstance(value, str):
        yield from value.split("+")
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def check(recorded: Any, where: Path) -> None:
    """RunError unless the plug-ins that a run was trained with are loaded, as they were."""
    try:
        expected = [(p["group"], p["name"], p["file"], p["sha256"]) for p in recorded]
    except (TypeError, KeyError):
        raise RunError(f"{where}: the plug-ins in its manifest cannot be read") from None
    for group, name, file, sha256 in expected:
        found = registry.plugin(group, name)
        if found is None:
            kept = where / "plugins" / f"{name}.py"
            raise RunError(f"{where}: trained with a plug-in; add --plugin {file} (kept in {kept})")
        if found.facts["sha256"] != sha256:
            raise RunError(f"{where}: {file} has changed since training (the run keeps a copy)")


def keep(config: RunConfig, folder: Path) -> None:
    """Copies of the plug-in files that a run uses, for the record; they are never imported."""
    for recorded in used(config):
        plugin = registry.plugin(recorded["group"], recorded["name"])
        if plugin is not None:
            write_atomic(folder / "plugins" / f"{plugin.name}.py", plugin.source)
