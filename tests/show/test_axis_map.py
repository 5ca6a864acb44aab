"""Which pair turns with which axis: as numbers, in words and as a figure."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import refused
from oracles import golden, theta

import posbench
from show.compare import close

Command = Callable[..., Any]


def letters(table: dict[str, Any], names: str) -> str:
    """The axis of every pair as a letter."""
    found = ""
    for row in table["values"]:
        turning = [letter for letter, f in zip(names, row, strict=True) if f]
        assert len(turning) <= 1
        found += "".join(turning) or "-"
    return found


@pytest.mark.parametrize("name", ["mrope", "mrope_interleaved"])
def test_golden_maps(name: str, tables: Callable[..., Any]) -> None:
    wanted = golden("mrope")[name]["axis_of_pair"]
    found = tables(name, head_dim=golden("mrope")["head_dim"], shape="4x16x16")["axis_map"]
    assert found["axes"] == ["frame", "row", "column"] and found["extents"] == [4, 16, 16]
    assert letters(found, "thw") == wanted
    close([sum(row) for row in found["values"]], theta(128))
    picture = tables(name, head_dim=128, shape="16x16")["axis_map"]
    assert letters(picture, "hw") == wanted.replace("t", "-")
    assert "axis_map" not in tables(name, head_dim=128)  # text


def test_blocks_of_rope_axial(tables: Callable[..., Any]) -> None:
    found = tables("rope_axial", head_dim=8)["axis_map"]
    close(found["values"], [[1, 0], [0.01, 0], [0, 1], [0, 0.01]])
    assert found["axes"] == ["row", "column"] and found["extents"] == [16, 16]
    found = tables("rope_axial", head_dim=32, shape="4x8x8", split="hunyuan", base=256)
    blocks = golden("rope_axial")["hunyuan_of_128"]
    assert letters(found["axis_map"], "thw") == "".join(
        letter * (n // 8) for letter, n in zip("thw", blocks, strict=True)
    )
    tail = tables("rope_axial", head_dim=32, shape="4x8x8", split="vjepa2")["axis_map"]
    assert letters(tail, "thw") == "ttttthhhhhwwwww"


def test_rope_mixed_by_head() -> None:
    from posbench.show.subject import subject

    keys = {"head_dim": 8, "heads": 3, "shape": "16x16", "layer": 2}
    found = subject("rope_mixed", keys).encoding
    assert found is not None
    values = posbench.tables("rope_mixed", **keys)["axis_map"]["values"]
    close(values, found.get_parameter("frequencies")[2].tolist(), rel=1e-9)


def test_a_rescaling_acts_on_the_axis_that_grows(tables: Callable[..., Any]) -> None:
    keys = {"posenc": "rope_axial", "head_dim": 8, "shape": "4x16", "test_shape": "32x16"}
    found = tables("pi", **keys)["axis_map"]["values"]
    close(found, [[1 / 8, 0], [0.01 / 8, 0], [0, 1], [0, 0.01]])
    every = tables("pi", **keys, axes="all")["axis_map"]["values"]
    close(every, [[1 / 8, 0], [0.01 / 8, 0], [0, 1 / 8], [0, 0.01 / 8]])


def test_in_words(anywhere: Command, shown: Callable[..., dict[str, Any]]) -> None:
    """Wavelength 2 pi / theta; turns within 16 rows, 16 theta / 2 pi."""
    out = anywhere("show", "rope_axial", "head_dim=8").out
    assert "within 16x16 (row x column" in " ".join(out.split())
    assert re.search(r"\n +0 +row +1 +6\.2832 +16 +2\.5465\n", out)
    assert re.search(r"\n +3 +column +0\.01 +628\.32 +16 +0\.025465\n", out)
    out = anywhere("show", "mrope", "head_dim=8", "shape=8x16").out
    assert re.search(r"\n +0 +- +0 +inf +- +0\n", out)
    out = anywhere("show", "pi", "posenc=rope_axial", "head_dim=8", "shape=16x16", "factor=2").out
    assert re.search(r"\n +0 +row +0\.5 +12\.566 +16 +1\.2732 +1 +0\.5\n", out)
    assert "shape 16x16, test_shape 32x32" in " ".join(out.split())
    out = anywhere("show", "rope_mixed", "head_dim=8", "layer=1").out
    assert "axis map of head 0 in layer 1 (initial values of seed 0)" in out
    assert shown("rope_axial")["config"]["shape"] == "16x16"
    assert shown("yarn", "posenc=rope_axial", "shape=4x16x16", "test_shape=8x16x64")["properties"][
        "scale"
    ] == pytest.approx(4)


def test_a_shape_for_a_scheme_that_sees_the_raster_index(
    shown: Callable[..., dict[str, Any]],
) -> None:
    found = shown("rope", "shape=8x8", "test_shape=8x16", "head_dim=8")
    assert "axis_map" not in found["tables"]
    assert (found["config"]["train_length"], found["config"]["test_length"]) == (64, 128)
    plain = shown("yarn", "train_length=64", "test_length=128", "head_dim=8")["tables"]
    assert shown("yarn", "shape=8x8", "test_shape=8x16", "head_dim=8")["tables"] == plain


def test_rotations_and_embeddings_are_of_raster_positions(tables: Callable[..., Any]) -> None:
    keys = {"head_dim": 8, "shape": "4x4", "test_shape": "8x8", "positions": [0, 11]}
    found = tables("rope_axial", **keys)["rotation"]["angle"]
    close(found, [[0, 0, 0, 0], [1, 0.01, 3, 0.03]])  # 11 is row 1, column 3 of eight


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rope_axial", "train_length=64"], ["train_length=64", "shape=16x16"]),
        (["rope", "shape=8x8", "test_length=64"], ["test_length=64", "test_shape"]),
        (["rope_axial", "shape=16"], ["shape=16: needs 2 extents, such as 16x16"]),
        (["rope_axial", "shape=2x2x2x2"], ["shape=2x2x2x2: needs 3 extents"]),
        (["rope_axial", "shape=4x4", "test_shape=4x4x4"], ["test_shape=4x4x4: needs 2 extents"]),
        (["rope_axial", "shape=4x4", "factor=2", "test_shape=9x9"], ["factor=2", "8x8"]),
        (["rope_axial", "test_shape=4x4"], ["test_shape=4x4: give shape"]),
        (["rope_axial", "shape=9999x9999"], ["shape=9999x9999: at most 10000000 tokens"]),
        (["rope_axial", "shape=4x4", "positions=[256]"], ["256", "test_shape=16x16 has 256"]),
        (["rerope", "posenc=rope_axial"], ["rope_axial cannot be rescaled by rerope"]),
        (
            ["stack", "parts=[rope_axial,transformer_xl]"],
            ["its parts need other numbers of axes", "transformer_xl: 1"],
        ),
    ],
)
def test_refusals(words: list[str], said: list[str], anywhere: Command) -> None:
    refused(anywhere("show", *words), *said)


def test_figures() -> None:
    from posbench.show.facts import described
    from posbench.show.plots import _figure
    from posbench.show.subject import subject

    def axes(name: str, **keys: Any) -> list[Any]:
        found = subject(name, keys)
        with torch.no_grad():
            return list(_figure(found, described(found)).axes)

    def titles(name: str, **keys: Any) -> list[str]:
        return [ax.get_title(loc="left") for ax in axes(name, **keys)]

    scores = "score of a key like the query (dotted: training)"
    assert titles("rope_axial") == ["axis map", scores]
    assert titles("mrope", shape="16x16", head_dim=16)[0] == "axis map, 2 of 8 pairs do not turn"
    assert titles("rope_mixed") == [
        "axis map of head 0",
        "directions of the pairs of all 8 heads",
        scores,
    ]
    first = axes("rope_axial", head_dim=8)[0]
    drawn = {line.get_label(): line.get_ydata() for line in first.lines}
    close(drawn["row"][:2].tolist(), [2 * math.pi, 200 * math.pi])
    close(drawn["column"][2:].tolist(), [2 * math.pi, 200 * math.pi])
