"""Pictures and clips for the tests: corpora, their files, and skips where an extra is missing."""

import functools
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from posbench import registry
from posbench.data.corpora.grid import GridCorpus, Sides

SPECS = {name: importlib.util.find_spec(name) for name in ("skimage", "mlxtend", "skvideo", "av")}
vision = pytest.mark.skipif(
    not (SPECS["skimage"] and SPECS["mlxtend"]), reason="needs the extra [vision]"
)
video = pytest.mark.skipif(not (SPECS["skvideo"] and SPECS["av"]), reason="needs the extra [video]")


def corpus(name: str, **fields: Any) -> GridCorpus:
    cls = registry.get("data", name)
    made: GridCorpus = cls(cls.Config(**fields))
    return made


@functools.cache
def grey(name: str) -> Sides:
    """The samples with all 256 levels, as they are read."""
    return corpus(name, levels=256).sides()


def folder(package: str) -> Path:
    spec = SPECS[package]
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent
