"""Which subjects a command line or a test file means, and a run over them."""

from collections.abc import Iterator

from posbench import registry
from posbench.checks import base
from posbench.checks.subjects import SUBJECTS, subject
from posbench.errors import ConfigError
from posbench.show.ask import find


def every() -> list[tuple[str, str]]:
    """(group, name) of everything that is registered and has checks."""
    return [(group, name) for group in SUBJECTS for name in registry.names(group)]


def named(names: list[str]) -> list[tuple[str, str]]:
    """Those of a name in any group, or of `group=name` in one."""
    known, found = every(), []
    for given in names:
        group, _, name = given.rpartition("=")
        if group and group not in SUBJECTS:
            raise ConfigError(f"{given}: write names, or group=name with {', '.join(SUBJECTS)}")
        matching = [(g, n) for g, n in known if n == name and group in ("", g)]
        if not matching and any(name in registry.presets(g) for g in SUBJECTS):
            raise ConfigError(f"{given} is a preset of {find(name).name}; give that name")
        if not matching:
            options = [n for g, n in known if group in ("", g)]
            raise ConfigError(registry.unknown(group or "NAME", name, dict.fromkeys(options)))
        found += matching
    return list(dict.fromkeys(found))


def asked(names: list[str], everything: bool, plugins: list[str]) -> list[tuple[str, str]]:
    """What `posbench check` is asked for: names, else the plug-ins; ConfigError where nothing."""
    if everything:
        return every()
    if not names and not plugins:
        raise ConfigError("NAME is missing: name a scheme, rescaling or sampler, or give --all")
    if names:
        return named(names)
    found = [registry.load_plugin(file) for file in plugins]
    for group, name in found:
        if group not in SUBJECTS:
            raise ConfigError(f"{group}={name}: there are no checks for {group}")
    return found


def results(pairs: list[tuple[str, str]]) -> Iterator[base.Result]:
    """Every check of these, one after the other."""
    for group, name in pairs:
        for one in subject(group, name).variants:
            for check in base.applicable(one):
                yield base.run(one, check)
