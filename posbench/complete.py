"""Shell completion of runs, overrides and group=option, from file names, without torch.

bash splits words at '=', so it hands over `posenc`, `=`, `al` as three words and replaces the last;
zsh and fish hand over `posenc=al` and replace it whole.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

from posbench import registry, settings
from posbench.bench import ALL, HEEDED, PARTS
from posbench.show.keys import DTYPES, GROUPS, PARTIAL, Keys
from posbench.show.options import options

#: config groups of `posbench train`
TRAINED = ["posenc", "positions", "data", "model", "optimizer", "experiment", "rescale"]
#: fields of a run's settings that are not for typing
_MADE = ("base", "preset")


def train(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """Overrides of `posbench train`; after `init=`, runs."""
    typed, (key, equals, begun) = _typed(ctx), incomplete.partition("=")
    if key == "init" and equals:
        return [f"init={place}" for place in _run_folders() if place.startswith(begun)]
    if typed[-1:] == ["init"] or typed[-2:] == ["init", "="]:  # bash: `init=` is a word or two
        return [place for place in _run_folders() if place.startswith(incomplete)]
    return _overrides(TRAINED, _keys(settings.RunConfig), typed, incomplete)


def bench(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """What to measure, first of all, and overrides; several schemes with commas between them."""
    typed = _typed(ctx)
    begun, comma, last = incomplete.rpartition(",")
    if comma:
        here = begun.startswith("posenc=") or typed[-2:] == ["posenc", "="]
        known = _options(["posenc"], "posenc") if here else ()
        return [f"{begun},{o}" for o in known if o.startswith(last)]
    words = [] if typed else [w for w in (*PARTS, ALL) if w.startswith(incomplete)]
    return [*words, *_overrides(TRAINED, [*_keys(settings.RunConfig), *HEEDED], typed, incomplete)]


def eval_lengths(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """Runs and overrides of `posbench eval-lengths`."""
    keys = [*_keys(settings.SweepConfig), "rescale.factor"]
    return [*_overrides(["rescale"], keys, _typed(ctx), incomplete), *runs(ctx, args, incomplete)]


def show(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """A name, or group=name; then the keys that it takes."""
    typed = _typed(ctx)
    if not typed and "=" not in incomplete:
        names = {name for group in GROUPS for name in registry.options(group)}
        return sorted(n for n in [*names, *(f"{g}=" for g in GROUPS)] if n.startswith(incomplete))
    if not typed or (typed[0] in GROUPS and len(typed) < 3):
        return _overrides([*GROUPS], [], typed, incomplete)
    if typed[0] in GROUPS:  # bash: `rescale=none` is three words
        typed = ["".join(typed[:3]), *typed[3:]]
    values = {"dtype": DTYPES, "posenc": registry.options("posenc")}
    key, equals, begun = incomplete.partition("=")
    if equals:
        return [f"{key}={v}" for v in values.get(key, ()) if v.startswith(begun)]
    before = [word for word in typed[1:] if word != "="][-1:]
    if before and (typed[-1] == "=" or before[0] in values):  # bash: the value of a key
        return [v for v in values.get(before[0], ()) if v.startswith(incomplete)]
    group, _, name = typed[0].rpartition("=")
    group = group or next((g for g in GROUPS if name in registry.names(g)), GROUPS[0])
    keys = {*_keys(Keys), *options(group, name)}
    if group == "rescale":
        keys.update(options("posenc", PARTIAL))
    else:
        keys.remove("posenc")
    return [f"{k}=" for k in sorted(keys) if k.startswith(incomplete)]


def claims(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """Ids of the ledger."""
    file = registry.conf_root() / "evidence" / "claims.yaml"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    known = re.findall(r"^- id: (\S+)", text, re.MULTILINE)
    return [one for one in known if one.startswith(incomplete)]


def runs(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """Names below `runs`, and run folders."""
    if "=" in incomplete or _typed(ctx)[-1:] == ["="]:
        return []
    folder = Path("runs")
    names = [p.name for p in folder.glob("[!.]*") if p.is_dir()] if folder.is_dir() else []
    return [n for n in sorted([*names, *_run_folders()]) if n.startswith(incomplete)]


def _run_folders() -> list[str]:
    """Folders of runs below `runs`."""
    return sorted(str(p.parent) for p in Path("runs").glob("*/*/manifest.json"))


def _typed(ctx: Any) -> list[str]:
    """Words before the one to complete: typer hands over no `args`, only what it parsed."""
    given = (ctx.params.get(name) for name in ("overrides", "arguments", "where"))
    return [word for words in given for word in words or ()]


def _keys(schema: Any, prefix: str = "") -> list[str]:
    """Dotted names of the fields of a settings class."""
    keys = []
    for f in dataclasses.fields(schema):
        kind = f.default_factory
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            keys += _keys(kind, f"{prefix}{f.name}.")
        elif f.name not in _MADE:
            keys.append(prefix + f.name)
    return keys


def _overrides(groups: list[str], keys: list[str], args: list[str], incomplete: str) -> list[str]:
    """Completions of one word, in the form the shell wants (see the top of the file)."""
    if not incomplete and args and args[-1] in groups:  # bash, nothing typed after '='
        return list(_options(groups, args[-1]))
    if len(args) > 1 and args[-1] == "=":  # bash, part of the option typed
        return [o for o in _options(groups, args[-2]) if o.startswith(incomplete)]
    group, equals, typed = incomplete.partition("=")
    if equals:
        return [f"{group}={o}" for o in _options(groups, group) if o.startswith(typed)]
    return [f"{k}=" for k in sorted({*groups, *keys}) if k.startswith(incomplete)]


def _options(groups: list[str], group: str) -> tuple[str, ...]:
    return registry.options(group) if group in groups else ()
