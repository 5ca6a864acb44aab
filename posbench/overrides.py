"""Override texts, read by Hydra's own parser: `key=value` words and the values in them."""

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from posbench.errors import ConfigError


def values(words: Sequence[str]) -> dict[str, Any]:
    """`key=value` words in plain Python, read like overrides but of no config."""
    parser, found = OverridesParser.create(), {}
    for word in words:
        if "=" not in word or word.startswith(("~", "+")):
            raise ConfigError(f"{word}: write one name, then key=value")
        try:
            override = parser.parse_overrides([word])[0]
        except HydraException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"{word}: not a valid key=value ({reason})") from None
        key = override.key_or_group
        if override.is_sweep_override():
            raise ConfigError(f"{word}: one value only; a list is written {key}=[...]")
        found[key] = plain(override.value())
    return found


def plain(value: Any) -> Any:
    """A value in Python's own types: no quoted string, array, range or tuple."""
    if isinstance(value, QuotedString):
        return value.text
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple | range) else value


def items(value: Any, is_list: bool = False) -> list[Any]:
    """The elements of a list, one row each; a field that is a list itself needs a list of lists."""
    if is_list and isinstance(value, list) and not all(isinstance(v, list) for v in value):
        return [value]
    return value if isinstance(value, list) else [value]


def written(key: str, value: Any) -> list[str]:
    """Overrides that set an option; a mapping, whose keys are open, one key after the other."""
    if isinstance(value, dict):
        return [o for k, v in value.items() for o in written(f"{key}.{word(k)}", v)]
    sign = "++" if key.count(".") > 1 else ""
    return [f"{sign}{key}={Override._get_value_element_as_str(value)}"]


def word(item: Any) -> Any:
    """The text of a list's element as it is written in an override."""
    return item.text if isinstance(item, QuotedString) else item
