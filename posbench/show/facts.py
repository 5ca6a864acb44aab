"""What a scheme, rescaling or sampler says about itself."""

import dataclasses
import json
from typing import Any

import torch
from torch import Tensor

from posbench.encodings.base import HOOKS, PositionalEncoding
from posbench.positions.base import PositionSampler
from posbench.rescale.base import Rescale
from posbench.show.ask import fields
from posbench.show.subject import Subject
from posbench.show.tables import finite, tables_of

#: class attributes that are no properties
_ELSEWHERE = (
    *("group", "name", "family", "paper", "hooks", "label", "factor", "options"),
    *("every_axis", "on_a_grid"),
)


def described(found: Subject) -> dict[str, Any]:
    """The object that `posbench show --json` prints."""
    cls = found.named.cls
    return {
        "name": found.named.label,
        "family": cls.family,
        "paper": cls.paper,
        "hooks": hooks(found),
        "properties": properties(found),
        "config": config(found),
        "tables": tables_of(found),
    }


def as_json(facts: dict[str, Any]) -> str:
    """One JSON object, with a line for every entry and every table."""
    tables = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in facts["tables"].items())
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in facts.items() if k != "tables"]
    return ",\n".join([*lines, f'  "tables": {{\n{tables}\n  }}']).join(("{\n", "\n}"))


def hooks(found: Subject) -> list[str]:
    """The hooks that are defined, in the order in which they act."""
    return [h for h in HOOKS if found.encoding and h in found.encoding.hooks]


def properties(found: Subject) -> dict[str, Any]:
    """What is declared, what has parameters, and what follows the training length."""
    base, owner = next(
        (base, x)
        for base, x in (
            (Rescale, found.rule),
            (PositionSampler, found.sampler),
            (PositionalEncoding, found.encoding),
        )
        if x is not None
    )
    names = [k for k in base.__annotations__ if k not in _ELSEWHERE]
    names += [k for k, v in vars(base).items() if isinstance(v, property) and k not in _ELSEWHERE]
    values = {k: getattr(owner, k) for k in names}
    declared = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    cls, tested = found.named.cls, found.encoding
    if tested is None:
        return declared
    if found.rule is not None:
        declared |= {
            "scale": finite(found.rule.scale(*found.lengths)),
            "max_length": found.max_length,
        }
    parameters = [
        {"name": name, "shape": list(p.shape), "initial": initial(p)}
        for name, p in tested.named_parameters()
    ]
    if parameters:
        declared["learned_tables"] = f"initial values of seed {found.frame.seed}"
    return declared | {
        "parameters": parameters,
        "tied": [dataclasses.asdict(t) for t in tested.tied()],
        "special_cases": [{"case": r.case, "equals": r.equals} for r in cls.reductions()],
    }


def initial(parameter: Tensor) -> str:
    """The initial value of a parameter in words."""
    values = parameter.detach().to(torch.float64)
    low, high = values.min().item(), values.max().item()
    if low == high:
        return f"all {low:g}"
    return f"mean {values.mean().item():.2g}, std {values.std().item():.3g}"


def config(found: Subject) -> dict[str, Any]:
    """Every option and key in use: its own, those of the scheme below a rescaling, the rest."""
    options = {k: getattr(found.config, k) for k in fields(found.config)}
    if found.rule is not None:
        options |= {k: finite(v) for k, v in found.rule.used(*found.lengths).items()}
    if found.rule is not None and found.trained is not None:
        below = found.trained.config
        options |= {"posenc": below.name}
        options |= {k: getattr(below, k) for k in fields(below) if k not in options}
    general = found.frame.of(found.sampler is not None)
    if found.encoding is not None:
        general = general | {"distances": found.distances, "positions": found.positions}
    return options | {k: v for k, v in general.items() if k not in options}
