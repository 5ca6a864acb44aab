"""Committed tokenizers and targets of the built-in corpora, checked against SHA256SUMS."""

import hashlib
from pathlib import Path

from posbench.errors import DataError

FOLDER = Path(__file__).parent / "frozen"
SUMS = "SHA256SUMS"
TOKENIZER = "tokenizer.json"
TARGETS = "targets.json"


def read(corpus: str, tokenizer: str, file: str) -> bytes | None:
    """A frozen file, None if there is none of that name; DataError if it is damaged."""
    name = f"{corpus}-{tokenizer}/{file}"
    expected = sums(FOLDER).get(name)
    path = FOLDER / name
    if not path.is_file():
        if expected is None:
            return None
        raise DataError(f"data={corpus}: the frozen file {name} is missing; install posbench again")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != expected:
        raise DataError(f"data={corpus}: the frozen file {name} is damaged; install posbench again")
    return content


def sums(folder: Path) -> dict[str, str]:
    """File name -> SHA-256, as listed in a folder's SHA256SUMS (empty if there is none)."""
    path = folder / SUMS
    lines = path.read_text(encoding="ascii").splitlines() if path.is_file() else []
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
