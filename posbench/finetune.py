"""Going on from a finished run: `posbench train init=RUN`.

What is not overridden is the base run's, but for what does not change a result, such as the
device: it comes into the composed config as one option of
the config group `base_run`, made here. Weights, data and tokenizer are the base run's; the
optimizer, the schedule and the count of steps begin anew, the batches go on where it stopped.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from posbench import registry, runs, settings
from posbench.errors import ConfigError, DataError, PosbenchError
from posbench.runs import Run
from posbench.settings import RunConfig

#: the config group that holds a base run's settings
GROUP = "base_run"
#: groups whose options mean something only together: one that is given replaces the base run's
_WHOLE = ("posenc", "positions", "data", "rescale")


def find(init: str, runs_root: str) -> Run:
    """The finished run that `init` names: its folder, or `<name>/<run id>` below runs_root."""
    if not init:
        raise ConfigError("init is empty; give the folder of a finished run")
    place = Path(init)
    if not place.exists():
        place = Path(runs_root) / init
    if not place.exists():
        raise ConfigError(
            f"init={init}: no such run folder, and none of that name below runs_root={runs_root}"
        )
    try:
        run = Run.open(place)
        run.require_finished()
        _ = run.weights, run.config
    except PosbenchError as error:
        raise ConfigError(f"init={init}: {str(error).removeprefix(f'{place}: ')}") from None
    return run


def inherited(run: Run, given: Iterable[str]) -> dict[str, Any]:
    """A Hydra config of what a run leaves to those that go on from it.

    `given` are the keys that are overridden.
    """
    from posbench import model

    config, before = run.config, run.config.base
    left = settings.changed(replace(config, base=None))
    left["data"] = run.manifest["config"]["data"]
    left.get("train", {}).pop("target", None)
    kept = {group: left[group] for group in _WHOLE if group in left and group not in given}
    # `model=small` or `optimizer=muon` is a file of settings, which those of the run would cover
    left = {key: value for key, value in left.items() if key not in (*_WHOLE, *given)}
    trained = model.build_sampler(config).trained
    base = settings.BaseRun(
        weights_sha256=run.manifest["weights_sha256"],
        train_length=config.first_length,
        span=before.span if before else trained,
        steps=config.steps_before + config.train.steps,
        run_id=run.manifest["run_id"],
        preset=before.preset if before else config.preset,
    )
    chosen: list[Any] = [{f"override /{group}": own["name"]} for group, own in kept.items()]
    return {
        "defaults": ["_self_", *chosen],
        **left,
        **kept,
        "name": config.name,
        "init": str(run.path),
        "base": asdict(base),
    }


def base_of(config: RunConfig) -> Run:
    """The base run of a fine-tuning; ConfigError unless it is still what it was."""
    assert config.base is not None and config.init is not None
    run = find(config.init, config.runs_root)
    if run.manifest["weights_sha256"] != config.base.weights_sha256:
        raise ConfigError(f"init={config.init}: its weights have changed since this run began")
    return run


def typed(overrides: Iterable[str], config: RunConfig) -> list[str]:
    """Overrides of a job with `init=RUN` as it was typed."""
    return [f"init={config.init}" if o.startswith(f"{GROUP}=") else o for o in overrides]


def check_options(config: RunConfig) -> None:
    """Refuse what only a fine-tuning has, in a run that begins from nothing."""
    for option, value in (
        ("rescale", getattr(config.rescale, "name", None)),
        ("train.target", config.train.target),
    ):
        if config.base is None and value is not None:
            raise ConfigError(f"{option}={value}: a run is trained with it only after init=RUN")


def load_dataset(config: RunConfig, base: Run) -> Any:
    """The base run's data and tokenizer; ConfigError where other data were asked for."""
    own, asked = settings.changed(base.config.data), settings.changed(config.data)
    for key in dict.fromkeys([*asked, *own]):
        if asked.get(key) != own.get(key):
            option = "data" if key == "name" else f"data.{key}"
            raise ConfigError(
                f"{option}={getattr(config.data, key, None)}: {base.path} was trained on "
                f"{option}={getattr(base.config.data, key, None)}, and init goes on with its data"
            )
    return runs.load_dataset(base, getattr(config.data, "path", None))


def settle(config: RunConfig, base: Run, data: Any) -> None:
    """Write out what follows from the base run: a factor `auto`, and what tables call the run.

    ConfigError where the run cannot go on so: see `_check`.
    """
    from posbench import model

    if config.rescale is not None:
        rule = registry.get("rescale", config.rescale.name)(config.rescale)
        if rule.acts_on == "nothing":
            config.rescale = None
        else:
            _settle_rule(config, rule, model.build_sampler(config).target)
    config.preset = _label(config, base)
    _check(config, base, data.tokenizer.vocab_size)
    _check_target(config, data)


def _settle_rule(config: RunConfig, rule: Any, target: int) -> None:
    """Write the number in for a factor `auto`."""
    length, name = config.first_length, rule.name
    if len(config.shape) > 1:
        raise ConfigError(f"rescale={name}: trained under on texts only, not data.shape")
    if getattr(config.rescale, "factor", None) == "auto":
        scale = rule.scale(length, target)
        if scale == 1:
            raise ConfigError(
                f"rescale.factor=auto: there is nothing to rescale from L = {length} to {target} "
                "tokens; give a number, a longer train.seq_len or positions.target"
            )
        config.rescale = replace(config.rescale, factor=int(scale) if scale % 1 == 0 else scale)


def _check(config: RunConfig, base: Run, vocab_size: int) -> None:
    """ConfigError unless the base run's weights fit, at every length up to the target."""
    from posbench import model

    new, old = (model.build(c, vocab_size) for c in (config, base.config))
    shapes = [{k: tuple(v.shape) for k, v in m.state_dict().items()} for m in (new, old)]
    differing = [k for k in {**shapes[0], **shapes[1]} if shapes[0].get(k) != shapes[1].get(k)]
    if config.model.tied != base.config.model.tied:
        differing.append("head.weight")
    if differing:
        raise ConfigError(
            f"init={config.init}: its weights do not fit these settings ({differing[0]} is "
            f"{shapes[1].get(differing[0], 'missing')} there and "
            f"{shapes[0].get(differing[0], 'missing')} here)"
        )
    if config.rescale is not None and _changes(config, new):
        raise ConfigError(
            f"rescale={config.rescale.name}: it is another encoding at every length, and a run is "
            "trained under one; use a rescaling with a factor, and give it a number"
        )
    sampler, needed = new.sampler, max(config.train.seq_len, target(config))
    most = sampler.span(needed)
    if not new.posenc.on_a_grid and not new.posenc.defined_for((most,)):
        raise ConfigError(
            f"train.seq_len={config.train.seq_len}: posenc={new.posenc.label} of {config.init} has "
            f"{new.posenc.max_length} positions; positions={sampler.name} up to {needed} tokens "
            f"needs {most}"
        )
    if sampler.max_length is not None and needed > sampler.max_length:
        raise ConfigError(
            f"train.target={needed}: positions={sampler.name} has {sampler.max_length} positions"
        )


def _changes(config: RunConfig, model: Any) -> bool:
    """Whether a rescaling gives another encoding past the target than at it."""
    from posbench.evaluate.signature import signature
    from posbench.model import build_posenc

    rule = registry.get("rescale", config.rescale.name)(config.rescale)
    plain = build_posenc(replace(config, rescale=None))
    length, target = config.first_length, model.sampler.target
    found = [signature(rule.applied(plain, length, n)) for n in (target, 2 * target)]
    if None in found:
        return bool(rule.depends_on_total_length)
    return found[0] != found[1]


def target(config: RunConfig) -> int:
    """The length whose loss is logged."""
    from posbench import model

    return config.train.target or model.build_sampler(config).target


def _check_target(config: RunConfig, data: Any) -> None:
    """ConfigError unless validation documents hold the length whose loss is logged."""
    if len(config.shape) > 1:
        if config.train.target:
            raise ConfigError(f"train.target={config.train.target}: of texts only")
        return
    length = target(config)
    try:
        data.validation_windows((length,), 1)
    except (DataError, ConfigError):
        raise ConfigError(
            f"train.target={length}: no validation document of data={config.data.name} holds "
            f"{length + 1} tokens; give a smaller one"
        ) from None


def _label(config: RunConfig, base: Run) -> str:
    """`rope+pi@8`, `rope+pose`, `rope+tuned`: the first run's preset, and what is not as there."""
    from posbench import model

    assert config.base is not None
    first = config.base.preset
    own, asked = settings.changed(base.config.posenc), settings.changed(config.posenc)
    if own["name"] != asked["name"]:
        config.base.preset += f"+{config.preset}"
    else:
        different = [k for k in {**own, **asked} if own.get(k) != asked.get(k)]
        config.base.preset += "".join(f"+{k}{_word(getattr(config.posenc, k))}" for k in different)
    # a model whose weights fit and which is another function: other heads, a window
    known, now = asdict(base.config.model), asdict(config.model)
    words = [f"{k}={_word(now[k])}" for k in known if known[k] != now[k]]
    if config.rescale is not None:
        rule = registry.get("rescale", config.rescale.name)(config.rescale)
        words.append(".".join([rule.label, *rule.options]))
    sampler, length = model.build_sampler(config), config.train.seq_len
    if not sampler.consecutive or sampler.span(length) > length:
        options = settings.changed(config.positions)
        name = options.pop("name")
        words.append(".".join([name, *(f"{k}={_word(v)}" for k, v in options.items())]))
    words = [word.replace("=", "").replace("#", "") for word in words]
    if not words and config.base.preset == first:
        words = ["tuned"]
    return "+".join([config.base.preset, *words])


def _word(value: Any) -> str:
    """An option's value as part of a folder's name."""
    return settings.digest(value, 6) if isinstance(value, list | dict) else str(value)


def names(manifest: dict[str, Any]) -> tuple[str, str]:
    """What tables call the run that a fine-tuning goes on from, and what is not as there.

    `rope` and `+pi@8`; of a run that began from nothing its preset and nothing.
    """
    preset = str(manifest["preset"])
    if "base" not in manifest:
        return preset, ""
    base = re.sub(r"-L\d+-s\d+-[0-9a-f]+$", "", manifest["base"]["run_id"])
    return base, preset.removeprefix(base) if preset.startswith(base) else f"+{preset}"
