"""Options of a scheme, rescaling or sampler read from source text, so that nothing is imported."""

import ast
from functools import cache
from pathlib import Path

from posbench import registry


def options(group: str, name: str) -> list[str]:
    """Names of the options of a built-in class, inherited ones included."""
    folder = registry.root() / registry.PACKAGES[group]
    files = {path.stem: _classes(path) for path in folder.glob("*.py")}
    every = {c: node for classes in files.values() for c, node in classes.items()}
    for c, node in files.get(name, {}).items():
        if "register" in map(ast.unparse, node.decorator_list):
            return list(dict.fromkeys(_options(c, every)))
    return []


@cache
def _classes(path: Path) -> dict[str, ast.ClassDef]:
    """Classes of a file, nested ones as `Outer.Inner`."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except SyntaxError:
        return {}
    found = {c.name: c for c in body if isinstance(c, ast.ClassDef)}
    nested = {
        f"{outer}.{c.name}": c
        for outer, node in found.items()
        for c in node.body
        if isinstance(c, ast.ClassDef)
    }
    return found | nested


def _options(name: str, classes: dict[str, ast.ClassDef]) -> list[str]:
    """Options of a class: the annotated fields of its Config and of what that inherits."""
    node = classes.get(name)
    if node is None:
        return []
    if f"{name}.Config" in classes:
        return _options(f"{name}.Config", classes)
    bases = [o for base in node.bases for o in _options(ast.unparse(base), classes)]
    if name.rpartition(".")[2].endswith("Config"):
        fields = [f for f in node.body if isinstance(f, ast.AnnAssign)]
        plain = [f for f in fields if not ast.unparse(f.annotation).startswith("ClassVar")]
        return [*bases, *(ast.unparse(f.target) for f in plain)]
    return bases
