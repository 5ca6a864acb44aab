"""A made text in which far context is worth something: its passages have stood before."""

import random
from dataclasses import dataclass

from posbench.data.corpora.base import Corpus, Document
from posbench.errors import ConfigError
from posbench.registry import register

#: words are a first and a second syllable
SYLLABLES = [consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeiou"]
SECONDS = 32
#: words of a passage, each number as likely
PASSAGE = (16, 32)


@register
class Echo(Corpus):
    """Random words in passages of 16 to 32, of which a share repeats what stood d words before.

    d is log-uniform from `data.near` to `data.far` (no octave holds more copies than another) and a
    passage has at most d words. The others are drawn anew. No n-gram model predicts more than the
    words' frequencies; who copies saves nearly all of a copy's loss but for its first words, which
    nothing announces. bpe1024 has a token for each of 512 words, so that d is in tokens. Drawn with
    data.near=8 data.far=8 data.share=1 data.size=29, of which the last 8 words are a copy:

        majo kiha meda mago nadu naga kudi labo leho mejo mudu lidi nifo
        meje nidi laja kohi moja lido nibo meha
        meje nidi laja kohi moja lido nibo meha
    """

    family = "made text"
    paper = ""

    @dataclass
    class Config(Corpus.Config):
        """Settings of `data=echo`."""

        #: documents, and words in each
        documents: int = 160
        size: int = 8192
        #: size of the vocabulary
        words: int = 512
        #: least and largest distance of a copy, in words
        near: int = 16
        far: int = 4096
        #: share of the passages that are copies
        share: float = 0.5

        def __post_init__(self) -> None:
            super().__post_init__()
            for option, low, high in (
                ("documents", 1, 100_000),
                ("size", 1, 1_000_000),
                ("words", 2, SECONDS * (len(SYLLABLES) - SECONDS)),
                ("near", 1, 1_000_000),
                ("far", self.near, 1_000_000),
            ):
                value = getattr(self, option)
                if not low <= value <= high:
                    raise ConfigError(f"data.{option}={value}: must be from {low} to {high}")
            if not 0 <= self.share <= 1:
                raise ConfigError(f"data.share={self.share}: must be from 0 to 1")

    def read(self) -> list[Document]:
        """Documents that differ by their number alone, each a group of its own."""
        numbers = [f"{number:05}" for number in range(self.config.documents)]
        return [Document(number, number, self._text(number)) for number in numbers]

    def _text(self, number: str) -> bytes:
        """The document's words, each after a space."""
        draw = random.Random(f"echo {number}").random  # the same in every version of Python
        config = self.config
        words: list[int] = []
        least, most = PASSAGE
        while len(words) < config.size:
            n = least + int(draw() * (most - least + 1))
            back = round(config.near * (config.far / config.near) ** draw())
            if draw() < config.share and back <= len(words):
                start = len(words) - back
                words += words[start : start + n]
            else:
                words += [int(draw() * config.words) for _ in range(n)]
        return "".join(f" {_spelled(word)}" for word in words[: config.size]).encode()


def _spelled(word: int) -> str:
    first, second = divmod(word, SECONDS)
    return SYLLABLES[SECONDS + first] + SYLLABLES[second]
