"""Name -> class, from file names: one file is one scheme, rescaling, position sampler or corpus.

The file name is the name on the command line. `names` and `catalogue` read file names and source
text only, so that `posbench list` and shell completion import neither torch nor pandas (unless a
plug-in does, which is imported).

A plug-in is such a file anywhere else. It is imported under its own module name, and named in the
environment variable POSBENCH_PLUGINS, so that worker processes know it too. An installed package
offers classes through the entry points `posbench.encodings`, `posbench.rescale`,
`posbench.positions` and `posbench.corpora`, under their registry names.
"""

import ast
import dataclasses
import difflib
import hashlib
import importlib
import importlib.metadata
import importlib.resources
import importlib.util
import itertools
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from posbench.errors import ConfigError

#: config group -> the package that holds one file per option
PACKAGES = {
    "posenc": "encodings",
    "positions": "positions",
    "rescale": "rescale",
    "data": "data/corpora",
}

T = TypeVar("T", bound=type)


def root() -> Path:
    """Folder of the installed package."""
    return Path(__file__).parent


def conf_root() -> Path:
    """Folder of the Hydra configs, in a checkout and in an installed wheel alike."""
    return Path(str(importlib.resources.files("posbench.conf")))


#: paths of plug-in files, as in PATH
PLUGINS = "POSBENCH_PLUGINS"


def names(group: str) -> tuple[str, ...]:
    """Registry names of a group, sorted: the files that hold a registered class, and plug-ins."""
    outside = [name for g, name in {**_plugins(), **_entry_points()} if g == group]
    return tuple(sorted({*_built_in(group), *outside}))


@cache
def _built_in(group: str) -> tuple[str, ...]:
    files = (root() / PACKAGES[group]).glob("*.py")
    return tuple(p.stem for p in files if "\n@register\n" in p.read_text(encoding="utf-8"))


def _offers(group: str) -> str:
    """The entry points of a config group."""
    return f"posbench.{PACKAGES[group].rpartition('/')[2]}"


@cache
def _entry_points() -> dict[tuple[str, str], importlib.metadata.EntryPoint]:
    """(group, name) -> what installed packages offer."""
    every = importlib.metadata.entry_points()
    return {(g, e.name): e for g in PACKAGES for e in every.select(group=_offers(g))}


@dataclass(frozen=True)
class Plugin:
    """A plug-in as it was imported."""

    group: str
    name: str
    file: str
    source: str

    @property
    def facts(self) -> dict[str, str]:
        """File name and SHA-256, for a run's manifest."""
        return {"file": self.file, "sha256": hashlib.sha256(self.source.encode()).hexdigest()}


def load_plugin(path: str | Path) -> tuple[str, str]:
    """Register the class of a file, here and in processes started from here: (group, name)."""
    file = Path(path).resolve()
    found = _plugin(file)
    _add_path(PLUGINS, file)
    _add_path("PYTHONPATH", file.parent)  # settings that are handed to a worker name its module
    return found.group, found.name


def _add_path(variable: str, path: Path) -> None:
    """Append a path to an environment variable, once."""
    known = [p for p in os.environ.get(variable, "").split(os.pathsep) if p]
    os.environ[variable] = os.pathsep.join(dict.fromkeys([*known, str(path)]))


def _plugins() -> dict[tuple[str, str], Plugin]:
    """(group, name) -> plug-in, of those that are named in the environment."""
    paths = [Path(p) for p in os.environ.get(PLUGINS, "").split(os.pathsep) if p]
    return {(p.group, p.name): p for p in map(_plugin, paths)}


@cache
def _plugin(file: Path) -> Plugin:
    """Import a plug-in. ConfigError says what is wrong with it."""
    where = f"--plugin={file}"
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise ConfigError(f"{where}: must be a Python file whose name is an identifier")
    if not file.is_file():
        raise ConfigError(f"{where}: no such file")
    known = importlib.util.find_spec(file.stem)
    if known is not None and Path(known.origin or "").resolve() != file:
        raise ConfigError(f"{where}: a module {file.stem} exists already; rename the file")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
        importlib.invalidate_caches()
    source = file.read_text(encoding="utf-8", errors="replace")
    cls = _registered(file.stem, where)
    group = getattr(cls, "group", "")
    if group not in PACKAGES:
        raise ConfigError(f"{where}: its class belongs to none of {', '.join(PACKAGES)}")
    if file.stem in (*_built_in(group), *presets(group)):
        raise ConfigError(f"{where}: {group}={file.stem} is built in; rename the file")
    return Plugin(group, file.stem, file.name, source)


def plugin(group: str, name: str) -> Plugin | None:
    """Where a name comes from that is not built in; None for what is."""
    if (group, name) in _plugins():
        return _plugins()[group, name]
    if (group, name) in _entry_points():
        module = sys.modules[get(group, name).__module__]
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        return Plugin(group, name, _entry_points()[group, name].value, source)
    return None


def presets(group: str) -> tuple[str, ...]:
    """Names of the YAML files of a config group, sorted."""
    return tuple(sorted(p.stem for p in (conf_root() / group).glob("*.yaml")))


def options(group: str) -> tuple[str, ...]:
    """Everything `group=` accepts: registered classes and YAML presets."""
    own = names(group) if group in PACKAGES else ()
    return tuple(sorted({*own, *presets(group)}))


def register(cls: T) -> T:
    """Give a class its registry name (its file's) and its Config the field `name`."""
    name = cls.__module__.rsplit(".", 1)[-1]
    own: Any = cls
    config = dataclasses.make_dataclass(
        "Config", [("name", str, dataclasses.field(default=name))], bases=(own.Config,)
    )
    config.__module__, config.__qualname__ = cls.__module__, f"{cls.__qualname__}.Config"
    config.__doc__ = own.Config.__doc__
    own.name, own.Config, own.registered = name, config, True
    return cls


def get(group: str, name: str, option: str = "") -> Any:
    """The registered class; ConfigError lists what is known, of the option that names it."""
    if name not in names(group):
        raise ConfigError(unknown(option or group, name, names(group)))
    if name in _built_in(group):
        module = f"posbench.{PACKAGES[group].replace('/', '.')}.{name}"
        return _registered(module, f"{PACKAGES[group]}/{name}.py")
    if (group, name) in _plugins():
        return _registered(name, f"{name}.py")
    return _offered(group, name)


@cache
def _registered(module: str, where: str) -> Any:
    """The class with @register of a module."""
    try:
        found = vars(importlib.import_module(module))
    except Exception as error:
        raise ConfigError(f"{where} cannot be read: {error}") from error
    for cls in found.values():
        own = isinstance(cls, type) and cls.__module__ == module
        if own and "registered" in vars(cls):
            return cls
    raise ConfigError(f"{where}: the file defines no class with @register")


@cache
def _offered(group: str, name: str) -> Any:
    """A class that an installed package offers."""
    point = _entry_points()[group, name]
    try:
        cls = point.load()
    except Exception as error:
        raise ConfigError(f"{group}={name}: {point.value} cannot be read: {error}") from error
    if getattr(cls, "name", None) != name or getattr(cls, "group", None) != group:
        raise ConfigError(f"{group}={name}: {point.value} is not registered under that name")
    return cls


def unknown(option: str, value: object, known: Iterable[str]) -> str:
    """One line that names the option, what was given and what is known."""
    known = list(known)
    if option in PACKAGES and (root() / PACKAGES[option] / f"{value}.py").is_file():
        return f"{PACKAGES[option]}/{value}.py has no class with @register"
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{option}={value} is unknown{hint}; known: {', '.join(known)}"


@dataclass(frozen=True)
class Entry:
    """One line of `posbench list`; `option` is the config group that takes the name."""

    kind: str
    option: str
    name: str
    family: str
    paper: str
    summary: str


#: what `posbench list` shows, in order: config group -> kind
KINDS = {
    "posenc": "scheme",
    "rescale": "rescaling",
    "positions": "positions",
    "data": "corpus",
    "model": "model",
    "optimizer": "optimizer",
    "experiment": "experiment",
}


def catalogue() -> list[Entry]:
    """Every scheme, rescaling, sampler, corpus and preset, read from the source files."""
    entries = []
    for group in KINDS:
        if group in PACKAGES:
            entries += [_entry(group, name) for name in names(group)]
        entries += [_from_preset(group, conf_root() / group / f"{p}.yaml") for p in presets(group)]
    return entries


def _entry(group: str, name: str) -> Entry:
    """The line of a registered class."""
    if name in _built_in(group):
        return _from_source(group, root() / PACKAGES[group] / f"{name}.py")
    if (group, name) in _plugins():
        return _read(group, name, _plugins()[group, name].source)
    return Entry(KINDS[group], group, name, "", "", f"from {_entry_points()[group, name].value}")


def _from_source(group: str, path: Path) -> Entry:
    """Family, paper and first docstring line of the registered class in a file."""
    return _read(group, path.stem, path.read_text(encoding="utf-8"))


def _read(group: str, name: str, source: str) -> Entry:
    """The same from a file's text."""
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        return Entry(KINDS[group], group, name, "", "", f"cannot be read: {error}")
    for node in body:
        if not isinstance(node, ast.ClassDef):
            continue
        if not any(isinstance(d, ast.Name) and d.id == "register" for d in node.decorator_list):
            continue
        values = {
            target.id: item.value.value
            for item in node.body
            if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant)
            for target in item.targets
            if isinstance(target, ast.Name)
        }
        summary = (ast.get_docstring(node) or "").split("\n", 1)[0]
        family, paper = str(values.get("family", "")), str(values.get("paper", ""))
        return Entry(KINDS[group], group, name, family, paper, summary)
    raise ConfigError(f"{name}.py: the file defines no class with @register")


def _from_preset(group: str, path: Path) -> Entry:
    """A YAML preset: its comment (after Hydra's package line) is its summary, asides left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = itertools.takewhile(lambda x: x.startswith("#"), lines)
    said = " ".join(x.lstrip("# ").strip() for x in comments if "@package" not in x)
    summary = said.partition("; ")[0].partition(" (")[0]
    return Entry(KINDS[group], group, path.stem, "preset", "", summary)
