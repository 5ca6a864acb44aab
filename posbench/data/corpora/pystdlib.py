"""The source of the Python that runs: code that every machine has, and that differs on each."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from posbench.data.corpora.base import Corpus, Document
from posbench.errors import DataError
from posbench.registry import register

_SKIPPED = {
    "__pycache__",
    "dist-packages",
    "encodings",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
}


@register
class PyStdlib(Corpus):
    """Standard library of the running Python, read in place; differs by version, never frozen.

    Left out: tests, `encodings`, `pydoc_data`, `lib2to3`, `idlelib`, `_sysconfigdata*`, and files
    that are not UTF-8. Group = top-level package or module.
    """

    family = "code"
    paper = "CPython standard library; PSF licence"

    def read(self) -> list[Document]:
        """One document per module; the id is its path inside the library."""
        root = Path(sysconfig.get_paths()["stdlib"])
        found = []
        for file in _modules(root):
            path = file.relative_to(root)
            text = file.read_bytes()
            try:
                text.decode()
            except UnicodeDecodeError:
                continue
            found.append(Document(path.as_posix(), path.parts[0].removesuffix(".py"), text))
        if not found:
            raise DataError(f"{self.origin}: this Python keeps no source of its standard library")
        return found


def _modules(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        for name in files:
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                yield Path(folder, name)
