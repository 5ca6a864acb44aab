"""Small disk cache for what is slow to derive: tokenizers and encoded tokens, by hash.

An entry is the SHA-256 of its payload, a newline, and the payload. A damaged entry counts as
missing, a folder that cannot be written as an empty cache.
"""

import contextlib
import hashlib
import os
from pathlib import Path

from posbench.files import write_atomic

#: raise it when the meaning of cached bytes changes
SCHEMA = 1


def folder() -> Path:
    """`$POSBENCH_CACHE`, else `$XDG_CACHE_HOME/posbench`, else `~/.cache/posbench`."""
    if own := os.environ.get("POSBENCH_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "posbench"


def key(*parts: str) -> str:
    """Name of an entry: a hash of everything that it depends on."""
    return hashlib.sha256("\0".join([str(SCHEMA), *parts]).encode()).hexdigest()[:32]


def read(name: str) -> bytes | None:
    """Payload of an entry, None if it is missing or damaged."""
    try:
        digest, _, payload = (folder() / name).read_bytes().partition(b"\n")
    except OSError:
        return None
    return payload if hashlib.sha256(payload).hexdigest().encode() == digest else None


def write(name: str, payload: bytes) -> None:
    """Store an entry whole or not at all; a folder that refuses it is no error."""
    with contextlib.suppress(OSError):
        digest = hashlib.sha256(payload).hexdigest().encode()
        write_atomic(folder() / name, digest + b"\n" + payload)
