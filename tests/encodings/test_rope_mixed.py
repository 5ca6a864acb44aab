"""RoPE-Mixed: angles by a slow loop, initial values, gradients."""

import math

import pytest
import torch
from oracles import normal, scheme, tiny_model, tokens

from posbench import grid
from posbench.encodings.base import Context
from posbench.errors import ConfigError
from posbench.settings import Geometry

PICTURE, CLIP = (16, 16), (4, 16, 16)


def on(shape, dim=24, heads=3, **options):
    return scheme(
        "rope_mixed", Geometry(dim * heads, heads, 2, math.prod(shape), 0, shape), **options
    )


@pytest.mark.parametrize("shape", [PICTURE, CLIP])
def test_angles_are_sums_over_axes(shape):
    encoding = on(shape, 8)
    pos = grid.coordinates((2, 2, 3)[-len(shape) :]) * 2 + 1
    x = normal(1, 3, pos.shape[1], 8)
    for layer in (0, 1):
        got, _ = encoding.rotate(x, x, pos, pos, Context(False, layer))
        for h in range(3):
            for t, at in enumerate(pos[0].tolist()):
                for p in range(4):
                    own = encoding.frequencies[layer, h, p].tolist()
                    angle = sum(c * f for c, f in zip(at, own, strict=True))
                    a, b = float(x[0, h, t, p]), float(x[0, h, t, p + 4])
                    c, s = math.cos(angle), math.sin(angle)
                    wanted = (a * c - b * s, b * c + a * s)
                    found = got[0, h, t, [p, p + 4]].tolist()
                    assert found == pytest.approx(wanted, abs=1e-12)


def test_initial_values_of_pictures():
    """A direction per layer and head; the second half at +90 degrees; base^(-4k/d), base 10."""
    encoding = on(PICTURE, 32, 8)
    found = encoding.frequencies.detach().double()
    assert found.shape == (2, 8, 16, 2)
    sizes = [10 ** (-4 * k / 32) for k in range(8)]
    first, second = found[..., :8, :], found[..., 8:, :]
    for half in (first, second):
        torch.testing.assert_close(
            half.norm(dim=-1),
            torch.tensor(sizes, dtype=torch.float64).expand(2, 8, 8),
            rtol=1e-6,
            atol=0,
        )
    quarter = torch.stack((-first[..., 1], first[..., 0]), -1)  # (cos, sin) turned by 90 degrees
    torch.testing.assert_close(second, quarter, rtol=0, atol=1e-6)
    direction = torch.atan2(first[..., 1], first[..., 0])
    torch.testing.assert_close(
        direction, direction[..., :1].expand_as(direction), rtol=0, atol=1e-5
    )
    heads = direction[..., 0].flatten()
    assert len({round(float(a), 4) for a in heads}) == 16
    assert heads.min() < -0.5 and heads.max() > 0.5


def test_directions_are_uniform():
    encoding = on(PICTURE, 4, 2000)
    direction = torch.atan2(*encoding.frequencies[..., 0, :].detach().flatten(0, 1).T)
    quarters = torch.histc(direction, 4, -math.pi, math.pi) / len(direction)
    assert (quarters - 0.25).abs().max() < 0.04  # six standard deviations of 4,000 draws


def test_initial_values_of_clips():
    """Three right-handed directions at right angles, with ladders of 12, 10 and 10 channels."""
    encoding = on(CLIP, 32, 4)
    found = encoding.frequencies.detach().double()
    sizes = [10 ** (-2 * k / dim) for dim in (12, 10, 10) for k in range(dim // 2)]
    torch.testing.assert_close(
        found.norm(dim=-1), torch.tensor(sizes, dtype=torch.float64).expand(2, 4, 16),
        rtol=1e-6, atol=0,
    )  # fmt: skip
    frames = torch.stack([found[..., p, :] for p in (0, 6, 11)], -1)
    torch.testing.assert_close(
        frames.mT @ frames, torch.eye(3, dtype=torch.float64).expand(2, 4, 3, 3), rtol=0, atol=1e-6
    )
    torch.testing.assert_close(torch.linalg.det(frames), torch.ones(2, 4).double())


def test_along_the_axes_it_is_rope_axial():
    for shape in (PICTURE, CLIP):
        encoding = on(shape)
        (case,) = type(encoding).reductions()
        case.prepare(encoding)
        geometry = encoding.geometry
        other = scheme(case.equals, geometry, **case.equal_options)
        x, pos = normal(1, 3, 12, 24), grid.coordinates((1, 3, 4)[-len(shape) :]) * 3
        got, wanted = (e.rotate(x, x, pos, pos, Context(False))[0] for e in (encoding, other))
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)  # its numbers are float32


def test_queries_and_keys_have_tables_of_their_own_and_of_their_own_type():
    encoding = on(PICTURE, 8)
    q, k = normal(1, 3, 2, 8, seed=1), normal(1, 3, 6, 8, seed=2)
    pos = grid.coordinates((2, 3))
    whole, _ = encoding.rotate(k, k, pos, pos, Context(False))
    one, other = encoding.rotate(q, k, pos[:, 4:], pos, Context(False))
    assert torch.equal(other, whole)
    alone, _ = encoding.rotate(q, q, pos[:, 4:], pos[:, 4:], Context(False))
    assert torch.equal(one, alone)
    low, high = encoding.rotate(k.bfloat16(), k, pos, pos, Context(False))
    assert low.dtype == torch.bfloat16 and torch.equal(high, whole)


def test_every_frequency_gets_a_gradient():
    model = tiny_model("none")
    geometry = Geometry(32, 4, 2, 16, 0, (4, 4))
    model.posenc = scheme("rope_mixed", geometry)
    model.logits(model.hidden(tokens(16), pos_BTA=grid.coordinates((4, 4)))).pow(2).sum().backward()
    assert bool((model.posenc.frequencies.grad != 0).all())
    (group,) = model.posenc.param_groups()
    assert group["weight_decay"] == 0.0 and group["params"] == [model.posenc.frequencies]


def test_refusals():
    with pytest.raises(
        ConfigError, match="heads of 30: posenc=rope_mixed on 2 axes needs 28 or 32"
    ):
        on(PICTURE, 30)
    with pytest.raises(ConfigError, match="posenc.base=1: must be above 1"):
        on(PICTURE, base=1)
