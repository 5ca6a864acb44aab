"""Copying backwards: every symbol of the answer lies at another distance."""

from dataclasses import dataclass

from posbench.data.corpora.copy import Copy
from posbench.registry import register


@register
class Reverse(Copy):
    """Say backwards what stood before the bar; as `copy` otherwise.

    Of T = 8, the letters after the bar scored:

        t v l r | r l v t
    """

    family = "task"
    paper = "after Kazemnejad et al. 2023, arXiv 2305.19466"

    @dataclass
    class Config(Copy.Config):
        """Settings of `data=reverse`."""

    def answer(self, text: list[str]) -> list[str]:
        return text[::-1]

    def sources(self, size: int) -> list[int]:
        return list(reversed(range(size)))
