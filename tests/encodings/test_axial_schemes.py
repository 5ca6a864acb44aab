"""Embeddings of pictures and clips against formulas written out; options that are refused."""

import math

import pytest
import torch
from oracles import scheme
from pictures import CLIP, PICTURE, SHAPES, on, places, raster

from posbench.encodings.sinusoidal_axial import blocks
from posbench.errors import ConfigError
from posbench.settings import Geometry


def wave(m: int, width: int, base: float) -> list[float]:
    """One coordinate's sines and cosines."""
    angles = [m / base ** (2 * p / width) for p in range(width // 2)]
    return [f(angle) for angle in angles for f in (math.sin, math.cos)]


@pytest.mark.parametrize(
    ("width", "cut"),
    [(12, [6, 6]), (14, [8, 6]), (130, [66, 64]), (12, [4, 4, 4]), (14, [6, 4, 4])]
    + [(128, [44, 42, 42]), (6, [2, 2, 2])],
)
def test_the_width_is_cut_in_even_blocks_the_rest_to_the_first(width, cut):
    assert blocks(width, len(cut)) == cut


@pytest.mark.parametrize(("shape", "cut"), [(PICTURE, [8, 6]), (CLIP, [6, 4, 4])])
@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_sinusoidal_codes_side_by_side(shape, cut, base):
    encoding = scheme("sinusoidal_axial", on(shape, 14, 1), base=base)
    far = [tuple(1000 * m for m in place) for place in places(shape)]
    wanted = [
        [x for m, width in zip(place, cut, strict=True) for x in wave(m, width, base)]
        for place in places(shape) + far
    ]
    found = encoding.table(torch.tensor(places(shape) + far))
    torch.testing.assert_close(found, torch.tensor(wanted).double(), rtol=0, atol=1e-6)
    assert float(found.pow(2).mean()) == pytest.approx(0.5)


@pytest.mark.parametrize("shape", SHAPES)
def test_sinusoidal_codes_summed(shape):
    encoding = scheme("sinusoidal_axial", on(shape, 14, 1), combine="sum", rms=1.0)
    each = math.sqrt(2 / len(shape))
    wanted = [
        [each * sum(xs) for xs in zip(*(wave(m, 14, 10000.0) for m in place), strict=True)]
        for place in places(shape)
    ]
    found = encoding.table(raster(shape)[0])
    torch.testing.assert_close(found, torch.tensor(wanted).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("shape", "cut"), [(PICTURE, [8, 6]), (CLIP, [6, 4, 4])])
def test_a_block_is_the_sinusoid_of_its_width(shape, cut):
    x, place = torch.ones(1, 20, 14).double(), torch.zeros(1, 20, len(shape), dtype=torch.long)
    for axis, width in enumerate(cut):
        line = place.clone()
        line[..., axis] = torch.arange(20)
        found = scheme("sinusoidal_axial", on(shape, 14, 1)).embed(x, line)
        plain = scheme("sinusoidal", Geometry(width, 1, 1, 20)).embed(
            x[..., :width], torch.arange(20)[None, :, None]
        )
        before = sum(cut[:axis])
        assert torch.equal(found[..., before : before + width], plain)


@pytest.mark.parametrize("shape", SHAPES)
def test_learned_rows_of_every_axis_are_added(shape):
    encoding = scheme("learned_axial", on(shape))
    assert [tuple(table.shape) for table in encoding.tables] == [(n, 32) for n in shape]
    out = encoding.embed(torch.ones(2, math.prod(shape), 32), raster(shape))
    for row, place in enumerate(places(shape)):
        wanted = torch.zeros(32)
        for table, m in zip(encoding.tables, place, strict=True):
            wanted = wanted + table[m]
        torch.testing.assert_close(out[:, row], (1 + wanted).expand(2, -1))


@pytest.mark.parametrize(("shape", "cut"), [(PICTURE, [8, 6]), (CLIP, [6, 4, 4])])
def test_learned_rows_of_every_axis_side_by_side(shape, cut):
    encoding = scheme("learned_axial", on(shape, 14, 1), combine="concat")
    assert [table.shape[1] for table in encoding.tables] == cut
    out = encoding.embed(torch.zeros(1, math.prod(shape), 14), raster(shape))
    for row, place in enumerate(places(shape)):
        parts = [table[m] for table, m in zip(encoding.tables, place, strict=True)]
        assert torch.equal(out[0, row], torch.cat(parts))


@pytest.mark.parametrize("combine", ["sum", "concat"])
@pytest.mark.parametrize("shape", [(64, 48), (32, 24, 40)])
@pytest.mark.parametrize("rms", [None, 0.25])
def test_learned_tables_have_the_stated_rms_together(combine, shape, rms):
    given = {} if rms is None else {"rms": rms}
    encoding = scheme("learned_axial", on(shape, 258, 1), combine=combine, **given)
    with torch.no_grad():
        pos = raster(shape)[:, ::7]
        code = encoding.embed(torch.zeros(1, pos.shape[1], 258), pos)
    wanted = math.sqrt(0.5) if rms is None else rms
    assert float(code.pow(2).mean().sqrt()) == pytest.approx(wanted, rel=0.03)


def test_learned_is_undefined_where_one_axis_is_longer():
    encoding = scheme("learned_axial", on((8, 6)))
    inside = [(8, 6), (1, 6), (8, 1), (3, 3)]
    outside = [(9, 6), (8, 7), (4, 12), (48, 1), (48,), (8, 6, 1)]
    assert all(map(encoding.defined_for, inside))
    assert not any(map(encoding.defined_for, outside))
    assert encoding.max_length == 48
    encoding.embed(torch.zeros(1, 48, 32), raster((8, 6)))
    for shape in ((9, 6), (8, 7)):
        with pytest.raises(IndexError):
            encoding.embed(torch.zeros(1, math.prod(shape), 32), raster(shape))


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("sinusoidal_axial", {"combine": "product"}, r"posenc.combine=product: .*concat, sum$"),
        ("sinusoidal_axial", {"base": 1.0}, r"posenc.base=1.0: must be above 1"),
        ("sinusoidal_axial", {"rms": 0.0}, r"posenc.rms=0.0: must be above 0"),
        ("learned_axial", {"combine": "mean"}, r"posenc.combine=mean: .*concat, sum$"),
        ("learned_axial", {"rms": -1.0}, r"posenc.rms=-1.0: must be above 0"),
        ("alibi_axial", {"distance": "taxi"}, r"distance=taxi: .*manhattan, euclidean, chebyshev$"),
        ("t5_axial", {"distance": "euclidean"}, r"distance=euclidean: .*manhattan, per_axis$"),
        ("t5_axial", {"max_distance": "far"}, r"max_distance=far: a whole number or auto"),
        ("t5_axial", {"max_distance": 1}, r"posenc.max_distance=1: must be at least 2"),
        ("t5_axial", {"buckets": 1}, r"posenc.buckets=1: must be at least 2"),
    ],
)
def test_options_that_are_refused(name, options, said):
    with pytest.raises(ConfigError, match=said):
        scheme(name, on(PICTURE), **options)


@pytest.mark.parametrize(
    ("name", "width", "shape", "said"),
    [
        ("sinusoidal_axial", 33, PICTURE, "posenc=sinusoidal_axial needs an even width"),
        ("sinusoidal_axial", 2, PICTURE, "sinusoidal_axial needs at least 4 for 2 axes"),
        ("sinusoidal_axial", 4, CLIP, "sinusoidal_axial needs at least 6 for 3 axes"),
        ("learned_axial", 4, CLIP, "learned_axial needs at least 6 for 3 axes"),
    ],
)
def test_widths_that_cannot_be_cut(name, width, shape, said):
    with pytest.raises(ConfigError, match=rf"^model.d_model={width}: posenc={name}.*{said[-20:]}"):
        scheme(name, on(shape, width, 1), combine="concat")
    if width % 2 == 0:
        scheme(name, on(shape, width, 1), combine="sum")
