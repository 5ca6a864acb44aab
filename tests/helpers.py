"""What several test files call."""

from pathlib import Path
from typing import Any

import numpy as np

from posbench.data import windows
from posbench.evaluate import rows

#: schemes of every kind, for a sweep
SWEPT = "posenc=none,sinusoidal,learned,t5,alibi,rope,rope_matched,stack,layers"


def refused(done: Any, *words: str, lines: int = 1) -> None:
    """Exit 2 with at most `lines` lines on stderr that hold the words, and nothing on stdout."""
    assert done.code == 2, (done.out, done.err)
    assert "Traceback" not in done.err
    assert 1 <= len(done.errors) <= lines, done.err
    assert done.err.startswith("posbench: error: ")
    for word in words:
        assert word in done.err, done.err
    assert not done.out


def window(n: int, document: str = "d", block: int = 0, scored: int = 1) -> windows.Window:
    """A window of n tokens whose last ones are scored."""
    tokens = np.arange(n) % 7
    return windows.Window(document, block, n, tokens, tokens[:scored], np.arange(n - scored, n))


def files(folder: Path) -> dict[str, bytes]:
    """The tables of an evaluation folder, byte for byte."""
    return {name: (folder / name).read_bytes() for name in (rows.LENGTHS, rows.BLOCKS)}
