"""Own text: a file, a folder or a glob."""

import glob
import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from posbench.data.corpora.base import Corpus, Document
from posbench.errors import DataError
from posbench.registry import register

#: what a folder is searched for; a file or a glob is taken whatever its name ends in
SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in [
        *["txt", "text", "md", "markdown", "rst", "tex", "org", "adoc", "html", "htm", "xml"],
        *["json", "jsonl", "csv", "tsv", "yaml", "yml", "toml"],
        *["py", "pyi", "c", "h", "cc", "cpp", "hpp", "rs", "go", "java", "js", "ts"],
        *["rb", "jl", "r", "sh", "sql", "lean", "hs", "ml"],
    ]
)


@register
class Text(Corpus):
    """Own UTF-8 text: a file, a folder (searched to the bottom) or a glob; one file = one document.

    A folder gives its files with a text suffix (.txt, .md, .rst, .tex, .py, .json and so on),
    hidden files and folders left out. Ids are relative to the folder, to the fixed part of the
    glob, or to the single file's folder, so that the content hash does not depend on where the text
    lies. Files of equal content share a group, hence a side of the split.
    """

    family = "own text"
    paper = "the user's; stays where it is"

    @dataclass
    class Config(Corpus.Config):
        """Settings of `data=text`."""

        #: a file, a folder, or a glob such as `notes/**/*.md`
        path: str = field(default="???", metadata={"identity": False})

    @staticmethod
    def located(config: Config) -> Config:
        return replace(config, path=os.path.abspath(os.path.expanduser(config.path)))

    @property
    def origin(self) -> str:
        """The option that names the text, with its value."""
        return f"data.path={self.config.path}"

    def read(self) -> list[Document]:
        """The documents; DataError for a missing, empty, unreadable or not UTF-8 text."""
        if self.config.path in ("", "???"):
            raise DataError("data.path is not set; data=text needs a file, a folder or a glob")
        root, files = self._files()
        found = []
        for file in files:
            try:
                text = file.read_bytes()
                text.decode()
            except OSError as error:
                raise DataError(f"{self.origin}: cannot read {file}: {error.strerror}") from error
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{self.origin}: {file} is not UTF-8 (byte {error.start} is "
                    f"0x{text[error.start]:02x})"
                ) from error
            group = hashlib.sha256(text).hexdigest()[:16]
            found.append(Document(file.relative_to(root).as_posix(), group, text))
        if not any(d.text for d in found):
            what = (
                f"{files[0]} is empty" if len(files) == 1 else f"all {len(files)} files are empty"
            )
            raise DataError(f"{self.origin}: {what}")
        return found

    def _files(self) -> tuple[Path, list[Path]]:
        """The folder that ids are relative to, and the files (at least one)."""
        path = Path(self.config.path).expanduser()
        if path.is_file():
            return path.parent, [path]
        if path.is_dir():
            files = [f for f in path.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file()]
            files = [f for f in files if not _hidden(f.relative_to(path))]
            if not files:
                raise DataError(f"{self.origin}: the folder holds no text file (.txt, .md, ...)")
            return path, files
        if glob.has_magic(str(path)):
            files = [Path(f) for f in glob.glob(str(path), recursive=True) if os.path.isfile(f)]
            if not files:
                raise DataError(f"{self.origin}: the glob matches no file")
            return _fixed_part(path), files
        raise DataError(f"{self.origin}: there is no such file or folder")


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _fixed_part(pattern: Path) -> Path:
    """The leading folders of a glob that hold no wildcard."""
    fixed = Path()
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed /= part
    return fixed
