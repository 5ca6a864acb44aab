"""Writing a file so that a reader never sees half of it."""

import os
from pathlib import Path


def atomic_write(path: Path, content: bytes) -> None:
    """Put `content` at `path` through a temporary neighbour and a rename; makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        aside.write_bytes(content)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
