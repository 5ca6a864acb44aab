"""Axial RoPE: against complex numbers, golden numbers, transformers, and its own symmetries."""

import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import golden, normal, scheme, theta

from posbench import grid
from posbench.encodings.axes import blocks
from posbench.encodings.base import Context
from posbench.errors import ConfigError
from posbench.settings import Geometry

PICTURE, CLIP = (16, 16), (4, 16, 16)


def on(shape, dim=24, heads=2, name="rope_axial", **options):
    """A scheme on pictures or clips of a shape."""
    return scheme(name, Geometry(dim * heads, heads, 2, math.prod(shape), 0, shape), **options)


def turned(encoding, x, pos):
    return encoding.rotate(x, x, pos, pos, Context(False))[0]


def slow(x, pos, channels, base=10000.0):
    """Pairs (p, p + r/2) turned by the coordinate of their axis, one number at a time."""
    axis_and_rate = [(a, f) for a, dim in enumerate(channels) for f in theta(dim, base)]
    half, out = len(axis_and_rate), x.clone()
    for t, at in enumerate(pos[0].tolist()):
        for p, (axis, rate) in enumerate(axis_and_rate):
            c, s = math.cos(at[axis] * rate), math.sin(at[axis] * rate)
            a, b = x[:, :, t, p], x[:, :, t, p + half]
            out[:, :, t, p], out[:, :, t, p + half] = a * c - b * s, b * c + a * s
    return out


@pytest.mark.parametrize(
    ("shape", "dim", "split", "channels"),
    [
        (PICTURE, 24, "auto", [12, 12]),
        (PICTURE, 32, [10, 22], [10, 22]),
        (CLIP, 32, "auto", [12, 10, 10]),
        (CLIP, 24, "equal", [8, 8, 8]),
        (CLIP, 32, "hunyuan", [4, 14, 14]),
        (CLIP, 32, "vjepa2", [10, 10, 10]),
        (PICTURE, 10, "vjepa2", [4, 4]),
    ],
)
def test_every_pair_turns_by_the_coordinate_of_its_axis(shape, dim, split, channels):
    encoding = on(shape, dim, split=split, base=100.0)
    pos = grid.coordinates((2, 3, 4)[-len(shape) :]) * 3 + 5
    x = normal(2, 2, pos.shape[1], dim)
    torch.testing.assert_close(
        turned(encoding, x, pos), slow(x, pos, channels, 100.0), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("case", ["2d", "3d"])
def test_golden_scores(case):
    """Their pairs are neighbours in each block; ours lie half a head apart."""
    numbers = golden("rope_axial")[case]
    dim = sum(numbers["blocks"])
    permutation = [*range(0, dim, 2), *range(1, dim, 2)]
    encoding = on(PICTURE if case == "2d" else CLIP, dim, 1, base=golden("rope_axial")["base"])
    assert encoding.inv_freq.tolist() == pytest.approx(
        numbers["inv_freq_of_a_block"] * len(numbers["blocks"]), rel=1e-12
    )
    q, k = (
        torch.tensor(numbers[x], dtype=torch.float64)[permutation].reshape(1, 1, 1, -1)
        for x in "qk"
    )
    for shift, score in (
        ([0] * len(numbers["shift"]), numbers["score"]),
        (numbers["shift"], numbers["score_shifted"]),
    ):
        at = (torch.tensor(numbers[x])[None, None] + torch.tensor(shift) for x in ("q_at", "k_at"))
        q_turned, k_turned = encoding.rotate(q, k, *at, Context(False))
        assert float((q_turned * k_turned).sum()) == pytest.approx(score, rel=1e-8)


def test_golden_splits():
    numbers = golden("rope_axial")
    first = on(PICTURE, 64, base=100.0).inv_freq[:4].tolist()
    assert first == pytest.approx(numbers["first_frequencies_base_100_dim_64"], rel=1e-8)
    for dim, (each, tail) in numbers["vjepa2_channels_and_tail"].items():
        assert blocks(int(dim), 3, "vjepa2") == [each] * 3
        assert int(dim) - 3 * each == tail
        assert len(on(CLIP, int(dim), split="vjepa2").inv_freq) == 3 * each // 2
    assert blocks(128, 3, "hunyuan") == numbers["hunyuan_of_128"]
    assert blocks(128, 3) == numbers["auto_of_128"]


@settings(deadline=None, max_examples=60, database=None)
@given(dim=st.integers(1, 300), axes=st.sampled_from([2, 3]), rule=st.sampled_from(
    ["auto", "equal", "hunyuan", "vjepa2"]))  # fmt: skip
def test_splits_are_even_and_fill_the_head(dim, axes, rule):
    found = blocks(dim, axes, rule)
    if found is None:
        return
    assert len(found) == axes and all(n > 0 and n % 2 == 0 for n in found)
    assert sum(found) == dim or (rule == "vjepa2" and 0 < dim - sum(found) < 2 * axes)
    assert found[1:] == found[-1:] * (axes - 1)  # only the first axis may differ
    if rule == "auto" and axes == 3:  # what is left over by thirds goes to the first
        assert 0 <= found[0] - found[1] < 6


def test_vjepa2_splits_as_in_transformers():
    theirs = importlib.import_module("transformers.models.vjepa2.modeling_vjepa2")
    from transformers import VJEPA2Config

    for dim in (32, 48, 64, 88):
        config = VJEPA2Config(hidden_size=2 * dim, num_attention_heads=2)
        module = theirs.VJEPA2RopeAttention(config, 2 * dim, 2)
        assert blocks(dim, 3, "vjepa2") == [module.d_dim, module.h_dim, module.w_dim]


def test_rotation_of_pixtral():
    """Its rows have every other step of the ladder of the whole head, columns those between."""
    theirs = importlib.import_module("transformers.models.pixtral.modeling_pixtral")
    from transformers import PixtralVisionConfig

    config = PixtralVisionConfig(hidden_size=32, num_attention_heads=1, head_dim=32)
    module = theirs.PixtralVisionRotaryEmbedding(config)
    x, pos = normal(1, 1, 40, 32, dtype=torch.float32), grid.coordinates((5, 8))
    wanted, _ = theirs.apply_rotary_pos_emb(x, x, *module(x, pos.mT))
    encoding, rates = on((8, 8), 32, 1), torch.tensor(theta(32), dtype=torch.float64)
    assert torch.equal(encoding.inv_freq, rates[::2].repeat(2))  # and here both axes have the same
    encoding = encoding.replace(inv_freq=torch.cat((rates[::2], rates[1::2])))
    torch.testing.assert_close(turned(encoding, x, pos), wanted, rtol=0, atol=2e-5)


def test_rotation_of_qwen2_vl_s_vision():
    theirs = importlib.import_module("transformers.models.qwen2_vl.modeling_qwen2_vl")
    x = normal(40, 3, 32, dtype=torch.float32)
    pos = grid.coordinates((5, 8))
    angle = pos[0, :, :, None].float() * torch.tensor(theta(16))
    cos, sin = (f(angle).flatten(1).repeat(1, 2) for f in (torch.cos, torch.sin))
    wanted, _ = theirs.apply_rotary_pos_emb_vision(x, x, cos, sin)
    got = turned(on((8, 8), 32, 3), x.transpose(0, 1)[None], pos)
    torch.testing.assert_close(got[0].transpose(0, 1), wanted, rtol=0, atol=2e-5)


def test_tables_of_dinov3():
    """Its coordinates are in turns, from -1 to 1: a scale and a shift of ours."""
    theirs = importlib.import_module("transformers.models.dinov3_vit.modeling_dinov3_vit")
    from transformers import DINOv3ViTConfig

    config = DINOv3ViTConfig(
        hidden_size=64, num_attention_heads=2, image_size=32, patch_size=4, rope_theta=100.0
    )
    module = theirs.DINOv3ViTRopePositionEmbedding(config).eval()
    cos, sin = module(torch.zeros(1, 3, 32, 32))
    pos = ((grid.coordinates((8, 8)) + 0.5) / 8 * 2 - 1) * 2 * math.pi
    ours = on((8, 8), 32, 2, base=100.0).cos_sin(pos, torch.float32, Context(False))
    for a, b in zip(ours, (cos, sin), strict=True):
        torch.testing.assert_close(a[0, 0].repeat(1, 2), b, rtol=0, atol=5e-6)


@pytest.mark.parametrize("shape", [PICTURE, CLIP])
@pytest.mark.parametrize("name", ["rope_axial", "rope_mixed", "mrope", "mrope_interleaved"])
def test_shifts_along_each_axis_and_all_together_change_no_score(name, shape):
    encoding = on(shape, name=name)
    pos = grid.coordinates((2, 3, 4)[-len(shape) :])
    q, k = normal(1, 2, pos.shape[1], 24, seed=1), normal(1, 2, pos.shape[1], 24, seed=2)

    def scores(k_shift, q_shift):
        q_turned, k_turned = encoding.rotate(q, k, pos + q_shift, pos + k_shift, Context(False))
        return q_turned @ k_turned.mT

    plain = scores(0, 0)
    axes = len(shape)
    for shift in [*torch.eye(axes, dtype=torch.long), torch.arange(1, axes + 1)]:
        for c in (1, 7, 1000):
            torch.testing.assert_close(scores(c * shift, c * shift), plain, rtol=0, atol=1e-9)
        assert (scores(shift, 0) - plain).abs().max() > 1e-2  # and every axis counts


@pytest.mark.parametrize(("shape", "channels"), [(PICTURE, [12, 12]), (CLIP, [8, 8, 8])])
def test_with_other_axes_constant_it_is_rope_of_the_block(shape, channels):
    encoding, x = on(shape), normal(1, 2, 9, 24)
    first = 0
    for axis, dim in enumerate(channels):
        pos = torch.zeros(1, 9, len(shape), dtype=torch.long)
        pos[..., axis] = torch.arange(3, 12)
        got = turned(encoding, x, pos)
        pairs = list(range(first // 2, (first + dim) // 2))
        own = [*pairs, *(p + 12 for p in pairs)]
        one = scheme("rope", Geometry(dim * 2, 2, 2, 64))
        wanted = turned(one, x[..., own], torch.arange(3, 12)[None, :, None])
        assert torch.equal(got[..., own], wanted)
        others = [c for c in range(24) if c not in own]
        assert torch.equal(got[..., others], x[..., others])
        first += dim


def test_swapping_axes_permutes_blocks():
    x = normal(1, 2, 12, 24)
    for shape, order in ((PICTURE, [1, 0]), (CLIP, [2, 0, 1])):
        encoding, pos = on(shape), grid.coordinates((1, 3, 4)[-len(shape) :])
        each = 12 // len(order)
        halves = torch.arange(24).reshape(2, len(order), each)
        channels = halves[:, order].flatten()
        got = turned(encoding, x[..., channels], pos[..., order])
        assert torch.equal(got, turned(encoding, x, pos)[..., channels])


def test_a_key_may_have_larger_coordinates_than_its_query():
    """The last pixel of the row above comes first and stands further right."""
    encoding = on(PICTURE, 8, 1)
    q, k = normal(1, 1, 1, 8, seed=1), normal(1, 1, 1, 8, seed=2)
    at = torch.tensor([[[1, 0]]]), torch.tensor([[[0, 15]]])
    a, b = encoding.rotate(q, k, *at, Context(False))
    relative = slow(q, torch.tensor([[[1, -15]]]), [4, 4])
    torch.testing.assert_close((a * b).sum(), (relative * k).sum(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "dim", "split", "said"),
    [
        (PICTURE, 30, "auto", "heads of 30: posenc.split=auto on 2 axes needs 28 or 32"),
        (PICTURE, 2, "auto", "heads of 2: posenc.split=auto on 2 axes needs 4"),
        (PICTURE, 25, "auto", "heads of 25: posenc.split=auto on 2 axes needs 24 or 28"),
        (CLIP, 4, "auto", "posenc.split=auto on 3 axes needs 6"),
        (CLIP, 32, "equal", "posenc.split=equal on 3 axes needs 30 or 36"),
        (CLIP, 48, "hunyuan", "posenc.split=hunyuan on 3 axes needs 32 or 64"),
        (CLIP, 4, "vjepa2", "posenc.split=vjepa2 on 3 axes needs 6"),
        (PICTURE, 32, "hunyuan", "posenc.split=hunyuan is a rule for three axes"),
        (PICTURE, 32, [16, 14], r"posenc.split=\[16,14\]: .* heads of 32; .* not 30 in 2"),
        (PICTURE, 32, [16, 8, 8], r"needs 2 even numbers .* not 32 in 3"),
        (PICTURE, 32, [17, 15], r"not \[17, 15\]"),
        (PICTURE, 32, "thirds", "posenc.split=thirds: must be one of auto, equal, hunyuan, vjepa2"),
    ],
)
def test_refusals(shape, dim, split, said):
    with pytest.raises(ConfigError, match=said):
        on(shape, dim, split=split)


def test_text_has_too_few_axes():
    from oracles import run_config

    from posbench.model import build_posenc

    config = run_config("rope_axial")
    config.data = type("Text", (), {"name": "sotu"})()
    with pytest.raises(ConfigError, match=r"rope_axial needs positions of 2 or 3 axes.*sotu has 1"):
        build_posenc(config)
