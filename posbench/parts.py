"""Options of the parts of something combined: a mapping of names to their options."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from posbench import registry
from posbench.errors import ConfigError


def configured(cls: Any, options: Any) -> Any:
    """A registered class's Config with some of its options set, checked by type."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    where = f"{cls.group}.options.{cls.name}"
    if not isinstance(options, dict):
        raise ConfigError(f"{where}={options}: write {{option: value}}")
    known = [f.name for f in dataclasses.fields(cls.Config) if f.name != "name"]
    for key in options:
        if key not in known:
            raise ConfigError(registry.unknown(where, key, known))
    try:
        merged = OmegaConf.merge(OmegaConf.structured(cls.Config), OmegaConf.create(options))
        return OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {str(error).splitlines()[0]}") from None


def check_options(group: str, options: dict[str, Any], names: Iterable[str]) -> None:
    """Refuse options of parts that are not there."""
    known = list(dict.fromkeys(names))
    for name in options:
        if name not in known:
            raise ConfigError(registry.unknown(f"{group}.options", name, known))
