"""The only file that runs Hydra: composing, checking and launching.

Hence one long file. All is composed and checked before Hydra's `run` or `multirun` is called.
Those two sit on an internal class, hence the pin `hydra-core>=1.3.2,<1.4` and tests of both modes.
"""

import dataclasses
import importlib.util
import itertools
import re
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose, initialize_config_module
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from posbench import finetune, jobs, machine, registry, settings, threads
from posbench.errors import ConfigError
from posbench.overrides import items, word, written
from posbench.parts import plainly

TRAIN, EVAL = "train", "eval_lengths"
#: overrides of eval-lengths that may be lists: one row for every combination
_LISTS = ("rescale", "eval.protocol")
#: schemas in Hydra's store, by group and name
_stored: dict[tuple[str | None, str], type] = {}


def _store() -> None:
    """Fill Hydra's store: the root schemas and one option per registered class."""
    schemas: dict[tuple[str | None, str], type] = {
        (None, "train_schema"): settings.RunConfig,
        (None, "eval_schema"): settings.SweepConfig,
    }
    for package in registry.PACKAGES:
        for name in registry.names(package):
            schemas[package, name] = registry.get(package, name).Config
    for (group, name), schema in schemas.items():
        if _stored.get((group, name)) is schema:
            continue
        try:
            ConfigStore.instance().store(group=group, name=name, node=OmegaConf.structured(schema))
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"{group}={name}: its Config cannot be used ({reason})") from None
        _stored[group, name] = schema


@contextmanager
def _hydra() -> Iterator[Any]:
    """Hydra, initialised on the configs that ship with the package."""
    _store()
    GlobalHydra.instance().clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with initialize_config_module("posbench.conf", version_base="1.3", job_name="posbench"):
            yield GlobalHydra.instance().hydra


def _parse(overrides: Sequence[str], hydra: Any = None) -> list[Override]:
    """Parsed overrides; the groups' values are checked against what is known."""
    loader = hydra.config_loader if hydra else None
    parser = OverridesParser.create(config_loader=loader)
    parsed = []
    for text in overrides:
        try:
            parsed += parser.parse_overrides([text])
        except HydraException as error:
            reason = str(error).splitlines()[0]
            hint = _option(text) or _quoted(text)
            raise ConfigError(f"{text}: not a valid override ({hint or reason})") from None
    for override in parsed:
        first, *rest = str(override.key_or_group).split(".")
        if not first or (first == "hydra" and not rest) or any(part.isdigit() for part in rest):
            raise ConfigError(f"{override.input_line}: not an option; write OPTION=VALUE")
        if override.is_delete():
            raise ConfigError(
                f"{override.input_line}: {first} cannot be taken away; write OPTION=VALUE"
            )
        _check_group(override)
    return parsed


def _option(text: str) -> str:
    """How to write the name of a scheme or the like; empty for other words."""
    groups = [group for group in sorted(_groups()) if text in registry.options(group)]
    return " or ".join(f"write {group}={text}" for group in groups)


def _quoted(text: str) -> str:
    """How to write a value that is no plain word; empty where something else is wrong."""
    key, equals, value = text.partition("=")
    if not equals or not value or value[0] in "'\"[{" or "'" in value:
        return ""
    quoted = f"{key}='{value}'"
    try:
        OverridesParser.create().parse_overrides([quoted])
    except HydraException:
        return ""
    return f'quote what is no plain word: "{quoted}"'


def _groups() -> set[str]:
    return {*registry.PACKAGES, "model", "optimizer", "experiment"}


def _check_group(override: Override) -> None:
    """ConfigError for an option that a group does not have, listing those it has."""
    group = override.key_or_group
    if group not in _groups():
        return
    if override.value() is None:
        if group != "experiment":
            raise ConfigError(f"{override.input_line}: {group} must be given")
        return
    values: Any
    if override.is_sweep_override():
        values = list(override.sweep_string_iterator())
    else:
        value = override.value()
        if isinstance(value, list) and group != "rescale":
            raise ConfigError(f"{override.input_line}: one option only; several need commas and -m")
        values = value if isinstance(value, list) else [value]
    for value in values:
        text = value.text if isinstance(value, QuotedString) else value
        if text is not None and str(text) not in registry.options(group):
            raise ConfigError(registry.unknown(group, text, registry.options(group)))


def _compose(name: str, overrides: Sequence[str]) -> DictConfig:
    """One config with its `hydra` node; one clear line where it cannot be composed."""
    try:
        return compose(config_name=name, overrides=list(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_reason(error)) from None
    except YAMLError as error:
        raise ConfigError(" ".join(str(error).split())) from None


def _reason(error: Exception) -> str:
    """The useful half of a composition error."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    key = getattr(cause, "full_key", None)
    lines = str(cause).splitlines()
    first = lines[0]
    if any(line.startswith("Available options") for line in lines):
        known = [line.strip() for line in lines if line.startswith("\t")]
        return f"{first.removeprefix('In ').rstrip('.')}; known: {', '.join(known)}"
    if not key:
        told = re.search(r"^In '(.+)': .*\n(.*)(?:\n *full_key: (.*))?", str(error))
        if not told or not told[3]:
            return str(error).splitlines()[0]
        place, why, key = told.groups()  # of a file
        return f"{place}: {key} is unknown" if "not in" in why else f"{place}: {key}: {why}"
    if "not in" in first:
        return _unknown_key(str(key), getattr(cause, "parent_node", None))
    return f"{key}: {plainly(cause)}"


def _unknown_key(key: str, parent: Any) -> str:
    """An unknown key: what its parent knows, or the option of the group that has it."""
    place, _, leaf = key.rpartition(".")
    if place in registry.PACKAGES:
        having = [
            name
            for name in registry.names(place)
            if any(f.name == leaf for f in dataclasses.fields(registry.get(place, name).Config))
        ]
        if having:
            return f"{key} is an option of {place}={' and '.join(having)} only"
    names = sorted(map(str, parent)) if isinstance(parent, DictConfig) else []
    known = [k for k in names if k not in ("hydra", "name" if place else "")]
    text = f"{key} is unknown"
    return f"{text}; known{f' in {place}' if place else ''}: {', '.join(known)}" if known else text


def _task(cfg: DictConfig) -> DictConfig:
    """A composed config without its `hydra` node."""
    with open_dict(cfg):
        return OmegaConf.masked_copy(cfg, [str(k) for k in cfg if k != "hydra"])


def train_configs(overrides: Sequence[str], multirun: bool) -> list[tuple[DictConfig, str]]:
    """The composed config and the preset of every job that `posbench train` would run."""
    with _hydra() as hydra:
        return _train_configs(hydra, overrides, multirun)


def split(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of every job of a sweep that begins from nothing; nothing is composed."""
    with _hydra() as hydra:
        return _expand(_parse(opened(overrides, hydra), hydra))


def prepared(overrides: Sequence[str]) -> jobs.Prepared:
    """One job, composed and checked, not started."""
    with _hydra() as hydra:
        ((cfg, preset),) = _train_configs(hydra, overrides, False)
        return jobs.prepare(cfg, preset)


def _train_configs(
    hydra: Any, overrides: Sequence[str], multirun: bool
) -> list[tuple[DictConfig, str]]:
    parsed = _parse(overrides, hydra)
    _check_train_keys(parsed)
    if not multirun:
        for override in parsed:
            if override.is_sweep_override():
                raise ConfigError(f"{override.input_line}: several values need -m (one run each)")
            if override.key_or_group in ("hydra/launcher", "hydra/sweeper"):
                raise ConfigError(
                    f"{override.input_line}: a launcher needs -m; add it or leave it out"
                )
        expanded = [opened(overrides, hydra)]
    else:
        expanded = _expand(_parse(opened(overrides, hydra), hydra))
    found = []
    for one in expanded:
        cfg = _compose(TRAIN, one)
        found.append((_task(cfg), str(cfg.hydra.runtime.choices["posenc"])))
    return found


def _check_train_keys(parsed: list[Override]) -> None:
    """Refuse what is no option of training, or of a run that begins from nothing."""
    from_run = any(override.key_or_group == "init" for override in parsed)
    for override in parsed:
        group = override.key_or_group.split(".")[0]
        if group == "eval" or (group == "rescale" and not from_run):
            more = "; in training it needs init=RUN" if group == "rescale" else ""
            raise ConfigError(f"{override.input_line}: an option of posbench eval-lengths{more}")
        if group in ("base", finetune.GROUP):
            raise ConfigError(f"{override.input_line}: set by init=RUN")
        if override.key_or_group == "rescale" and isinstance(override.value(), list):
            raise ConfigError(f"{override.input_line}: one option only; several need commas and -m")


def _expand(parsed: list[Override]) -> list[list[str]]:
    """The overrides of every job of a sweep, as Hydra's sweeper will make them."""
    for override in parsed:
        if override.is_sweep_override() and not list(override.sweep_string_iterator()):
            raise ConfigError(f"{override.input_line}: no option matches")
    try:
        return BasicSweeper.split_arguments(parsed, None)[0]
    except HydraException as error:
        raise ConfigError(str(error).splitlines()[0]) from None


def train(
    overrides: Sequence[str],
    multirun: bool,
    prepared: Callable[[list[jobs.Prepared]], None] = lambda ready: None,
    side_by_side: str = "1",
) -> list[jobs.Outcome]:
    """Check every job, then run them through Hydra's launcher; `prepared` sees them in between.

    `side_by_side` is how many run at a time, a number or `auto`.
    """
    with _hydra() as hydra:
        configs = _train_configs(hydra, overrides, multirun)
        ready = [jobs.prepare(cfg, preset) for cfg, preset in configs]
        prepared(ready)
        overrides = [*overrides, *_sharing(side_by_side, ready, overrides)]
        composed = opened(overrides, hydra)
        arguments = {
            "config_name": TRAIN,
            "task_function": jobs.train_job,
            "overrides": _as_sweeps(composed, hydra) if multirun else composed,
            "with_log_configuration": False,
        }
        if not multirun:
            return [hydra.run(**arguments).return_value]
        returned = hydra.multirun(**arguments)
        return [job.return_value for batch in returned for job in batch]


def _as_sweeps(overrides: list[str], hydra: Any) -> list[str]:
    """Options of a group that is swept, as sweeps of one value.

    Hydra composes once without the sweeps, and would not know the options then.
    """
    parsed = _parse(overrides, hydra)
    swept = {o.key_or_group for o in parsed if o.is_sweep_override()}
    swept |= set(registry.PACKAGES) if finetune.GROUP in swept else set()
    found = []
    for text, override in zip(overrides, parsed, strict=True):
        group, dot, _ = override.key_or_group.partition(".")
        key, _, value = text.partition("=")
        single = key == override.key_or_group and not override.is_sweep_override()
        late = bool(dot) and group in swept and single
        found.append(f"{key}=choice({value})" if late else text)
    return found


def _sharing(side_by_side: str, ready: list[jobs.Prepared], overrides: Sequence[str]) -> list[str]:
    """Overrides that have jobs run at the same time, each with its share of the cores."""
    if side_by_side == "1":
        return []
    for override in _parse(overrides):
        if override.key_or_group.startswith(("hydra/launcher", "hydra.launcher")):
            raise ConfigError(f"--jobs={side_by_side} and {override.input_line}: give one of them")
    if side_by_side == "auto":
        largest = max(ready, key=lambda one: one.config.model.n_layers * one.config.model.d_model)
        vocabulary = largest.data.tokenizer.vocab_size
        choice = threads.side_by_side(largest.config, vocabulary, len(ready))
        count, each = choice.jobs, choice.threads
    else:
        count = min(int(side_by_side), len(ready))
        each = max(1, machine.cores() // count)
    own = {one.config.train.threads for one in ready} - {"auto"}
    shared = [] if own else [f"train.threads={each}"]
    if count == 1:
        return shared
    plugins = importlib.util.find_spec("hydra_plugins")
    if plugins is None or not importlib.util.find_spec("hydra_plugins.hydra_joblib_launcher"):
        raise ConfigError(
            "--jobs needs hydra-joblib-launcher: pip install 'posbench-harness[launch]', or leave "
            "it out"
        )
    return ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={count}", *shared]


def sweeps(overrides: Sequence[str]) -> list[settings.SweepConfig]:
    """Settings of every combination of rescaling and protocol that the overrides ask for."""
    with _hydra():
        found = [jobs.sweep_config(cfg) for cfg in _sweep_configs(overrides)]
    return list({settings.digest(settings.changed(s)): s for s in reversed(found)}.values())[::-1]


def sweep_configs(overrides: Sequence[str]) -> list[DictConfig]:
    """The composed config of every combination, for `posbench config eval-lengths`."""
    with _hydra():
        return _sweep_configs(overrides)


def _sweep_configs(overrides: Sequence[str]) -> list[DictConfig]:
    """Lists are composed once per element: a Hydra group given a list keeps its last."""
    given: dict[str, Any] = {"rescale": "none"}
    rest = []
    for override in _parse(overrides):
        key = override.key_or_group
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: write a list, {key}=[...]")
        if key.split(".")[0] in ("train", "model", "posenc", "positions", "optimizer", "seed"):
            raise ConfigError(f"{override.input_line}: fixed when the run was trained")
        if key == "eval.lengths" and isinstance(override.value(), int):
            rest.append(f"{key}=[{override.value()}]")
            continue
        if key in _LISTS or key.startswith("rescale."):
            if override.value() == []:
                raise ConfigError(f"{override.input_line}: the list is empty")
            given[key] = override.value()
        else:
            rest.append(override.input_line or "")
    rules = [str(word(item)) for item in items(given.pop("rescale"))]
    _check_rule_options(rules, given)
    found: dict[str, DictConfig] = {}
    for rule in rules:
        own = {k: v for k, v in given.items() if not k.startswith("rescale.") or _has(rule, k)}
        rows = [items(value, _is_list(rule, key)) for key, value in own.items()]
        for values in itertools.product(*rows):
            chosen = [o for k, v in zip(own, values, strict=True) for o in written(k, v)]
            cfg = _task(_compose(EVAL, [*rest, f"rescale={rule}", *chosen]))
            found.setdefault(OmegaConf.to_yaml(cfg), cfg)
    return list(found.values())


def _is_list(rule: str, key: str) -> bool:
    """Whether an option holds a list; `rescale.options.PART.FIELD` is what PART has as FIELD."""
    group, *path = key.split(".")
    if group != "rescale":
        return False
    owner, field = (path[1], path[2]) if len(path) == 3 else (rule, path[0])
    kind = typing.get_type_hints(registry.get("rescale", owner).Config).get(field)
    return list in [typing.get_origin(k) for k in (kind, *typing.get_args(kind))]


def opened(overrides: Sequence[str], hydra: Any) -> list[str]:
    """Overrides as Hydra wants them: open keys of `posenc.options`, and no glob of schemes."""
    parsed = _parse(overrides, hydra)
    found = []
    for text, override in zip(overrides, parsed, strict=True):
        key = override.key_or_group
        if key == "posenc" and override.value_type == ValueType.GLOB_CHOICE_SWEEP:
            found.append(_globbed(override, [o for o in parsed if o is not override]))
        elif key == "init" and override.value() is not None:
            found.append(_from_runs(override, parsed))
        elif not key.startswith("posenc.options"):
            found.append(text)
        elif not override.is_sweep_override() and isinstance(override.value(), dict):
            found += written(key, override.value())
        else:
            found.append(f"++{text.lstrip('+')}")
    return found


def _from_runs(init: Override, parsed: list[Override]) -> str:
    """The option of `base_run` that stands for `init=RUN`, with the run's settings, in the store.

    Several with a comma between them for a sweep.
    """
    given = [o.key_or_group for o in parsed]
    roots = [o.value() for o in parsed if o.key_or_group == "runs_root"]
    swept = init.is_sweep_override()
    values = list(init.sweep_string_iterator()) if swept else [str(word(init.value()))]
    options = []
    for value in values:
        run = finetune.find(value.strip("'\""), str(word(roots[-1])) if roots else "runs")
        node = finetune.inherited(run, given)
        options.append(f"run_{settings.digest(node)}")  # a word, whatever the digits
        ConfigStore.instance().store(
            group=finetune.GROUP, name=options[-1], node=node, package="_global_"
        )
    return f"{finetune.GROUP}={','.join(options)}"


def _globbed(schemes: Override, others: list[Override]) -> str:
    """A glob of schemes, written out: those that take positions of the data's number of axes.

    As it is where several corpora are swept.
    """
    if any(o.is_sweep_override() and o.key_or_group in ("data", "experiment") for o in others):
        return str(schemes.input_line)
    data = _compose(TRAIN, _expand(others)[0]).data
    axes = len(data.get("shape", [1]))

    def fits(name: str) -> bool:
        known = name in registry.names("posenc")
        return not known or bool({1, axes} & set(registry.get("posenc", name).axes))

    names = [str(name) for name in schemes.sweep_string_iterator()]
    fitting = [name for name in names if fits(name)]
    return f"posenc={','.join(fitting)}" if fitting else str(schemes.input_line)


def _has(rule: str, key: str) -> bool:
    """Whether a rescaling has the option `rescale.<field>`."""
    field = key.split(".")[1]
    return any(f.name == field for f in dataclasses.fields(registry.get("rescale", rule).Config))


def _check_rule_options(rules: list[str], given: dict[str, Any]) -> None:
    """Refuse an option that none of the chosen rescalings takes."""
    for key in given:
        if key.startswith("rescale.") and not any(_has(rule, key) for rule in rules):
            having = [r for r in registry.names("rescale") if _has(r, key)]
            where = f"it is an option of {', '.join(having)}" if having else "no rescaling has it"
            raise ConfigError(f"{key}: rescale={','.join(rules)} does not take it; {where}")
