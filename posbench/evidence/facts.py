"""Checks of claims without a loss to compare: equality, refusals, time, steps."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from posbench.bench.result import COMPILED, Result
from posbench.bench.statistics import median, median_interval
from posbench.errors import ConfigError
from posbench.evidence.effect import EVEN, TIMES, Effect, Levels, NotYet, over_seeds
from posbench.evidence.select import (
    Selection,
    Source,
    about,
    fits,
    named,
    paired,
    rows_of,
    select,
    standing,
)
from posbench.trainlog import reached


def identical(source: Source, one: Selection, other: Selection, levels: Levels = EVEN) -> Effect:
    """Share of documents and seeds whose losses are equal to the last bit."""
    sides = [select(source, selection) for selection in (one, other)]
    a, b = paired(sides)
    return Effect(
        float((a == b).mean()),
        n_seeds=a.shape[1],
        unit="share",
        n_docs=a.shape[0],
        note=f"largest difference {float(np.abs(a - b).max()):.3g} nats",
        **about(sides),
    )


def refused(source: Source, row: Selection, status: str, levels: Levels = EVEN) -> Effect:
    """Share of seeds in which the row was refused with this status."""
    rows, _ = rows_of(source, row)
    share = float((rows["status"] == status).mean())
    return Effect(share, n_seeds=len(rows), unit="share", tiers=tuple(rows["tier"].unique()))


def step_time(
    source: Source, file: str, slow: str, fast: str, mode: str = COMPILED, levels: Levels = EVEN
) -> Effect:
    """Time of a training step of the preset `slow` over that of `fast`, from `posbench bench`.

    The median of the ratios within a round; its interval follows from their order alone.
    """
    if not Path(file).is_file():
        raise NotYet(f"no {file}")
    result = Result.read(Path(file), "file")
    found = [result.get(f"train/{preset}/{mode}") for preset in (slow, fast)]
    samples = [one.samples for one in found if one is not None]
    if len(samples) < 2 or len(samples[0]) != len(samples[1]):
        raise NotYet(f"{file} has no steps of {slow} and {fast} in the same rounds ({mode})")
    quotients = [a / b for a, b in zip(*samples, strict=True)]
    low, high = math.nan, math.nan
    if len(quotients) > 1:
        low, high = (median_interval(quotients, level)[i] for i, level in enumerate(levels))
    return Effect(median(quotients), low, high, unit=TIMES, note=f"{len(quotients)} rounds")


def steps_until(
    source: Source,
    sooner: Selection,
    later: Selection | None = None,
    limit: float | None = None,
    levels: Levels = EVEN,
) -> Effect:
    """Steps of fine-tuning until the loss at the target is no more than the base run's crop to L.

    Those of `later`, or a limit, less those of `sooner`; one number a seed. The base run's loss is
    that of its crop on the same tokens (see posbench.extension). A run that does not get there
    counts with its last step, which leaves the effect open: below where it is one of `sooner`,
    above where it is one of `later`.
    """
    if (later is None) == (limit is None):
        raise ConfigError("claims: steps_until needs either `later` or `limit`")
    first = _reached(source, sooner)
    second = _reached(source, later) if later is not None else {}
    seeds = sorted(set(first) & set(second)) if later is not None else sorted(first)
    if not seeds:
        raise NotYet("no seed in common")
    ends = [second[seed][0] if second else float(limit or 0) for seed in seeds]
    differences = [end - first[seed][0] for end, seed in zip(ends, seeds, strict=True)]
    note = f"there after {_steps(first)} steps"
    if second:
        note += f"; {named(later or {})}: {_steps(second)}"
    mean, low, high, detectable = over_seeds(differences, levels)
    low = low if all(first[seed][1] for seed in seeds) else -math.inf
    high = high if all(second[seed][1] for seed in seeds if second) else math.inf
    every = [m for one in (sooner, later) if one for m in _manifests(source, one)]
    runs = {m["run_id"]: m for m in every if m["seed"] in seeds}
    names = [name for one in (sooner, later) if one for name in one["in"]]
    return Effect(
        mean,
        low,
        high,
        len(seeds),
        detectable,
        "steps",
        tiers=tuple(sorted({m["tier"] for m in runs.values()})),
        note=note,
        **standing(source, names, [(run, m["preset"]) for run, m in runs.items()]),
    )


def _steps(found: dict[int, tuple[float, bool]]) -> str:
    """The steps by seed."""
    return ", ".join(f"{n:g}{'' if there else ' (not there)'}" for n, there in found.values())


def _manifests(source: Source, selection: Selection) -> list[dict[str, Any]]:
    """Manifests of the fine-tunings of a selection."""
    found = [m for name in selection["in"] if source.runs(name) for m in source.manifests(name)]
    return [m for m in found if fits(m, selection) and "extension" in m]


def _reached(source: Source, selection: Selection) -> dict[int, tuple[float, bool]]:
    """Seed -> first logged step with the loss that is asked for, or the last one; whether it is."""
    found: dict[int, tuple[float, bool]] = {}
    chosen: dict[int, str] = {}
    logs = {name: source.log(name) for name in selection["in"] if source.runs(name)}
    for manifest in _manifests(source, selection):
        for log in logs.values():
            own = log[log["run_id"] == manifest["run_id"]].dropna(subset=["target_loss"])
            if len(own):
                step = reached(own.assign(aim=manifest["extension"]["aim"]))
                last = own["step"].max() if step is None else step
                seed, run_id = int(manifest["seed"]), str(manifest["run_id"])
                if chosen.setdefault(seed, run_id) != run_id:
                    raise ConfigError(
                        f"claims: {named(selection)}: {chosen[seed]} and {run_id} are both of "
                        f"seed {seed}; give an option of the run"
                    )
                found[seed] = float(last), step is not None
    if not found:
        raise NotYet("no runs")
    return dict(sorted(found.items()))
