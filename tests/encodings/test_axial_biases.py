"""Biases of pictures and clips, against loops over pairs of tokens."""

import importlib
import math
from collections.abc import Callable

import pytest
import torch
from loops import Layer, spread
from oracles import alibi_slopes, scheme, t5_bucket
from pictures import PICTURE, SHAPES, on, raster

from posbench import attention
from posbench.encodings import alibi_axial
from posbench.encodings.base import Context, PositionalEncoding, Tied
from posbench.settings import Geometry

NORMS: dict[str, Callable[..., float]] = {
    "manhattan": lambda *apart: sum(map(abs, apart)),
    "euclidean": math.hypot,
    "chebyshev": lambda *apart: max(map(abs, apart)),
}


def apart(layer: Layer, b: int, i: int, j: int) -> list[int]:
    """Query minus key on every axis."""
    pos = layer.pos[min(b, len(layer.pos) - 1)].tolist()
    return [q - k for q, k in zip(pos[i], pos[j], strict=True)]


def compare(encoding: PositionalEncoding, shape, bias) -> None:
    """Attention, in chunks and in one, is that of q . k / sqrt(K) + bias(b, h, distances)."""
    pos = torch.cat((raster(shape), 3 + 2 * raster(shape)))
    layer = Layer(spread(encoding.double()), keys=pos.shape[1], pos=pos)
    with torch.no_grad():
        wanted = layer.loop(
            lambda b, h, i, j: layer.dot(b, h, i, j) + bias(h, *apart(layer, b, i, j))
        )
        for chunk in (1, 5, 64):
            found = layer.attend(chunk=chunk)
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)
        last = layer.attend(rows=7, chunk=3)
        torch.testing.assert_close(last, wanted[:, :, -7:], rtol=0, atol=1e-11)


@pytest.mark.parametrize("distance", NORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_alibi_on_a_grid_is_a_slow_loop(shape, distance):
    encoding = scheme("alibi_axial", on(shape), distance=distance)
    slopes = alibi_slopes(4)
    compare(encoding, shape, lambda h, *gaps: -slopes[h] * NORMS[distance](*gaps))


@pytest.mark.parametrize("distance", NORMS)
@pytest.mark.parametrize("shape", [(1, 30), (30, 1), (1, 1, 30), (1, 30, 1)])
def test_one_row_of_a_picture_is_alibi_on_text(shape, distance):
    encoding = scheme("alibi_axial", on(shape, 24, 3), distance=distance)
    pos = raster(shape)
    found = encoding.pair_bias(pos, pos, Context(False))[0]
    distances = torch.arange(30)[:, None] - torch.arange(30)
    text = scheme("alibi", Geometry(24, 3, 2, 30)).distance_bias(torch.arange(30), Context(True))
    earlier = distances >= 0
    assert torch.equal(found[:, earlier], text[:, distances[earlier]])


def test_a_key_to_the_right_on_a_row_above_is_as_far_as_one_to_the_left():
    encoding = scheme("alibi_axial", on((4, 9), 8, 1))
    query, keys = torch.tensor([[[3, 4]]]), torch.tensor([[[1, 7], [1, 1], [3, 0], [0, 4]]])
    bias = encoding.pair_bias(query, keys, Context(False))
    assert bias.flatten().tolist() == [-(2.0**-8) * n for n in (5, 5, 4, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("buckets", "furthest"), [(32, "auto"), (4, 5), (6, 9)])
def test_t5_of_the_summed_distance_is_a_slow_loop(shape, buckets, furthest):
    options = {"buckets": buckets, "max_distance": furthest}
    encoding = scheme("t5_axial", on(shape), **options)
    most = max(sum(shape) // 2, 4) if furthest == "auto" else furthest
    (table,), count = encoding.tables, min(buckets, most)
    assert tuple(table.shape) == (count, 4)
    row = lambda gaps: t5_bucket(sum(map(abs, gaps)), count, most)  # noqa: E731
    compare(encoding, shape, lambda h, *gaps: encoding.tables[0][row(gaps), h])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("buckets", "furthest"), [(32, "auto"), (4, 5)])
def test_t5_of_every_axis_is_a_slow_loop(shape, buckets, furthest):
    options = {"distance": "per_axis", "buckets": buckets, "max_distance": furthest}
    encoding = scheme("t5_axial", on(shape), **options)
    limits = [max(n // 2, 4) if furthest == "auto" else furthest for n in shape]
    counts = [min(buckets, most) for most in limits]
    sizes = [count * (2 if axis else 1) for axis, count in enumerate(counts)]
    assert [tuple(table.shape) for table in encoding.tables] == [(size, 4) for size in sizes]

    def bias(h, *gaps):
        total = 0.0
        for axis, gap in enumerate(gaps):
            ahead = counts[axis] if gap < 0 else 0
            row = ahead + t5_bucket(abs(gap), counts[axis], limits[axis])
            total = total + encoding.tables[axis][row, h]
        return total

    compare(encoding, shape, bias)


@pytest.mark.parametrize(("buckets", "furthest"), [(32, 64), (16, 20), (4, 4), (8, 100), (2, 3)])
def test_t5_buckets_on_both_sides_are_those_of_transformers(buckets, furthest):
    t5 = importlib.import_module("transformers.models.t5.modeling_t5").T5Attention
    options = {"distance": "per_axis", "buckets": buckets, "max_distance": furthest}
    encoding = scheme("t5_axial", on(PICTURE), **options)
    distance = torch.arange(-6 * furthest, 6 * furthest)
    both = t5._relative_position_bucket(
        -distance, bidirectional=True, num_buckets=2 * buckets, max_distance=furthest
    )
    assert torch.equal(encoding.rows(1, distance), both)
    distance = distance.clamp(min=0)
    causal = t5._relative_position_bucket(
        -distance, bidirectional=False, num_buckets=buckets, max_distance=furthest
    )
    assert torch.equal(encoding.rows(0, distance), causal)


@pytest.mark.parametrize(
    ("shape", "summed", "per_axis"),
    [((16, 16), [16], [8, 8]), ((4, 16, 16), [18], [4, 8, 8]), ((28, 28), [28], [14, 14])]
    + [((64, 96), [80], [32, 48])],
)
def test_t5_reaches_half_the_extent_and_tests_meet_no_other_bucket(shape, summed, per_axis):
    for distance, limits in (("manhattan", summed), ("per_axis", per_axis)):
        encoding = scheme("t5_axial", on(shape, 8, 1), distance=distance)
        used = ", ".join(dict.fromkeys(map(str, limits)))
        assert encoding.max_distances == limits
        assert encoding.tied() == [Tied("posenc.max_distance", "128", used)]
        assert encoding.buckets == [min(32, most) for most in limits]
        for axis, count in enumerate(encoding.buckets):
            longest = shape[axis] - 1 if distance == "per_axis" else sum(shape) - len(shape)
            trained, tested = (
                set(encoding.rows(axis, torch.arange(-n if axis else 0, n + 1)).tolist())
                for n in (longest, 20 * longest)
            )
            assert trained == tested
            assert max(trained) == count * (2 if axis else 1) - 1


@pytest.mark.parametrize("name", ["alibi_axial", "t5_axial"])
def test_layers_share_a_bias_that_is_whole_and_chunks_never_hold_more(name, monkeypatch):
    encoding, pos = scheme(name, on((24, 24))), raster((24, 24))
    built = []
    plain = alibi_axial.apart

    def counted(*given):
        built.append(plain(*given))
        return built[-1]

    for module in (alibi_axial, importlib.import_module("posbench.encodings.t5_axial")):
        monkeypatch.setattr(module, "apart", counted)
    q = torch.randn(1, 4, 576, 8, generator=torch.Generator().manual_seed(0))

    def layers(scores):
        monkeypatch.setattr(attention, "CHUNK_SCORES", scores)
        built.clear()
        ctx = Context(False)
        return [encoding.attend(q, q, q, pos, pos, ctx.at(layer)) for layer in range(3)]

    with torch.no_grad():
        whole = layers(4 * 576 * 576)
        assert [tuple(one.shape) for one in built] == [(1, 576, 576)]
        parts = layers(1 << 16)
    assert len(built) > 3 * 576 * 576 * 4 >> 16
    assert max(one.numel() for one in built) * 4 <= 1 << 16
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("distance", ["manhattan", "per_axis"])
def test_gradients_of_a_shared_bias_are_those_of_every_layers_own(distance):
    encoding = spread(scheme("t5_axial", on(PICTURE), distance=distance).double())
    pos = raster(PICTURE)
    layers = [Layer(encoding, keys=24, pos=pos, layer=n) for n in (0, 1)]

    def gradients(contexts):
        outs = [
            encoding.attend(one.q, one.k, one.v, pos, pos, ctx)
            for one, ctx in zip(layers, contexts, strict=True)
        ]
        total = sum((n + 1) * out.pow(2).sum() for n, out in enumerate(outs))
        return torch.autograd.grad(total, list(encoding.parameters()))

    shared = Context(False)
    together = gradients([shared.at(0), shared.at(1)])
    alone = gradients([Context(False), Context(False)])
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
        assert bool((a != 0).any())
