"""Name -> class, from file names: one file is one scheme, rescaling, position sampler or corpus.

The file name is the name on the command line. `names` and `catalogue` read file names and source
text only, so that `posbench list` and shell completion import neither torch nor pandas.
"""

import ast
import dataclasses
import difflib
import importlib
import importlib.resources
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


@cache
def names(group: str) -> tuple[str, ...]:
    """Registry names of a group, sorted: the files that hold a registered class."""
    files = (root() / PACKAGES[group]).glob("*.py")
    return tuple(sorted(p.stem for p in files if "\n@register\n" in p.read_text(encoding="utf-8")))


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


@cache
def get(group: str, name: str) -> Any:
    """The registered class; ConfigError lists what is known."""
    if name not in names(group):
        raise ConfigError(unknown(group, name, names(group)))
    try:
        module = importlib.import_module(f"posbench.{PACKAGES[group].replace('/', '.')}.{name}")
    except Exception as error:
        raise ConfigError(f"{PACKAGES[group]}/{name}.py cannot be read: {error}") from error
    found = [
        c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__
    ]
    for cls in found:
        if "registered" in vars(cls):
            return cls
    raise ConfigError(f"{group}={name}: the file defines no class with @register")


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
            folder = root() / PACKAGES[group]
            entries += [_from_source(group, folder / f"{n}.py") for n in names(group)]
        entries += [_from_preset(group, conf_root() / group / f"{p}.yaml") for p in presets(group)]
    return entries


def _from_source(group: str, path: Path) -> Entry:
    """Family, paper and first docstring line of the registered class in a file."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except SyntaxError as error:
        return Entry(KINDS[group], group, path.stem, "", "", f"cannot be read: {error}")
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
        return Entry(KINDS[group], group, path.stem, family, paper, summary)
    raise ConfigError(f"{path.name}: the file defines no class with @register")


def _from_preset(group: str, path: Path) -> Entry:
    """A YAML preset: its first comment line (after Hydra's package line) is its summary."""
    comments = [x for x in path.read_text(encoding="utf-8").splitlines() if x.startswith("#")]
    summary = next((x.lstrip("# ").strip() for x in comments if "@package" not in x), "")
    return Entry(KINDS[group], group, path.stem, "preset", "", summary)
