"""M-RoPE, in sections and interleaved: against transformers, golden maps, and RoPE on text."""

import importlib
import math

import pytest
import torch
from oracles import golden, normal, positions, scheme, theta

from posbench import grid
from posbench.encodings.base import Context
from posbench.errors import ConfigError
from posbench.settings import Geometry

CLIP = (4, 16, 16)
NAMES = ("mrope", "mrope_interleaved")


def on(name, shape, dim=24, heads=2, **options):
    return scheme(name, Geometry(dim * heads, heads, 2, math.prod(shape), 0, shape), **options)


def turned(encoding, x, pos):
    return encoding.rotate(x, x, pos, pos, Context(False))[0]


def axes_of_pairs(encoding, pairs):
    """Which coordinate turns each pair, as letters, from rotated unit vectors."""
    found = ["-"] * pairs
    x = torch.ones(1, 1, 1, 2 * pairs, dtype=torch.float64)
    for axis, letter in enumerate("thw"):
        pos = torch.zeros(1, 1, 3, dtype=torch.long)
        pos[..., axis] = 3
        moved = (turned(encoding, x, pos) - x)[0, 0, 0, :pairs].abs() > 1e-9
        for p in moved.nonzero().flatten().tolist():
            assert found[p] == "-"
            found[p] = letter
    return "".join(found)


@pytest.mark.parametrize("name", NAMES)
def test_golden_maps(name):
    numbers = golden("mrope")[name]
    for options in ({}, {"sections": numbers["sections"]}):
        encoding = on(name, CLIP, golden("mrope")["head_dim"], 1, **options)
        assert encoding.sections == numbers["sections"]
        assert axes_of_pairs(encoding, 64) == numbers["axis_of_pair"]


def theirs(name, dim, sections):
    """Rotary module of the text model, and the function that turns."""
    family, kind = {"mrope": ("qwen2_vl", "Qwen2VL"), "mrope_interleaved": ("qwen3_vl", "Qwen3VL")}[
        name
    ]
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    config = getattr(importlib.import_module("transformers"), f"{kind}TextConfig")(
        hidden_size=dim,
        num_attention_heads=1,
        head_dim=dim,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": sections,
        },
    )
    rotary = getattr(
        module, f"{kind}RotaryEmbedding" if family == "qwen2_vl" else f"{kind}TextRotaryEmbedding"
    )
    return rotary(config), module.apply_rotary_pos_emb


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [128, 64, 24])
def test_tables_and_rotation_of_transformers(name, dim):
    encoding = on(name, CLIP, dim, 1)
    module, apply = theirs(name, dim, encoding.sections)
    pos = grid.coordinates((3, 4, 5)) * 2 + 1
    q, k = (normal(1, 2, 60, dim, seed=s, dtype=torch.float32) for s in (1, 2))
    cos, sin = module(q, pos.permute(2, 0, 1))
    for a, b in zip(encoding.cos_sin(pos, torch.float32, Context(False)), (cos, sin), strict=True):
        torch.testing.assert_close(a[0, 0].repeat(1, 2), b[0], rtol=0, atol=5e-6)
    wanted = apply(q, k, cos, sin)
    for a, b in zip(encoding.rotate(q, k, pos, pos, Context(False)), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_text_then_a_picture_then_text_as_in_transformers(name):
    """The coordinates of such a sequence, built here by the rule, and what they turn by.

    A sequence of posbench is text, a picture or a clip, so nothing else makes these coordinates.
    """
    qwen = importlib.import_module("transformers.models.qwen2_vl.modeling_qwen2_vl")
    numbers = golden("mrope")["text_picture_text"]
    ids = qwen.Qwen2VLModel.get_vision_position_ids(None, 2, torch.tensor([1, 4, 4]), 1, 2)
    after = int(ids.max()) + 1
    ids = torch.cat(
        (torch.arange(2).expand(3, 2), ids, torch.arange(after, after + 2).expand(3, 2)), 1
    )
    assert [row.tolist() for row in ids] == [numbers[axis] for axis in "thw"]
    encoding = on(name, CLIP, 128, 1)
    module, apply = theirs(name, 128, encoding.sections)
    x = normal(1, 1, 8, 128, dtype=torch.float32)
    wanted, _ = apply(x, x, *module(x, ids[:, None]))
    torch.testing.assert_close(turned(encoding, x, ids.T[None]), wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_text_is_rope_bit_for_bit(name, dtype):
    geometry = Geometry(48, 2, 2, 64)
    ours, plain = scheme(name, geometry), scheme("rope", geometry)
    x, pos = normal(2, 2, 200, 24, dtype=dtype), positions(200, 1000)
    assert torch.equal(turned(ours, x, pos), turned(plain, x, pos))
    same = pos.expand(-1, -1, 3)  # and a clip whose axes all hold the index
    assert torch.equal(turned(on(name, CLIP), x, same), turned(plain, x, pos))


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_a_clip_at_time_0(name):
    picture, clip = on(name, (16, 16)), on(name, CLIP)
    x, pos = normal(1, 2, 20, 24), grid.coordinates((4, 5))
    still = torch.cat((torch.zeros_like(pos[..., :1]), pos), -1)
    assert torch.equal(turned(picture, x, pos), turned(clip, x, still))
    times = [p for p in range(12) if axes_of_pairs(clip, 12)[p] == "t"]
    own = [*times, *(p + 12 for p in times)]
    assert len(times) == clip.sections[0] > 0
    assert torch.equal(turned(picture, x, pos)[..., own], x[..., own])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("axis", "letter"), list(enumerate("thw")))
def test_along_one_axis_its_pairs_are_those_of_rope(name, axis, letter):
    encoding, x = on(name, CLIP), normal(1, 2, 9, 24)
    pos = torch.zeros(1, 9, 3, dtype=torch.long)
    pos[..., axis] = torch.arange(5, 14)
    pairs = [p for p, own in enumerate(axes_of_pairs(encoding, 12)) if own == letter]
    wanted = x.clone()
    whole = turned(scheme("rope", Geometry(48, 2, 2, 64)), x, positions(9, 5))
    for p in pairs:
        wanted[..., [p, p + 12]] = whole[..., [p, p + 12]]
    assert torch.equal(turned(encoding, x, pos), wanted)
    assert encoding.inv_freq.tolist() == pytest.approx(theta(24), rel=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_sections_follow_the_head(name):
    released = {"mrope": 24, "mrope_interleaved": 20}[name]
    for dim in range(8, 200, 2):
        time, height, width = on(name, CLIP, dim, 1).sections
        assert time + height + width == dim // 2
        assert height == width == math.floor(released / 64 * (dim // 2))


@pytest.mark.parametrize(
    ("name", "dim", "sections", "said"),
    [
        ("mrope", 4, None, "heads of 4: posenc=mrope needs at least 6"),
        ("mrope_interleaved", 6, None, "heads of 6: posenc=mrope_interleaved needs at least 8"),
        ("mrope", 128, [16, 24, 25], r"sections=\[16, 24, 25\] has 65 pairs, a head of 128 .* 64"),
        ("mrope", 32, [8, 8], "three numbers of pairs"),
        ("mrope", 32, [-2, 8, 10], "three numbers of pairs"),
        ("mrope", 32, [8, 8, 0], "only time may have none"),
        (
            "mrope_interleaved",
            128,
            [16, 24, 24],
            "among 64 pairs only 21 are height's in turn, not 24",
        ),
        ("mrope_interleaved", 128, [22, 20, 22], "only 21 are width's in turn, not 22"),
    ],
)
def test_refusals(name, dim, sections, said):
    with pytest.raises(ConfigError, match=said):
        on(name, CLIP, dim, 1, sections=sections)


@pytest.mark.parametrize("pairs", [8, 9, 10, 11, 64])
def test_sections_are_refused_exactly_where_released_code_cuts_them(pairs):
    for height in range(1, pairs // 2):
        width = height
        taken = [len(range(pairs)[at : 3 * n : 3]) for at, n in ((1, height), (2, width))]
        sections = [pairs - height - width, height, width]
        if taken == [height, width]:
            assert on("mrope_interleaved", CLIP, 2 * pairs, 1, sections=sections).sections
        else:
            with pytest.raises(ConfigError, match="in turn"):
                on("mrope_interleaved", CLIP, 2 * pairs, 1, sections=sections)
