"""The made text: what repeats what, at which distances, and a dataset like any other."""

import inspect
import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from posbench import registry
from posbench.data.corpora.base import content_hash
from posbench.data.corpora.echo import Echo
from posbench.data.dataset import Dataset, load
from posbench.errors import ConfigError
from posbench.evaluate.ngram import Ngram

#: of three documents of a hundred words: the same on every machine and in every version
GOLDEN = "4bc787dfd3ef418a6699379cfcec679b44d382d7195b9ea61c7ead9580c82206"


def corpus(**options: Any) -> Echo:
    cls = registry.get("data", "echo")
    made: Echo = cls(cls.Config(**options))
    return made


def words(made: Echo) -> list[list[str]]:
    return [document.text.decode().split() for document in made.documents()]


def sources(text: list[str], context: int = 8) -> list[int | None]:
    """How far back the last place lies at which the same `context` words stand; slow."""
    found: list[int | None] = []
    last: dict[tuple[str, ...], int] = {}
    for i in range(len(text) - context + 1):
        own = tuple(text[i : i + context])
        found.append(i - last[own] if own in last else None)
        last[own] = i
    return found


def test_the_text_is_what_it_was() -> None:
    documents = corpus(documents=3, size=100).documents()
    assert content_hash(documents) == GOLDEN
    assert len({document.group for document in documents}) == 3


def test_the_docstrings_example_is_drawn() -> None:
    doc = inspect.getdoc(registry.get("data", "echo")) or ""
    options = {name: int(value) for name, value in re.findall(r"data\.(\w+)=(\d+)", doc)}
    drawn = " ".join(line for line in doc.splitlines() if line.startswith("    ")).split()
    assert words(corpus(documents=1, **options)) == [drawn]
    assert drawn[-8:] == drawn[-16:-8] and len(set(drawn)) == len(drawn) - 8


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_as_many_words_are_repeated_as_passages_are_copies(share: float) -> None:
    texts = words(corpus(documents=8, size=3000, near=64, far=1024, share=share))
    assert all(len(text) == 3000 for text in texts)
    found = [d is not None for text in texts for d in sources(text)[1024:]]
    # the first seven words of a copy have no such place; a passage has 24 words on average
    assert abs(np.mean(found) - share * (24 - 7) / 24) < 0.07


def test_distances_are_alike_in_every_octave() -> None:
    texts = words(corpus(documents=40, size=3000, near=32, far=512, share=0.1))
    starts = []
    for text in texts:
        found = sources(text)
        starts += [
            d for i, d in enumerate(found) if i > 512 and d is not None and found[i - 1] != d
        ]
    octaves = Counter(int(math.log2(d / 31.5)) for d in starts if 32 <= d <= 512)
    assert len(starts) > 150 and sum(octaves.values()) > 0.9 * len(starts)
    each = len(starts) / 4
    assert all(abs(octaves[k] - each) < 4 * each**0.5 for k in range(4)), octaves


def test_no_ngram_model_knows_more_than_the_words() -> None:
    texts = [document.text for document in corpus(documents=60, size=600, words=64).documents()]
    model = Ngram.choose(texts[:40], texts[40:50])
    queries = [(text, len(text) - 100) for text in texts[50:]]
    per_byte = sum(model.nats(queries)) / sum(n for _, n in queries)
    assert math.log(64) / 5 - 0.01 < per_byte < math.log(64) / 5 + 0.1


def test_it_is_a_dataset_like_any_other_with_a_token_a_word() -> None:
    data = load(registry.get("data", "echo").Config(documents=100, size=1200))
    assert isinstance(data, Dataset)
    assert len(data.targets.documents) >= 20 and data.targets.longest == 512
    assert data.interval_over == "documents" and not data.split["contiguous"]
    sides = [data.split[side]["documents"] for side in ("train", "validation", "test")]
    assert sum(sides) == 100 and min(sides) >= 10
    assert all(len(tokens) == 1200 for tokens in data.test.values())
    assert len(data.train_tokens) == 1200 * sides[0]
    again = load(registry.get("data", "echo").Config(documents=100, size=1200))
    assert again.targets.sha256 == data.targets.sha256
    other = load(registry.get("data", "echo").Config(documents=100, size=1200, share=0.4))
    assert other.targets.sha256 != data.targets.sha256


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"share": 1.5}, "data.share=1.5: must be from 0 to 1"),
        ({"words": 1}, "data.words=1: must be from 2 to 1536"),
        ({"near": 0}, "data.near=0: must be from 1"),
        ({"near": 9, "far": 8}, "data.far=8: must be from 9"),
        ({"size": 0}, "data.size=0"),
        ({"documents": 0}, "data.documents=0"),
        ({"tokenizer": "words"}, "data.tokenizer=words"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        corpus(**options)
