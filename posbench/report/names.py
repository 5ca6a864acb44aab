"""What runs are called in tables and figures, and what tells those of one name apart."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posbench.report.style import Style, scheme_style
from posbench.settings import differing, in_words

#: letters of a run's name that a table has room for, and the star of a stamp
SHORT = 20


@dataclass(frozen=True)
class Variant:
    """One of several configurations of a name."""

    #: the name that it shares with others
    name: str
    #: its settings that others of the name lack, but for the usual ones
    words: str
    #: whether its own name has a hash in the place of these
    hidden: bool
    #: whether it has the fewest, the first of those
    plainest: bool

    @property
    def rank(self) -> int:
        """The number of its settings."""
        return len(self.words.split())


def run_name(run: Mapping[str, Any]) -> str:
    """What a run is called from its row: preset and sampler; a fine-tuning is `rope +pi@8`."""
    preset, base = run["preset"], str(run.get("base", ""))
    sampler = run.get("positions", "")
    said = sampler in ("", "standard", "none") or f"+{sampler}" in preset
    method = preset.removeprefix(base)
    name = f"{base} {method}" if base and method and method != preset else preset
    return name if said else f"{name}+{sampler}"


def names_of(runs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], dict[str, Variant]]:
    """run id -> a name that no other has: `run_name`, then seed or settings.

    And the variants of the names that settings tell apart. A run has `run_id`, `seed` and what
    `run_name` reads; `model` and `settings` as in `Collected`, where they are known.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        groups.setdefault(run_name(run), []).append(run)
    names, variants = dict[str, str](), dict[str, Variant]()
    for name, same in groups.items():
        ids = [run["run_id"] for run in same]
        seeds = {str(run["seed"]) for run in same}
        if len(same) == 1:
            own = [name]
        elif len({run.get("model", "") for run in same}) == 1 and len(seeds) == len(same):
            own = [f"{name} s{run['seed']}" for run in same]
        else:
            settings = _uncommon([json.loads(run.get("settings") or "{}") for run in same])
            own = _variants(name, settings, ids)
            plainest = min(range(len(own)), key=lambda i: len(settings[i]))
            variants |= {
                one: Variant(name, in_words(these), _hash(run_id) in one, i == plainest)
                for i, (one, these, run_id) in enumerate(zip(own, settings, ids, strict=True))
            }
        names |= dict(zip(ids, own, strict=True))
    return names, variants


def lines_of(variants: Mapping[str, Variant]) -> list[str]:
    """`name: settings` for every name that has a hash in their place."""
    return [f"{name}: {one.words}" for name, one in variants.items() if one.hidden]


def style_of(preset: str, name: str, variants: Mapping[str, Variant]) -> Style:
    """The look of a trained run: its scheme's, of variants that of the plainest alone."""
    one = variants.get(name)
    return scheme_style(preset if one is None or one.plainest else f"{one.name} {one.words}")


def _hash(run_id: str) -> str:
    """What a run is called by where nothing else tells it apart."""
    return run_id.rsplit("-", 1)[-1][:6]


def _variants(name: str, settings: list[dict[str, Any]], ids: list[str]) -> list[str]:
    """A name for each: `rope qk_norm=true`, `rope muon` where settings are few, else a hash."""

    def short(key: str, value: Any) -> str:
        group, _, field = key.rpartition(".")
        return in_words({field: value}) if group else str(value)

    own = [" ".join([name, *(short(*item) for item in one.items())]) for one in settings]
    return [
        one if own.count(one) == 1 and (one == name or len(one) < SHORT) else f"{name} {_hash(run)}"
        for one, run in zip(own, ids, strict=True)
    ]


def _uncommon(every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each what differs, less the values that more than half have, of what is said of all."""
    settings = differing(every)
    counts = Counter((key, str(value)) for one in settings for key, value in one.items())
    said = Counter(key for one in settings for key in one)

    def usual(key: str, value: Any) -> bool:
        return said[key] == len(settings) and 2 * counts[key, str(value)] > len(settings)

    return [{k: v for k, v in one.items() if not usual(k, v)} for one in settings]
