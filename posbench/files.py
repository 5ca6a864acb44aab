"""Files: written so that a reader sees the old one or the new one, never a part; their hashes."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from posbench.errors import ConfigError, NotWritable, RunError


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write under a temporary name in the same folder, then rename; the folder is made.

    NotWritable, which is an OSError too, where that fails.
    """
    try:
        _replaced(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise NotWritable(f"{path}: cannot be written ({error.strerror or error})") from None


def require_writable(option: str, file: Path) -> None:
    """ConfigError unless a file can be written there; its folder is made.

    `option` as it was typed: `--out=FOLDER`.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            raise IsADirectoryError(None, "a folder has that name")
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise ConfigError(f"{option}: cannot be written ({error.strerror or error})") from None


def _replaced(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON in one step."""
    write_atomic(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; RunError where it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: not a JSON object")
    return content


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def hashes(paths: Iterable[Path]) -> dict[str, str]:
    """Name -> SHA-256, for the manifest beside the files."""
    return {path.name: file_sha256(path) for path in sorted(paths)}


def altered(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Names of files that are not as the manifest of their folder has them; earlier ones say none.

    Missing files are among them.
    """
    written = manifest.get("sha256") or {}
    return [
        name
        for name, sha256 in written.items()
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256
    ]
