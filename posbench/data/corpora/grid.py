"""What every corpus of pictures or clips provides: grey levels on a grid, split by group."""

import hashlib
import importlib.util
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from posbench.errors import ConfigError, DataError

Grey = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Sample:
    """One picture or clip; samples of one `group` never lie on two sides of the split."""

    id: str
    group: str
    #: grey levels [rows, columns] or [frames, rows, columns]
    values: Grey


#: side -> samples, sides in the order train, validation, test
Sides = dict[str, list[Sample]]


def quantised(values: Grey, levels: int) -> Grey:
    """Grey 0..255 in `levels` equal bins, 0..levels-1."""
    return (values.astype(np.uint16) * levels // 256).astype(np.uint8)


def shrunk(values: Grey, factor: int) -> Grey:
    """Means over blocks of factor x factor pixels, rounded down; what is left over is cut off."""
    rows, columns = (extent // factor for extent in values.shape[-2:])
    whole = values[..., : rows * factor, : columns * factor]
    blocks = whole.reshape(*whole.shape[:-2], rows, factor, columns, factor)
    means: Grey = (blocks.sum(axis=(-3, -1), dtype=np.uint32) // factor**2).astype(np.uint8)
    return means


class GridCorpus(ABC):
    """Base of all pictures and clips; a subclass names itself by its file and implements `make`.

    The files are read from an installed package's folder without importing it, and checked by hash
    as they are stored: a decoder's version shows in `content_sha256` alone.
    """

    group: ClassVar[str] = "data"
    name: ClassVar[str] = ""
    family: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    #: the package as it is imported and as it is installed, and the extra that brings it
    package: ClassVar[str]
    distribution: ClassVar[str]
    extra: ClassVar[str]
    #: the files, relative to the package's folder
    files: ClassVar[tuple[str, ...]]
    #: SHA-256 over (path, NUL, bytes) of the files, and the command that brings just those
    sha256: ClassVar[str]
    install: ClassVar[str]
    #: the region that holds what is scored: its bottom half, or its last frame
    smallest: ClassVar[tuple[int, ...]]
    #: test shapes unless others are asked for
    shapes: ClassVar[tuple[tuple[int, ...], ...]]
    #: picture or clip
    unit: ClassVar[str]
    #: held-out samples are many, so that intervals run over them; else they run over regions
    independent: ClassVar[bool]

    @dataclass
    class Config:
        """Settings that all pictures and clips have."""

        #: the largest test shape; axes on which training is smaller are those that grow
        largest: ClassVar[tuple[int, ...]] = ()

        #: extents of a training example
        shape: list[int] = field(default_factory=list)
        #: grey levels, the size of the vocabulary
        levels: int = 32

        def __post_init__(self) -> None:
            good = len(self.shape) == len(self.largest) and all(
                2 <= extent <= most for extent, most in zip(self.shape, self.largest, strict=True)
            )
            if not good:
                most = "x".join(map(str, self.largest))
                axes = len(self.largest)
                raise ConfigError(
                    f"data.shape={list(self.shape)}: needs {axes} extents of 2 to {most}"
                )
            if not 2 <= self.levels <= 256:
                raise ConfigError(f"data.levels={self.levels}: must be from 2 to 256")

    def __init__(self, config: Any) -> None:
        self.config = config
        self._sides: Sides | None = None

    @abstractmethod
    def make(self, files: dict[str, bytes]) -> Sides:
        """All samples in grey 0..255, from the files' bytes; DataError names a damaged one."""

    @property
    def largest(self) -> tuple[int, ...]:
        """The largest test shape."""
        found: tuple[int, ...] = type(self.config).largest
        return found

    @property
    def origin(self) -> str:
        """The option to name in an error message, with its value."""
        return f"data={self.name}"

    @staticmethod
    def located(config: Any) -> Any:
        """The configuration as a run keeps it: there is no path in it."""
        return config

    def sides(self) -> Sides:
        """The quantised samples of train, validation and test, sorted by id.

        DataError if the package is missing, not the pinned one, or damaged.
        """
        if self._sides is None:
            files = self._read()
            made = self.make(files)
            self._check(files)
            self._sides = {
                side: [
                    Sample(s.id, s.group, quantised(s.values, self.config.levels))
                    for s in sorted(samples, key=lambda s: s.id)
                ]
                for side, samples in made.items()
            }
        return self._sides

    def content_sha256(self) -> str:
        """SHA-256 over (side, id, shape, levels) of all samples."""
        digest = hashlib.sha256()
        for side, samples in self.sides().items():
            for s in samples:
                digest.update(f"{side}\0{s.id}\0{s.values.shape}\0".encode() + s.values.tobytes())
        return digest.hexdigest()

    def need(self, package: str, distribution: str) -> Path:
        """Folder of an installed package, found without importing it; else DataError."""
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise DataError(
                f"{self.origin}: the package {distribution} is not installed; install it with: "
                f"pip install 'posbench-harness[{self.extra}]'"
            )
        return Path(spec.origin).parent

    def damaged(self, file: str) -> DataError:
        """The error for a file that cannot be decoded."""
        return DataError(
            f"{self.origin}: {self.package}/{file} cannot be decoded; "
            f"install it with: {self.install}"
        )

    def _read(self) -> dict[str, bytes]:
        """The files' bytes."""
        folder = self.need(self.package, self.distribution)
        found = {}
        for file in self.files:
            try:
                found[file] = (folder / file).read_bytes()
            except OSError as error:
                raise DataError(
                    f"{self.origin}: cannot read {folder / file}: {error.strerror}; "
                    f"install it with: {self.install}"
                ) from error
        return found

    def _check(self, files: dict[str, bytes]) -> None:
        """Refuse another version of the package's files."""
        digest = hashlib.sha256()
        for file, content in files.items():
            digest.update(file.encode() + b"\0" + content)
        if digest.hexdigest() != self.sha256:
            raise DataError(
                f"{self.origin}: the installed files are not the pinned version (SHA-256 "
                f"{digest.hexdigest()[:12]}, expected {self.sha256[:12]}); "
                f"install it with: {self.install}"
            )
