"""Small texts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from posbench import registry
from posbench.data.dataset import Dataset, load

WORDS = ["the", "of", "a", "state", "house", "people", "law", "naïve", "Größe", "数", "🙂", "peace"]


def prose(seed: int, words: int) -> str:
    """Words in random order, with some paragraphs and blanks."""
    rng = np.random.default_rng(seed)
    joints = [" ", " ", " ", " ", ", ", ".\n", "\n\n", "  "]
    chosen = zip(rng.choice(WORDS, words), rng.choice(joints, words), strict=True)
    return "".join(word + joint for word, joint in chosen)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ninety files of 300 to 1,900 words, some below subfolders."""
    root = tmp_path_factory.mktemp("texts")
    for i in range(90):
        path = root / f"part{i % 3}" / f"doc{i:03d}.txt" if i % 2 else root / f"doc{i:03d}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(prose(i, 300 + 18 * i), encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def load_text() -> Callable[..., Dataset]:
    """Loads `data=text` with a path."""

    def loader(path: Path | str, tokenizer: str = "bpe300") -> Dataset:
        return load(registry.get("data", "text").Config(path=str(path), tokenizer=tokenizer))

    return loader


@pytest.fixture(scope="session")
def dataset(folder: Path, load_text: Callable[..., Dataset]) -> Dataset:
    """The folder with a BPE of 300."""
    return load_text(folder)


@pytest.fixture(scope="session")
def sotu() -> Dataset:
    """The default corpus in bytes (nothing to train or encode)."""
    return load(registry.get("data", "sotu").Config(tokenizer="bytes"))
