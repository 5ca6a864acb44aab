"""Builds the committed files of the built-in corpora: `python -m posbench.data.freeze`."""

import hashlib
import sys
from pathlib import Path

from posbench import registry
from posbench.data import pinned
from posbench.data.dataset import build
from posbench.files import write_atomic

#: what is committed
FROZEN = [(corpus, tokenizer) for corpus in ("sotu", "code") for tokenizer in ("bpe1024", "bytes")]


def freeze(corpus: str, tokenizer: str, folder: Path) -> None:
    """Train the tokenizer, fix the targets, write both below `folder` and enter their hashes.

    Neither committed nor cached files are read. For `bytes` there are only targets.
    """
    config = registry.get("data", corpus).Config(tokenizer=tokenizer)
    dataset = build(config, None, frozen=False, cached=False)
    name = f"{corpus}-{tokenizer}"
    files = {f"{name}/{pinned.TARGETS}": dataset.targets.content + b"\n"}
    if tokenizer != "bytes":
        files[f"{name}/{pinned.TOKENIZER}"] = dataset.tokenizer.content
    sums = pinned.sums(folder)
    for path, content in files.items():
        write_atomic(folder / path, content)
        sums[path] = hashlib.sha256(content).hexdigest()
    lines = "".join(f"{digest}  {path}\n" for path, digest in sorted(sums.items()))
    write_atomic(folder / pinned.SUMS, lines.encode())


if __name__ == "__main__":
    for _corpus, _tokenizer in FROZEN:
        freeze(_corpus, _tokenizer, Path(sys.argv[1]) if sys.argv[1:] else pinned.FOLDER)
