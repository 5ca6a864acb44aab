"""A name and its keys, as they are typed: what they mean, and whether they are known."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from posbench import registry
from posbench.errors import ConfigError
from posbench.show.keys import GROUPS


@dataclass(frozen=True)
class Named:
    """What a name means."""

    group: str
    #: registry name
    name: str
    #: what it is called; a preset has a name of its own
    label: str
    #: options that a preset sets
    preset: Mapping[str, Any]
    #: what else the same word means, in the spelling that says so
    also: tuple[str, ...] = ()

    @property
    def cls(self) -> Any:
        """The registered class."""
        return registry.get(self.group, self.name)


def find(text: str) -> Named:
    """The meaning of `yarn`, or of `rescale=none` where several groups have the name."""
    group, equals, name = text.partition("=")
    if equals and group not in GROUPS:
        raise ConfigError(f"{text}: a name comes first, e.g. alibi or rescale=none, then the keys")
    groups, name = ((group,), name) if equals else (GROUPS, text)
    found = [g for g in groups if name in registry.options(g)]
    if not found:
        raise ConfigError(
            f"{text}: {_unknown(name, (n for g in groups for n in registry.options(g)))}"
        )
    also = tuple(f"{g}={name}" for g in found[1:])
    if name in registry.names(found[0]):
        return Named(found[0], name, name, {}, also)
    file = registry.conf_root() / found[0] / f"{name}.yaml"
    options: Any = OmegaConf.to_container(OmegaConf.load(file))
    return Named(found[0], options.pop("defaults")[0], name, options, also)


def fields(schema: Any) -> list[str]:
    """Names of the options of a class's Config."""
    return [f.name for f in dataclasses.fields(schema) if f.name != "name"]


def sort(
    name: str, given: Mapping[str, Any], places: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """The keys of every place that has them, each in the first one; `factor` in all."""
    sorted_keys: list[dict[str, Any]] = [{} for _ in places]
    for key, value in given.items():
        having = [i for i, known in enumerate(places) if key in known]
        if not having:
            known = dict.fromkeys(k for place in places for k in place)
            raise ConfigError(f"{key}={value}: {_unknown(key, known, f'no key of {name}')}")
        for i in having if key == "factor" else having[:1]:
            sorted_keys[i][key] = value
    return sorted_keys


def _unknown(word: str, known: Iterable[str], what: str = "unknown") -> str:
    """What is wrong with a word, and which ones there are."""
    known = list(dict.fromkeys(known))
    near = difflib.get_close_matches(word, known, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"{what}{meant}; known: {', '.join(known)}"
