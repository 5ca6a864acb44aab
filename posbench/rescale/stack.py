"""Several rescalings at once."""

import math
from dataclasses import dataclass, field
from typing import Any

from posbench import registry
from posbench.encodings.base import PositionalEncoding, Reduction
from posbench.errors import ConfigError
from posbench.parts import check_options, configured
from posbench.registry import register
from posbench.rescale.base import Rescale


@register
class RescaleStack(Rescale):
    """Several rescalings at once, e.g. rescale=stack rescale.parts=[rerope,logn], the default.

    Each part acts on something else: one on frequencies, one on positions, one on scores. ReRoPE
    with log-n is the released code of kexue.fm/archives/9708. A length is refused where one of the
    parts refuses it.
    """

    family = "combined"
    paper = ""
    acts_on = "several things"

    @dataclass
    class Config:
        #: names of rescalings
        parts: list[str] = field(default_factory=lambda: ["rerope", "logn"])
        #: options of the parts by name, e.g. {yarn: {factor: 8}}
        options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def reductions(cls) -> list[Reduction]:
        own = {"parts": ["none", "yarn"], "options": {"yarn": {"factor": 4}}}
        return [Reduction("parts = none and yarn", "yarn", own, {"factor": 4})]

    def __init__(self, config: Config):
        super().__init__(config)
        names = list(config.parts)
        if len(names) < 2:
            raise ConfigError(f"rescale.parts={names}: name two or more rescalings")
        check_options(self.group, config.options, names)
        self.parts = [_part(name, config.options.get(name, {})) for name in names]
        acting: dict[str, str] = {}
        for rule in self.parts:
            other = acting.setdefault(rule.acts_on, rule.name)
            if other != rule.name or names.count(rule.name) > 1:
                raise ConfigError(
                    f"rescale.parts={names}: {other} and {rule.name} both act on {rule.acts_on}"
                )

    @property
    def options(self) -> list[str]:
        """The parts, joined by '+', then their options."""
        every = [f"{rule.name}.{option}" for rule in self.parts for option in rule.options]
        return ["+".join(rule.label for rule in self.parts), *every]

    @property
    def depends_on_total_length(self) -> bool:
        return any(rule.depends_on_total_length for rule in self.parts)

    def scale(self, train_length: int, test_length: int) -> float:
        """The product of the parts' numbers."""
        return math.prod(rule.scale(train_length, test_length) for rule in self.parts)

    def acting(self) -> dict[str, str]:
        return {rule.acts_on: rule.label for rule in self.parts}

    def applied(
        self, encoding: PositionalEncoding, train_length: int, test_length: int
    ) -> PositionalEncoding:
        self.refuse_trained(encoding)
        # a rule that takes frequencies from each query's own length wraps all the rest, a window
        # that too
        last = {"frequencies": 1, "keys": 2}
        for rule in sorted(self.parts, key=lambda rule: last.get(rule.acts_on, 0)):
            encoding = rule.applied(encoding, train_length, test_length)
        return encoding


def _part(name: str, options: Any) -> Rescale:
    """A rescaling by name with some of its options set."""
    cls = registry.get("rescale", name, "rescale.parts")
    if issubclass(cls, RescaleStack):
        raise ConfigError(f"rescale.parts={name}: cannot be a part of itself")
    rule: Rescale = cls(configured(cls, options))
    return rule
