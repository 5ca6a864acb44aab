"""Rescalings of schemes whose positions have several axes: each axis by its own extents."""

import math

import pytest
import torch
from oracles import RULES, normal, positions, rope, rule, scheme, theta

from posbench import grid, registry
from posbench.encodings.base import Context
from posbench.errors import ConfigError, NotRescalable, UnsupportedRescale
from posbench.settings import Geometry, changed, digest

PICTURE, CLIP = (16, 20), (4, 16, 16)
#: rules of frequencies and options that give something at these extents
LADDER = {
    "pi": {},
    "ntk": {},
    "ntk_old": {},
    "ntk_fixed": {},
    "ntk_mixed": {},
    "ntk_by_parts": {},
    "yarn": {},
    "yarn_paper": {},
    "llama3": {},
    "dynamic_ntk": {},
    "drope": {},
    "longrope": {"long_factor": [3.0], "short_factor": [1.5]},
}


def on(name, shape, growing=(), dim=48, **options):
    """A trained scheme on pictures or clips of a shape."""
    geometry = Geometry(2 * dim, 2, 2, math.prod(shape), 0, shape, growing)
    return scheme(name, geometry, **options)


def made(name, **options):
    given = LADDER[name] | options
    return rule(name, **(given if name in ("dynamic_ntk", "drope") else {"factor": "auto"} | given))


def under(trained, rescale, shape):
    train = trained.geometry.train_length
    return rescale.applied(trained.measured_at(shape), train, math.prod(shape))


def test_a_temperature_is_on_the_channels_that_turn():
    """Of 30 channels 28 turn; the two others keep their products."""
    shape = (16, 16)
    trained = on("rope_axial", shape, dim=30, split="vjepa2")
    plain, found = (under(trained, made(n), (32, 32)) for n in ("pi", "yarn"))
    assert len(found.inv_freq) == 14 and not found.norm_preserving
    pos = torch.cartesian_prod(torch.arange(32), torch.arange(32))[None, -40:]
    assert found.logit_scale(pos, pos, Context(False)) is None
    same = found.replace(inv_freq=plain.inv_freq)
    q, k = normal(1, 2, 40, 30, seed=1), normal(1, 2, 40, 30, seed=2)
    turned, scaled = (e.rotate(q, k, pos, pos, Context(False)) for e in (plain, same))
    size = 0.1 * math.log(2) + 1
    for a, b in zip(turned, scaled, strict=True):
        torch.testing.assert_close(b[..., :28], size * a[..., :28], rtol=0, atol=1e-12)
        assert torch.equal(b[..., 28:], a[..., 28:])


@pytest.mark.parametrize("name", LADDER)
def test_blocks_are_rope_of_their_size_rescaled_at_their_own_extents(name):
    for shape, test, sizes in (
        (PICTURE, (48, 25), [24, 24]),
        (CLIP, (32, 16, 20), [16, 16, 16]),
    ):
        found = under(on("rope_axial", shape), made(name), test)
        wanted = [
            made(name).applied(rope(dim, train), train, n)
            for dim, train, n in zip(sizes, shape, test, strict=True)
        ]
        assert torch.equal(found.inv_freq, torch.cat([one.inv_freq for one in wanted]))
        # the temperature once, of the axis that grows most: the first one in both
        assert found.logit_multiplier == wanted[0].logit_multiplier
        assert found.rotation_scale == wanted[0].rotation_scale


@pytest.mark.parametrize("scheme_name", ["mrope", "mrope_interleaved"])
@pytest.mark.parametrize("name", LADDER)
def test_one_ladder_gives_each_pair_the_numbers_of_its_axis(name, scheme_name):
    test, trained = (32, 16, 24), on(scheme_name, CLIP)
    found = under(trained, made(name), test)
    by_axis = [
        made(name).applied(rope(48, train), train, n).inv_freq
        for train, n in zip(CLIP, test, strict=True)
    ]
    place = torch.arange(24)
    assert trained.sections == ([6, 9, 9] if scheme_name == "mrope" else [10, 7, 7])
    if scheme_name == "mrope":
        axis = (place >= 6).long() + (place >= 15)
    else:
        axis = torch.where(place < 21, place % 3, 0)
    assert torch.equal(found.inv_freq, torch.stack(by_axis)[axis, place])


def test_in_closed_form():
    """pi divides by 2 and by 3; ntk keeps the first pair of a block and divides the last by s."""
    trained, test = on("rope_axial", (16, 16), dim=16), (32, 48)
    plain = theta(8)
    pi = under(trained, made("pi"), test).inv_freq
    assert pi.tolist() == pytest.approx([f / 2 for f in plain] + [f / 3 for f in plain], rel=1e-14)
    ntk = under(trained, made("ntk"), test).inv_freq
    wanted = [f * s ** (-2 * p / 6) for s in (2, 3) for p, f in enumerate(plain)]
    assert ntk.tolist() == pytest.approx(wanted, rel=1e-14)
    yarn = under(trained, made("yarn"), test)
    assert yarn.logit_multiplier == pytest.approx((0.1 * math.log(3) + 1) ** 2, rel=1e-14)


def test_only_axes_along_which_tests_grow():
    """Of clips the frames, also by a given factor; every axis where that is asked."""
    trained = on("rope_axial", CLIP, (True, False, False), 32)
    ratio = {
        (factor, axes): (
            under(trained, rule("pi", factor=factor, axes=axes), test).inv_freq / trained.inv_freq
        ).tolist()
        for factor, test in (("auto", (32, 16, 16)), (2.0, (4, 16, 16)))
        for axes in ("grown", "all")
    }
    assert ratio["auto", "grown"] == pytest.approx([1 / 8] * 6 + [1] * 10, rel=1e-14)
    assert ratio["auto", "all"] == pytest.approx([1 / 8] * 16, rel=1e-14)
    assert ratio[2.0, "grown"] == pytest.approx([1 / 2] * 6 + [1] * 10, rel=1e-14)
    assert ratio[2.0, "all"] == pytest.approx([1 / 2] * 16, rel=1e-14)
    photos = on("rope_axial", (16, 16), (True, True), 16)
    assert torch.equal(under(photos, rule("pi", factor=2.0), (16, 16)).inv_freq * 2,
                       photos.inv_freq)  # fmt: skip


@pytest.mark.parametrize("name", [n for n in LADDER if n != "drope"])
@pytest.mark.parametrize("scheme_name", ["rope_axial", "mrope", "mrope_interleaved"])
def test_at_the_extents_of_training_nothing_changes(name, scheme_name):
    options = {"short_factor": [1.0]} if name == "longrope" else {}
    for shape, test in ((PICTURE, PICTURE), (CLIP, CLIP), (CLIP, (2, 8, 16))):
        trained = on(scheme_name, shape)
        found = under(trained, made(name, **options), test)
        torch.testing.assert_close(found.inv_freq, trained.inv_freq, rtol=0, atol=0)
        assert found.logit_multiplier == 1.0


def test_a_picture_s_pairs_of_time_stay():
    trained = on("mrope", (16, 16))
    found = under(trained, rule("pi", factor=4.0, axes="all"), (64, 64))
    assert (trained.inv_freq / found.inv_freq).tolist() == pytest.approx([1] * 6 + [4] * 18)


@pytest.mark.parametrize("id", RULES)
@pytest.mark.parametrize("scheme_name", ["mrope", "mrope_interleaved"])
def test_on_text_every_rule_does_what_it_does_to_rope(id, scheme_name):
    name, options = RULES[id]
    geometry = Geometry(48, 2, 2, 16)
    q, k, v = (normal(1, 2, 40, 24, seed=s) for s in (1, 2, 3))
    pos, out = positions(40), []
    for one in ("rope", scheme_name):
        encoding = rule(name, **options).applied(scheme(one, geometry).measured_at((40,)), 16, 40)
        out.append(encoding.attend(q, k, v, pos, pos, Context(True)))
    assert torch.equal(*out)


@pytest.mark.parametrize("name", [n for n in LADDER if n not in ("longrope", "drope")])
def test_with_one_axis_all_is_grown(name):
    trained = rope(32, 64)
    grown, every = (made(name, axes=a).applied(trained, 64, 256) for a in ("grown", "all"))
    assert torch.equal(grown.inv_freq, every.inv_freq)
    assert grown.logit_multiplier == every.logit_multiplier


def test_the_option_shows_only_where_it_is_set():
    plain, every = rule("yarn", factor=8), rule("yarn", factor=8, axes="all")
    assert plain.options == [] and every.options == ["axes=all"]
    assert digest(changed(plain.config)) == digest({"name": "yarn", "factor": 8})
    with pytest.raises(ConfigError, match="rescale.axes=some: must be one of grown, all"):
        rule("pi", axes="some")


@pytest.mark.parametrize("axes", ["grown", "all"])
def test_mixed_shrinks_its_coordinates_under_pi(axes):
    trained = on("rope_mixed", CLIP, (True, False, False), 24)
    found = under(trained, made("pi", axes=axes), (32, 16, 16))
    x, pos = normal(1, 2, 60, 24), grid.coordinates((3, 4, 5)) * 2
    by = torch.tensor([8, 1, 1] if axes == "grown" else [8, 8, 8])
    for layer in (0, 1):
        got = found.rotate(x, x, pos, pos, Context(False, layer))[0]
        wanted = trained.rotate(x, x, pos / by, pos / by, Context(False, layer))[0]
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    assert found.frequencies is trained.frequencies


@pytest.mark.parametrize("name", [n for n in LADDER if n not in ("pi", "drope")])
def test_mixed_has_no_ladder(name):
    with pytest.raises(NotRescalable, match=f"rope_mixed cannot be rescaled by {name}"):
        under(on("rope_mixed", CLIP), made(name), (32, 16, 16))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rerope", {}),
        ("leaky_rerope", {}),
        ("self_extend", {}),
        ("logn", {}),
        ("dynamic_ntk", {"mode": "incremental"}),
    ],
)
@pytest.mark.parametrize("scheme_name", ["rope_axial", "rope_mixed", "mrope"])
def test_what_counts_tokens_is_refused_on_coordinates(name, options, scheme_name):
    for shape, test in (((16, 16), (32, 32)), (CLIP, (8, 16, 16)), (CLIP, CLIP)):
        trained = on(scheme_name, shape, dim=24)
        with pytest.raises(UnsupportedRescale, match=f"{scheme_name} cannot be rescaled by {name}"):
            under(trained, rule(name, **options), test)


@pytest.mark.parametrize("name", ["rerope", "self_extend", "logn", "yarn"])
def test_schemes_that_see_the_raster_index_are_rescaled_as_on_text(name):
    shape, test = (4, 4), (8, 8)
    q, k, v = (normal(1, 2, 64, 8, seed=s) for s in (1, 2, 3))
    pos, out = positions(64), []
    for geometry in (Geometry(16, 2, 2, 16, 0, shape), Geometry(16, 2, 2, 16)):
        trained = scheme("rope", geometry).measured_at(test)
        out.append(rule(name).applied(trained, 16, 64).attend(q, k, v, pos, pos, Context(True)))
    assert torch.equal(*out)


def test_without_the_extents_of_the_test_it_is_refused():
    for name in ("rope_axial", "mrope", "rope_mixed"):
        with pytest.raises(UnsupportedRescale, match=f"{name} cannot be rescaled by pi: the exten"):
            rule("pi").applied(on(name, CLIP, dim=24), 1024, 4096)


def test_rules_whose_formula_gives_nothing_for_a_small_block():
    with pytest.raises(UnsupportedRescale, match="rescale=ntk needs a rotary size of at least 4"):
        under(on("rope_axial", CLIP, dim=6), made("ntk"), (8, 16, 16))
    with pytest.raises(UnsupportedRescale, match=r"rescale.beta=auto \(0.0625 at L = 4\)"):
        under(on("rope_axial", CLIP), made("yarn", beta="auto"), (8, 16, 16))


def test_the_trained_scheme_is_left_alone():
    for name in ("rope_axial", "rope_mixed", "mrope"):
        trained = on(name, CLIP, dim=24)
        x, pos = normal(1, 2, 60, 24), grid.coordinates((3, 4, 5))
        before = trained.rotate(x, x, pos, pos, Context(False))[0]
        found = under(trained, rule("pi"), (8, 32, 32))
        assert found is not trained and trained.test_shape == ()
        assert torch.equal(trained.rotate(x, x, pos, pos, Context(False))[0], before)
        moved = found.rotate(x, x, pos, pos, Context(False))[0]
        assert (moved - before).abs().max() > 1e-3


def test_every_rule_of_frequencies_is_here():
    names = registry.names("rescale")
    acting = {n for n in names if registry.get("rescale", n).acts_on == "frequencies"}
    assert acting == {*LADDER, "drope"}  # drope: the same on every axis, see its own tests
