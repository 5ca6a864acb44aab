"""Every scheme, rescaling and sampler, as JSON, as text and as a figure, without naming any."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import posbench.show.subject
from posbench import registry
from posbench.encodings.base import HOOKS
from posbench.show import text
from posbench.show.keys import GROUPS

Command = Callable[..., Any]
NAMES = [f"{group}={name}" for group in GROUPS for name in registry.options(group)]
#: small, and wide enough for every scheme's defaults
SMALL = ["heads=2", "head_dim=16", "layers=2"]
LENGTHS, SHAPES = ["train_length=64", "test_length=128"], ["shape=8x8", "test_shape=8x16"]
#: those of every scheme; a scheme may have others of its own
TABLES = {
    "inv_freq", "rotation_scale", "slopes", "buckets", "bias", "logit_scale", "embedding",
    "positions", "relative_position", "rotation", "weights", "axis_map",
}  # fmt: skip


def small(name: str) -> list[str]:
    """Keys of a small model, on text or, where a scheme takes none, on pictures."""
    found = posbench.show.subject.subject(name, {})
    text = found.sampler is not None or not found.on_a_grid
    return [*SMALL, *(LENGTHS if text else SHAPES)]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_as_json(name: str, shown: Callable[..., dict[str, Any]]) -> None:
    found = shown(name, *small(name))
    assert list(found) == ["name", "family", "paper", "hooks", "properties", "config", "tables"]
    assert found["name"] == name.partition("=")[2]
    assert set(found["hooks"]) <= set(HOOKS)
    assert found["hooks"] == sorted(found["hooks"], key=HOOKS.index)
    group, _, short = name.partition("=")
    assert set(found["tables"]) <= TABLES | own_tables(group, short)
    assert found["config"]["train_length"] == 64 and found["config"]["test_length"] == 128
    if group != "positions":
        assert found["config"]["heads"] == 2 and found["config"]["d_model"] == 32
        own = registry.get(group, short) if short in registry.names(group) else None
        assert own is None or found["family"] == own.family


def own_tables(group: str, name: str) -> set[str]:
    """Tables that only this scheme has."""
    found = posbench.show.subject.subject(f"{group}={name}", {}).encoding
    if found is None:
        return set()
    layers = [found.for_layer(n)[0] for n in range(found.geometry.n_layers)]
    return {key for own in layers for key in own.own_tables(torch.arange(2))}


@pytest.mark.parametrize("name", NAMES)
def test_every_name_in_every_type(name: str, shown: Callable[..., dict[str, Any]]) -> None:
    exact = shown(name, *small(name))["tables"]
    for dtype in ("float32", "bfloat16", "float16"):
        found = shown(name, *small(name), f"dtype={dtype}")["tables"]
        assert list(found) == list(exact)
        for table in {"slopes", "inv_freq"} & set(exact):
            assert found[table] == pytest.approx(exact[table], rel=1e-6)
        for table in {"buckets", "relative_position", "positions"} & set(exact):
            assert found[table] == exact[table]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_as_text(name: str, anywhere: Command) -> None:
    done = anywhere("show", name)
    assert done.code == 0 and not done.err, done.err
    lines, words = done.out.splitlines(), " ".join(done.out.split())
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)
    group, _, short = name.partition("=")
    assert lines[0].startswith(short)
    if short in registry.names(group):
        cls = registry.get(group, short)
        assert cls.paper in lines[0]
        assert " ".join((cls.__doc__ or "").split()) in words
    assert re.search(r"train_length \d+, test_length \d+", words)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_as_a_figure(
    name: str, posbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posbench.show import plots

    monkeypatch.setattr(plots, "DPI", 30)
    done = posbench("show", name, *small(name), "--plot", "figures/one.png", "--json")
    assert done.code == 0 and done.errors == ["wrote figures/one.png"], done.err
    assert done.out.startswith("{")
    assert Path("figures/one.png").read_bytes().startswith(b"\x89PNG")


def test_every_hook_has_words() -> None:
    assert tuple(text.ACTS) == HOOKS
