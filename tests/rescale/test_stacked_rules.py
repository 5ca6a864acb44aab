"""Several rescalings at once, and options that only a user can give."""

import math

import pytest
import torch
from oracles import (
    normal,
    positions,
    rope,
    rule,
    scheme,
    shape,
    slow_attention,
    theta,
    tiny_model,
    tokens,
)

from posbench import registry
from posbench.encodings.base import Context
from posbench.errors import ConfigError, UnsupportedRescale

L, TEST = 16, 48
CLOSE = {"rtol": 0, "atol": 1e-10}


def stack(*parts, **options):
    return rule("stack", parts=list(parts), options=options)


def attend(encoding, n=TEST, seed=1):
    q, k, v = (normal(1, 4, n, 8, seed=seed + s) for s in range(3))
    pos = positions(n)
    with torch.no_grad():
        return encoding.attend(q, k, v, pos, pos, Context(True))


def test_the_released_rerope_one_query_at_a_time():
    """rerope and logn: q turned by min(i - j, w), scores times max(1, ln(i + 1) / ln L)."""
    found = rule("stack").applied(scheme("rope", shape(32, 4, L)), L, TEST)
    q, k, v = (normal(1, 4, TEST, 8, seed=1 + s) for s in range(3))
    frequencies, rows = theta(8), []
    for i in range(TEST):
        turned = k[:, :, : i + 1].clone()
        for j in range(i + 1):  # <R^a q, k> = <q, R^-a k>
            for p, f in enumerate(frequencies):
                angle = -min(i - j, L // 2) * f
                a, b = k[:, :, j, p], k[:, :, j, p + 4]
                turned[:, :, j, p] = a * math.cos(angle) - b * math.sin(angle)
                turned[:, :, j, p + 4] = b * math.cos(angle) + a * math.sin(angle)
        scale = max(1.0, math.log(i + 1) / math.log(L))
        one = q[:, :, i : i + 1]
        rows.append(slow_attention(one, turned, v[:, :, : i + 1], scale=scale))
    torch.testing.assert_close(attend(found), torch.cat(rows, 2), **CLOSE)


@pytest.mark.parametrize("frequencies", ["pi", "yarn", "longrope", "dynamic_ntk"])
@pytest.mark.parametrize("positions_", ["rerope", "leaky_rerope", "self_extend"])
def test_the_order_of_the_parts_does_not_matter(frequencies, positions_):
    parts = [frequencies, positions_, "logn"]
    options = {"longrope": {"long_factor": [3.0]}} if frequencies == "longrope" else {}
    trained = scheme("rope", shape(32, 4, L))
    one_by_one = trained
    for name in parts:
        own = registry.get("rescale", name)
        config = own.Config(**options.get(name, {}))
        one_by_one = own(config).applied(one_by_one, L, TEST)
    wanted = attend(one_by_one)
    for order in (parts, parts[::-1], parts[1:] + parts[:1]):
        found = stack(*order, **options).applied(trained, L, TEST)
        torch.testing.assert_close(attend(found), wanted, **CLOSE)
    for left_out in parts:
        rest = [name for name in parts if name != left_out]
        own = {k: v for k, v in options.items() if k in rest}
        other = attend(stack(*rest, **own).applied(trained, L, TEST))
        assert (other - wanted).abs().max() > 1e-3


def test_incremental_frequencies_wrap_the_other_parts():
    """Row i is the last row of a full pass over i + 1 tokens, under all three."""
    parts = ("dynamic_ntk", "rerope", "logn")
    trained = scheme("rope", shape(32, 4, L))
    step = stack(*parts, dynamic_ntk={"mode": "incremental"}).applied(trained, L, TEST)
    q, k, v = (normal(1, 4, TEST, 8, seed=1 + s) for s in range(3))
    got = attend(step)
    for n in (1, L, L + 1, 2 * L, TEST):
        full = stack(*parts).applied(trained, L, n)
        pos = positions(n)
        one = full.attend(*(x[:, :, :n] for x in (q, k, v)), pos, pos, Context(True))
        torch.testing.assert_close(got[:, :, n - 1], one[:, :, -1], **CLOSE)


def test_every_part_acts_where_it_can_in_a_pattern_of_layers():
    """log-n also in layers that do not rotate."""
    model = tiny_model("layers", options={"pattern": ["rope", "none"]}, train_length=L).double()
    found = rule("stack").applied(model.posenc, L, TEST)
    hooks = [found.for_layer(i)[0].hooks for i in (0, 1)]
    assert hooks == [{"rotate", "relative_position", "logit_scale"}, {"logit_scale"}]
    with torch.no_grad():
        assert model.hidden(tokens(TEST), found).isfinite().all()


def test_a_refusal_of_a_part_is_the_stacks():
    for name in ("alibi", "none", "path", "fox"):
        wanted = f"{name} cannot be rescaled by rerope: it is not rotary"
        with pytest.raises(UnsupportedRescale, match=wanted):
            rule("stack").applied(scheme(name), 40, 80)
    with pytest.raises(UnsupportedRescale, match="self_extend with .* reaches at most 72 tokens"):
        stack("self_extend", "logn").applied(rope(8, 16), 16, 73)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["pi", "ntk"], "pi and ntk both act on frequencies"),
        (["pi", "logn", "yarn_paper"], "pi and yarn_paper both act on frequencies"),
        (["rerope", "logn", "self_extend"], "rerope and self_extend both act on positions"),
        (["logn", "logn"], "logn and logn both act on scores"),
        (["yarn"], "name two or more rescalings"),
        ([], "name two or more rescalings"),
    ],
)
def test_refused_parts(parts, message):
    with pytest.raises(ConfigError) as refused:
        stack(*parts)
    assert str(refused.value) == f"rescale.parts={parts}: {message}"


def test_refused_options():
    with pytest.raises(ConfigError, match=r"rescale.parts=stack: cannot be a part of itself"):
        stack("pi", "stack")
    with pytest.raises(
        ConfigError, match=r"rescale.parts=invented is unknown; known: drope, dynamic_ntk, "
    ):
        stack("pi", "invented")
    with pytest.raises(ConfigError, match=r"rescale.options=yarn is unknown; known: pi, logn"):
        stack("pi", "logn", yarn={"factor": 8})
    with pytest.raises(ConfigError, match=r"rescale.options.pi=fator is unknown \(did you mean"):
        stack("pi", "logn", pi={"fator": 8})
    with pytest.raises(ConfigError, match=r"rescale.options.pi=8: write {option: value}"):
        stack("pi", "logn", pi=8)
    with pytest.raises(ConfigError, match=r"rescale.options.yarn.alpha=x: 'x' is not a number"):
        stack("yarn", "logn", yarn={"alpha": "x"})
    with pytest.raises(ConfigError, match=r"rescale.factor=0.5: must be at least 1"):
        stack("pi", "logn", pi={"factor": 0.5})


def test_names_numbers_and_what_follows_the_length():
    found = stack("yarn", "self_extend", "logn", yarn={"factor": 8, "beta": "auto"})
    assert found.options == ["yarn@8+self_extend+logn", "yarn.beta=auto"]
    assert found.label == "stack" and found.factor == ""
    assert found.scale(128, 1024) == 8 * 16
    assert found.depends_on_total_length  # self_extend picks its group
    fixed = stack("yarn", "logn", yarn={"factor": 8})
    assert fixed.options == ["yarn@8+logn"] and not fixed.depends_on_total_length
    assert rule("stack").options == ["rerope+logn"]
    assert stack("yarn", "logn").options == ["yarn@auto+logn"]
    assert rule("yarn", factor=8, beta="auto").label == "yarn@8"
    assert rule("yarn", factor=8, beta="auto").options == ["beta=auto"]


def test_lists_are_named_by_their_numbers():
    names = [rule("longrope", long_factor=own).options for own in ([1.0, 2.0], [1.0, 3.0])]
    assert names[0] != names[1]
    (word,) = names[0]
    assert word.startswith("long_factor=#") and "," not in word and " " not in word


@pytest.mark.parametrize("name", ["logn", "path"])
def test_what_is_there_already_is_not_added_again(name):
    parts = {"parts": ["rope", "logn"]} if name == "logn" else {}
    trained = scheme("stack" if parts else name, **parts)
    label = "rope\\+logn" if parts else name
    with pytest.raises(UnsupportedRescale, match=f"{label} cannot be rescaled by logn"):
        rule("logn").applied(trained, 40, 80)


@pytest.mark.parametrize(
    "name", ["none", "alibi", "kerple_log", "sinusoidal", "fox", "stick_breaking"]
)
def test_logn_acts_on_schemes_of_every_kind(name):
    model = tiny_model(name, train_length=L).double()
    found = rule("logn").applied(model.posenc, L, TEST)
    with torch.no_grad():
        plain, got = model.hidden(tokens(TEST)), model.hidden(tokens(TEST), found)
    torch.testing.assert_close(got[:, :L], plain[:, :L], rtol=0, atol=1e-5)
    assert (got - plain)[:, L:].abs().max() > 1e-3


# --- factors of longrope --------------------------------------------------------------------------


def test_longrope_refuses_without_its_factors():
    for n in (8, 64, 256):
        with pytest.raises(ConfigError) as refused:
            rule("longrope", long_factor=None).applied(rope(32, 64), 64, n)
        assert str(refused.value) == (
            "rescale.long_factor must be given: rescale=longrope needs 16, one for each rotary "
            "pair, or one for all"
        )
        assert not isinstance(refused.value, UnsupportedRescale)


def test_longrope_refuses_other_numbers_of_factors():
    own = {"long_factor": [1.0] * 16, "short_factor": [1.0] * 16}
    for option in own:
        with pytest.raises(ConfigError, match=f"rescale.{option} holds 8 numbers: .* needs 16"):
            rule("longrope", **{**own, option: [1.0] * 8}).applied(rope(32, 64), 64, 128)
    for option in own:
        for wrong in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ConfigError, match=f"rescale.{option}=.*: must be above 0"):
                rule("longrope", **{**own, option: [1.0] * 15 + [wrong]})
    with pytest.raises(ConfigError, match=r"rescale.long_factor: \[1\] is not a number"):
        rule("longrope", long_factor=[1.0, [1]])


def test_the_pairs_of_a_partial_rotation_are_what_longrope_counts():
    trained = scheme("partial_rope", shape(64, 2, 64), rotary_fraction=0.25)
    with pytest.raises(ConfigError, match="needs 4, one for each rotary pair"):
        rule("longrope", long_factor=[1.0] * 16).applied(trained, 64, 128)
    found = rule("longrope", long_factor=[1.0, 2.0, 3.0, 4.0]).applied(trained, 64, 128)
    wanted = [f / n for f, n in zip(theta(8), (1, 2, 3, 4), strict=True)]
    assert found.inv_freq.tolist() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("dim", [2, 4, 64])
def test_the_example_of_longrope_fits_and_is_that_of_ntk(dim):
    cls = registry.get("rescale", "longrope")
    found = rule("longrope", **cls.example(dim)).applied(rope(dim, 64), 64, 128)
    if dim == 2:
        assert found.inv_freq.tolist() == [1.0]
    else:
        wanted = rule("ntk", factor=4).applied(rope(dim, 64), 64, 128).inv_freq
        torch.testing.assert_close(found.inv_freq, wanted, rtol=1e-12, atol=0)
    assert cls.Config().long_factor is None


@pytest.mark.parametrize("name", ["longrope", "yarn"])
def test_an_attention_factor_is_the_whole_factor(name):
    own = {"long_factor": [1.0]} if name == "longrope" else {}
    for factor in (1.0, 4.0, "auto"):
        found = rule(name, factor=factor, attention_factor=1.5, **own)
        assert found.applied(rope(8, 64), 64, 256).logit_multiplier == 1.5**2
    for wrong in (0.0, -1.0, math.inf):
        with pytest.raises(ConfigError, match=r"rescale.attention_factor=.*: must be above 0"):
            rule(name, attention_factor=wrong, **own)


def test_refused_temperatures_of_yarn():
    with pytest.raises(ConfigError, match=r"rescale.attention_factor=1 is the whole factor"):
        rule("yarn", attention_factor=1.0, mscale=0.7)
    with pytest.raises(ConfigError, match=r"rescale.mscale=-1 and .*: must be at least 0"):
        rule("yarn", mscale=-1.0)
    for b in (-0.1, math.inf, math.nan):
        with pytest.raises(ConfigError, match=r"rescale.b=.*: must be at least 0"):
            rule("ntk_mixed", b=b)


def test_a_refusal_of_one_layer_refuses_the_whole():
    """What one part refuses by its sizes is not passed over as if it were no rotation."""
    options = {"partial_rope": {"rotary_fraction": 0.25}}
    mixed = {"pattern": ["rope", "partial_rope"], "options": options}
    encoding = scheme("layers", shape(32, 4, 16), **mixed)
    with pytest.raises(UnsupportedRescale, match="rotary size of at least 4, not 2"):
        rule("ntk").applied(encoding, 16, 64)
    assert rule("pi").applied(encoding, 16, 64) is not encoding
    no_rotation = scheme("layers", shape(32, 4, 16), pattern=["rope", "none"])
    assert rule("ntk").applied(no_rotation, 16, 64) is not no_rotation
