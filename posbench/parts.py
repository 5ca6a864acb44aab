"""Options of the parts of something combined: a mapping of names to their options."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from posbench import registry
from posbench.errors import ConfigError


def configured(cls: Any, options: Any) -> Any:
    """A registered class's Config with some of its options set, checked by type."""
    where = f"{cls.group}.options.{cls.name}"
    if not isinstance(options, dict):
        raise ConfigError(f"{where}={options}: write {{option: value}}")
    known = [f.name for f in dataclasses.fields(cls.Config) if f.name != "name"]
    for key in options:
        if key not in known:
            raise ConfigError(registry.unknown(where, key, known))
    return merged(cls.Config, options, f"{where}.")


def merged(schema: Any, options: Mapping[str, Any], where: str = "") -> Any:
    """An object of a settings class with some of its fields set, checked by type."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        found = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.create(dict(options)))
        return OmegaConf.to_object(found)
    except OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", "") or "")
        value = f"={options[key]}" if key in options else ""
        raise ConfigError(f"{where}{key}{value}: {plainly(error)}") from None


#: how OmegaConf says that a value is of the wrong kind, and what it calls the kinds
_WRONG = re.compile(
    r"Value '(?P<value>.*?)' (of type '(?P<type>\w+)' )?"
    r"(could not be converted to|is not a valid|is incompatible with type hint) "
    r"(?P<kind>Integer|Float|bool|'Union\[(int|float|int, float), str\]')"
)
_KINDS = {
    "Integer": "a whole number",
    "Float": "a number",
    "bool": "true or false",
    "'Union[int, str]'": "a whole number or a word",
    "'Union[float, str]'": "a number or a word",
    "'Union[int, float, str]'": "a number or a word",
}


def plainly(error: Exception) -> str:
    """What is wrong with a value, without the names of classes."""
    text = str(error).splitlines()[0]
    if "is not a ListConfig" in text:
        return "a list is written [a,b]"
    if text.endswith("is not Optional"):
        return "a value is needed"
    if "is not a subclass of" in text or re.search(r"Cannot assign \w+ to Dict", text):
        return "has options of its own; write OPTION.KEY=VALUE"
    wrong = _WRONG.match(text)
    containers = "Cannot assign container", "Cannot convert 'ListConfig'"
    if any(words in text for words in containers) or (wrong and wrong["type"] in ("list", "dict")):
        return "one value only"
    if wrong:
        return f"'{wrong['value']}' is not {_KINDS[wrong['kind']]}"
    return text.replace("Invalid value assigned: ", "")


def check_options(group: str, options: dict[str, Any], names: Iterable[str]) -> None:
    """Refuse options of parts that are not there."""
    known = list(dict.fromkeys(names))
    for name in options:
        if name not in known:
            raise ConfigError(registry.unknown(f"{group}.options", name, known))
