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
    found = []
    for group in ("posenc", "positions", "data"):
        own = getattr(config, group)
        if own is None:
            continue
        for name in sorted(set(_texts(asdict(own)))):
            facts = registry.plugin_facts(group, name)
            if facts:
                found.append({"group": group, "name": name, **facts})
    return found


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


def check(recorded: list[dict[str, str]], where: Path) -> None:
    """RunError unless the plug-ins that a run was trained with are loaded, as they were."""
    for plugin in recorded:
        facts = registry.plugin_facts(plugin["group"], plugin["name"])
        if facts is None:
            raise RunError(f"{where}: trained with a plug-in; add --plugin {plugin['file']}")
        if facts["sha256"] != plugin["sha256"]:
            raise RunError(
                f"{where}: {plugin['file']} has changed since training (the run keeps a copy)"
            )


def keep(config: RunConfig, folder: Path) -> None:
    """Copies of the plug-in files that a run uses, for the record; they are never imported."""
    for plugin in used(config):
        path = registry.plugin_path(plugin["group"], plugin["name"])
        write_atomic(folder / "plugins" / path.name, path.read_text(encoding="utf-8"))
