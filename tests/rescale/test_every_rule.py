"""What holds for every rescaling: no change at scale 1, causality, no state, refusals.

One file: every test runs over the same list of rescalings and their options.
"""

import dataclasses
import math

import pytest
import torch
from oracles import (
    RULES,
    SCHEMES,
    STATIC,
    normal,
    positions,
    rope,
    rule,
    scheme,
    shape,
    theta,
    tiny_model,
    tokens,
)

from posbench import registry
from posbench.encodings.base import Context
from posbench.errors import ConfigError, UnsupportedRescale

L = 16
NAMES = registry.names("rescale")


def cls(id):
    return registry.get("rescale", RULES[id][0])


TAKES_FACTOR = [
    name for name in NAMES if any(f.name == "factor" for f in dataclasses.fields(cls(name).Config))
]
#: rules whose numbers follow from s alone; longrope's are the user's, whatever s
BY_SCALE = [name for name in TAKES_FACTOR if name != "longrope"]
#: those that only a rotary scheme can have
ROTARY = [id for id in RULES if cls(id).acts_on not in ("nothing", "scores", "keys")]
FREQUENCIES = [id for id in STATIC if cls(id).acts_on == "frequencies"]


def make(id, **options):
    name, own = RULES[id]
    return rule(name, **{**own, **options})


def untouched(found, trained):
    torch.testing.assert_close(found.inv_freq, trained.inv_freq, rtol=0, atol=0)
    assert found.logit_multiplier == trained.logit_multiplier == 1.0
    pos = positions(64, 1000)
    for dtype in (torch.float32, torch.float64):
        tables = [e.cos_sin(pos, dtype, Context(True)) for e in (found, trained)]
        for a, b in zip(*tables, strict=True):
            assert torch.equal(a, b)


LADDERS = [(8, 16, 10000.0), (64, 128, 10000.0), (64, 128, 72.0), (32, 2048, 500000.0)]


@pytest.mark.parametrize("name", BY_SCALE)
@pytest.mark.parametrize(("dim", "length", "base"), LADDERS)
def test_factor_1_is_the_trained_model_exactly(name, dim, length, base):
    trained = rope(dim, length, base)
    untouched(rule(name, factor=1).applied(trained, length, 8 * length), trained)


@pytest.mark.parametrize("id", ["none", "dynamic_ntk", "dynamic_ntk-alpha2"])
@pytest.mark.parametrize(("dim", "length", "base"), LADDERS)
def test_up_to_the_trained_length_nothing_changes(id, dim, length, base):
    trained = rope(dim, length, base)
    for n in (1, length // 2, length):
        untouched(make(id).applied(trained, length, n), trained)


@pytest.mark.parametrize("id", ["self_extend", "leaky_rerope", "window", "window-sinks"])
def test_up_to_the_trained_length_the_model_is_left_as_it_is(id):
    trained = rope(16, L)
    for n in (1, L // 2, L):
        assert make(id).applied(trained, L, n) is trained


@pytest.mark.parametrize("name", TAKES_FACTOR)
@pytest.mark.parametrize(("dim", "length", "base"), LADDERS)
def test_auto_changes_nothing_up_to_the_trained_length(name, dim, length, base):
    trained, auto = rope(dim, length, base), make(name, factor="auto")
    for n in (1, length // 2, length):
        assert auto.scale(length, n) == 1.0
        untouched(auto.applied(trained, length, n), trained)


@pytest.mark.parametrize("name", BY_SCALE)
def test_auto_is_the_factor_of_the_length(name):
    trained = rope(32, 64)
    for times in (1.5, 2, 8, 128):
        auto = rule(name, factor="auto").applied(trained, 64, int(64 * times))
        given = rule(name, factor=times).applied(trained, 64, 7)  # a factor ignores the length
        assert torch.equal(auto.inv_freq, given.inv_freq)
        assert auto.logit_multiplier == given.logit_multiplier
    assert rule(name, factor="auto").factor == "auto"
    assert rule(name, factor=8).factor == rule(name, factor=8.0).factor == "8"
    assert rule(name, factor=2.5).factor == "2.5"


@pytest.mark.parametrize("base", [10000.0, 72.0])
def test_dynamic_ntk_is_ntk_auto_bit_for_bit(base):
    trained = rope(32, 128, base)
    for n in (64, 128, 129, 256, 1000, 16384):
        full = rule("dynamic_ntk").applied(trained, 128, n)
        auto = rule("ntk", factor="auto").applied(trained, 128, n)
        assert torch.equal(full.inv_freq, auto.inv_freq)
        assert full.logit_multiplier == auto.logit_multiplier == 1.0
        assert rule("dynamic_ntk").scale(128, n) == rule("ntk", factor="auto").scale(128, n)


@pytest.mark.parametrize("factor", [2, 8])
def test_first_and_last_pair(factor):
    """In a ladder that reaches from 326 turns within L to 0.04."""
    trained = rope(64, 2048)
    ratio = {
        name: rule(name, factor=factor).applied(trained, 2048, 2048).inv_freq / trained.inv_freq
        for name in BY_SCALE
    }
    assert set(ratio["pi"].tolist()) == {1 / factor}
    by_parts = {"ntk_by_parts": 9, "yarn": 9, "yarn_paper": 9, "llama3": 16}
    #: name -> pairs that are kept, and the share of ln s by which the last one is divided
    wanted = {"ntk": (1, 1), "ntk_old": (1, 62 / 64), "ntk_fixed": (0, 1), "ntk_mixed": (0, 1)}
    for name, (kept, last) in (wanted | {k: (v, 1) for k, v in by_parts.items()}).items():
        found = ratio[name]
        assert bool((found.diff() <= 1e-15).all()), name
        assert found[:kept].tolist() == pytest.approx([1.0] * kept, rel=1e-14), name
        assert float(found[kept]) < 1 - 1e-3, name
        assert float(found[-1]) == pytest.approx(factor**-last, rel=1e-12), name
    turns = 2048 * trained.inv_freq / (2 * math.pi)
    for name, beta in (("ntk_by_parts", 32), ("yarn_paper", 32), ("llama3", 4)):
        assert bool((ratio[name][turns >= beta] == 1).all())
        torch.testing.assert_close(
            ratio[name][turns <= 1], torch.full_like(turns[turns <= 1], 1 / factor)
        )
    assert torch.equal(ratio["yarn_paper"], ratio["ntk_by_parts"])


def test_ntk_in_closed_form():
    found = rule("ntk", factor=8).applied(rope(16, 64, 500.0), 64, 64).inv_freq
    wanted = [f * 8 ** (-2 * p / 14) for p, f in enumerate(theta(16, 500.0))]
    assert found.tolist() == pytest.approx(wanted, rel=1e-12)


def test_ntk_old_is_rope_with_a_larger_base():
    found = rule("ntk_old", factor=8).applied(rope(16, 64, 500.0), 64, 64).inv_freq
    assert found.tolist() == pytest.approx(theta(16, 8 * 500.0), rel=1e-12)


@pytest.mark.parametrize("name", ["yarn", "yarn_paper", "ntk_by_parts"])
def test_scaled_beta_keeps_the_share_of_the_ladder(name):
    """beta=auto is 32 at 2,048 tokens; at 128 it is 2."""
    trained = rope(64, 128)
    auto = rule(name, beta="auto").applied(trained, 128, 128)
    two = rule(name, beta=2).applied(trained, 128, 128)
    assert torch.equal(auto.inv_freq, two.inv_freq)
    fixed = rule(name).applied(trained, 128, 128)
    assert not torch.allclose(auto.inv_freq, fixed.inv_freq)
    long = rope(64, 2048)
    same = [rule(name, beta=b).applied(long, 2048, 2048).inv_freq for b in ("auto", 32)]
    assert torch.equal(*same)


def test_scaled_beta_of_llama3():
    """4 at 8,192 tokens; below 2,048 it would be less than one turn."""
    for length, beta in ((8192, 4), (4096, 2)):
        long = rope(64, length)
        same = [rule("llama3", beta=b).applied(long, length, length) for b in ("auto", beta)]
        assert torch.equal(same[0].inv_freq, same[1].inv_freq)
    with pytest.raises(UnsupportedRescale, match=r"rescale.beta=auto \(0.0625 at L = 128\)"):
        rule("llama3", beta="auto").applied(rope(64, 128), 128, 256)


def test_cut_offs_are_finite():
    with pytest.raises(ConfigError, match="rescale.beta=inf: need 0 < alpha < beta"):
        rule("yarn", beta=math.inf).applied(rope(64, 128), 128, 256)


def test_cut_offs_of_yarn_may_lie_past_the_last_pair():
    """Only the head size less one bounds them, as in the released code: here from 2 to 6 of 4."""
    trained = rope(8, 2048, 72.0)
    found = rule("yarn", factor=4).applied(trained, 2048, 2048)
    kept = torch.tensor([1, 1, 1, 0.75], dtype=torch.float64)
    wanted = trained.inv_freq * (kept + (1 - kept) / 4)
    torch.testing.assert_close(found.inv_freq, wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("alpha", [12.0, 20.0])
def test_pairs_below_alpha_are_interpolated_by_yarn(alpha):
    """At 64 tokens no pair turns more than 10.2 times, so all of them stand below alpha."""
    trained = rope(32, 64)
    found = rule("yarn", alpha=alpha, factor=4).applied(trained, 64, 64)
    torch.testing.assert_close(found.inv_freq[1:], trained.inv_freq[1:] / 4)


@pytest.mark.parametrize("id", RULES)
def test_the_trained_encoding_is_left_alone(id):
    trained = rope(16, L)
    before, hooks = trained.inv_freq.clone(), trained.hooks
    found = make(id).applied(trained, L, 4 * L)
    assert torch.equal(trained.inv_freq, before)
    assert trained.logit_multiplier == 1.0 and trained.hooks == hooks
    assert (found is trained) == (id == "none")


@pytest.mark.parametrize("id", ROTARY)
@pytest.mark.parametrize("name", [n for n in SCHEMES if "rotate" not in scheme(n).hooks])
def test_schemes_that_are_not_rotary_refuse(id, name):
    """At every length, so that a row is a refusal as a whole."""
    trained, rescale = scheme(name), make(id)
    named = next((p.name for p in getattr(rescale, "parts", ()) if p.acts_on == "positions"), "")
    for n in (20, 40, 80):
        with pytest.raises(UnsupportedRescale) as refused:
            rescale.applied(trained, 40, n)
        by = named or RULES[id][0]
        assert str(refused.value) == f"{name} cannot be rescaled by {by}: it is not rotary"


@pytest.mark.parametrize("name", SCHEMES)
def test_none_leaves_every_scheme_as_it_is(name):
    trained = scheme(name)
    assert rule("none").applied(trained, 40, 80) is trained


@pytest.mark.parametrize("id", RULES)
def test_no_output_depends_on_a_later_token(id):
    model = tiny_model("rope", train_length=L).double()
    length = 2 * L
    posenc = make(id).applied(model.posenc, L, length)
    ids = tokens(length, batch=1)
    stream = model.tokens(ids).detach().requires_grad_()
    model.tokens = lambda ids: stream
    out = model.hidden(ids, posenc)
    probe = normal(32)
    for i in (0, 3, L - 1, L, length - 1):
        (grad,) = torch.autograd.grad(out[0, i] @ probe, stream, retain_graph=True)
        seen = grad[0].abs().amax(-1)
        assert torch.equal(seen[i + 1 :], torch.zeros_like(seen[i + 1 :]))
        # two layers of L keys; the first key is its own query's alone
        unseen = {"window": max(0, i - 2 * (L - 1)), "first_key_masked": min(i, 1)}
        first = unseen.get(id, 0)
        assert torch.equal(seen[:first], torch.zeros_like(seen[:first]))
        assert bool((seen[first : i + 1] > 0).all())


@pytest.mark.parametrize("id", RULES)
def test_a_common_shift_changes_no_score_where_declared_and_only_there(id):
    """At a fixed length; keys and values of unit vectors give the weights themselves."""
    encoding = make(id).applied(rope(16, 8), 8, 16)
    q, k = normal(1, 1, 16, 16, seed=1) * 2, normal(1, 1, 16, 16, seed=2)
    unit = torch.eye(16, dtype=torch.float64)[None, None]

    def logs(shift):
        pos = positions(16, shift)
        out = encoding.attend(q, k, unit, pos, pos, Context(False))
        return out.tril().clamp(min=1e-300).log()

    changes = [float((logs(shift) - logs(0)).abs().max()) for shift in (1, 7, 1000)]
    if encoding.shift_invariant:
        assert max(changes) < 1e-9
    else:
        assert min(changes[:2]) > 1e-3


@pytest.mark.parametrize("id", RULES)
def test_no_state_between_lengths(id):
    """A sweep in any order, from one rule object and one model."""
    lengths = [L // 2, L, 2 * L, 3 * L]

    def measured(model, rescale, n):
        with torch.no_grad():
            return model.hidden(tokens(n), rescale.applied(model.posenc, L, n))

    fresh = {n: measured(tiny_model("rope", train_length=L), make(id), n) for n in lengths}
    model, rescale = tiny_model("rope", train_length=L), make(id)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        for n in (lengths[i] for i in order):
            assert torch.equal(measured(model, rescale, n), fresh[n]), (order, n)
            assert torch.equal(measured(model, rescale, n), fresh[n]), (order, n)
    with torch.no_grad():  # one rescaled encoding, long and then short
        posenc = rescale.applied(model.posenc, L, 3 * L)
        short = model.hidden(tokens(L), posenc)
        model.hidden(tokens(3 * L), posenc)
        assert torch.equal(model.hidden(tokens(L), posenc), short)
        plain = model.hidden(tokens(L))
        assert torch.equal(plain, tiny_model("rope", train_length=L).hidden(tokens(L)))


def attention(encoding, q, k, v):
    rows, keys = q.shape[2], k.shape[2]
    k_pos = positions(keys)
    return encoding.attend(q, k, v, k_pos[:, keys - rows :], k_pos, Context(True))


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_incremental_dynamic_ntk_is_full_at_every_length(alpha):
    """Row i is the last row of a full pass over i + 1 tokens."""
    trained = scheme("rope", shape(32, 4, L))
    step = rule("dynamic_ntk", mode="incremental", alpha=alpha)
    full = rule("dynamic_ntk", alpha=alpha)
    q, k, v = (normal(2, 4, 3 * L, 8, seed=s) for s in (1, 2, 3))
    got = attention(step.applied(trained, L, 3 * L), q, k, v)
    for n in range(1, 3 * L + 1):
        one = attention(full.applied(trained, L, n), *(x[:, :, :n] for x in (q, k, v)))
        torch.testing.assert_close(got[:, :, n - 1], one[:, :, -1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("parts", ["rope", "rope fox", "rope sinusoidal", "rope alibi ssmax"])
def test_incremental_dynamic_ntk_in_a_model_of_one_layer(parts):
    """Also beside schemes that embed, read the stream, bias or scale."""
    names = parts.split()
    settings = {"posenc": "rope"}
    if len(names) > 1:
        settings = {"posenc": "stack", "options": {"parts": names}}
    model = tiny_model(**settings, n_layers=1, train_length=L).double()
    step = rule("dynamic_ntk", mode="incremental").applied(model.posenc, L, 3 * L)
    ids = tokens(3 * L)
    with torch.no_grad():
        got = model.hidden(ids, step)
        for n in (1, L, L + 1, 2 * L, 3 * L):
            full = rule("dynamic_ntk").applied(model.posenc, L, n)
            one = model.hidden(ids[:, :n], full)[:, -1]
            torch.testing.assert_close(got[:, n - 1], one, rtol=0, atol=1e-10)


@pytest.mark.parametrize("id", RULES)
def test_appended_tokens_change_earlier_ones_where_declared_and_only_there(id):
    model, rescale = tiny_model("rope", train_length=L).double(), make(id)
    ids = tokens(3 * L)

    def hidden(n):
        with torch.no_grad():
            return model.hidden(ids[:, :n], rescale.applied(model.posenc, L, n))

    changes = [
        float((hidden(n) - hidden(3 * L)[:, :n]).abs().max()) for n in (L - 1, L + 1, 2 * L + 1)
    ]
    if rescale.depends_on_total_length:
        assert max(changes) > 1e-3
    else:
        assert max(changes) < 1e-10


@pytest.mark.parametrize("id", FREQUENCIES)
def test_norms_are_kept(id):
    """The temperature acts on the scores, not on queries and keys."""
    encoding = make(id).applied(rope(16, 8), 8, 64)
    x, pos = normal(1, 2, 64, 16), positions(64)
    q, k = encoding.rotate(x, x, pos, pos, Context(True))
    torch.testing.assert_close(q.norm(dim=-1), x.norm(dim=-1), rtol=1e-12, atol=0)
    assert torch.equal(q[:, :, 0], x[:, :, 0])
    assert torch.equal(q, k)


@pytest.mark.parametrize("name", [n for n in NAMES if cls(n).reductions()])
def test_special_cases_are_the_other_rule(name):
    trained = scheme("rope", shape(32, 4, L))
    for case in cls(name).reductions():
        mine = cls(name)(cls(name).Config(**case.options))
        other = cls(case.equals)
        theirs = other(other.Config(**case.equal_options))
        for n in (L // 2, L, 5 * L):
            q, k, v = (normal(1, 4, n, 8, seed=s) for s in (1, 2, 3))
            got, wanted = (attention(r.applied(trained, L, n), q, k, v) for r in (mine, theirs))
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12, msg=case.case)


@pytest.mark.parametrize("name", TAKES_FACTOR)
@pytest.mark.parametrize("factor", [0.5, 0, -2, math.nan])
def test_a_factor_below_1_is_refused(name, factor):
    with pytest.raises(ConfigError, match=r"rescale.factor=.*: must be at least 1, or auto"):
        rule(name, factor=factor)


def test_an_infinite_factor_is_refused():
    with pytest.raises(ConfigError, match=r"rescale.factor=inf"):
        rule("pi", factor=math.inf)


@pytest.mark.parametrize("name", TAKES_FACTOR)
def test_a_factor_that_is_a_word_is_refused(name):
    with pytest.raises(ConfigError, match=r"rescale.factor=big: a number of at least 1, or auto"):
        rule(name, factor="big")


@pytest.mark.parametrize("name", [n for n in NAMES if n not in TAKES_FACTOR])
def test_rules_without_a_factor(name):
    with pytest.raises(TypeError):
        rule(name, factor=8)
    assert rule(name).factor == ""
    assert rule(name).scale(L, L) == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_registered_rules_describe_themselves(name):
    found = cls(name)
    assert found.name == name
    assert found.Config().name == name
    assert found.family in ("rescaling", "position map", "temperature", "combined", "reference")
    sources = ("arXiv:", "kexue.fm/archives/")
    assert name in ("none", "stack") or found.paper.startswith(sources)
    assert name == "none" or any(source in found.__doc__ for source in sources)
