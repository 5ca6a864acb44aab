"""Writing files so that a reader sees the old one or the new one, never a part."""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write under a temporary name in the same folder, then rename; the folder is made."""
    data = content.encode() if isinstance(content, str) else content
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
