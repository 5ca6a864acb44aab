"""Position maps, score by score from their formulas, on every kind of rotary scheme.

One file: the maps share one slow loop and one list of schemes that they act on.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    alibi_slopes,
    golden,
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

from posbench import attention
from posbench.encodings.base import Context
from posbench.errors import ConfigError, UnsupportedRescale

HEADS, WIDTH, L = 2, 8, 16
MAPS = ("rerope", "leaky_rerope", "self_extend")
CLOSE = {"rtol": 0, "atol": 1e-12}

#: name -> (distance of query i and key j that is rotated by, options)
FORMULAS = {
    "rerope": (lambda i, j: min(i - j, 4), {"window": 4}),
    "rerope-auto": (lambda i, j: min(i - j, L // 2), {}),
    "leaky_rerope": (
        lambda i, j: i - j if i - j < 4 else 4 + (i - j - 4) / 2.5,
        {"window": 4, "k": 2.5},
    ),
    "leaky_rerope-auto": (lambda i, j: i - j if i - j < 8 else 8 + (i - j - 8) * 7 / 31, {}),
    "self_extend": (
        lambda i, j: i - j if i - j < 6 else i // 3 + 6 - 2 - j // 3,
        {"window": 6, "group": 3},
    ),
    "self_extend-auto": (lambda i, j: i - j if i - j < 8 else i // 4 + 8 - 2 - j // 4, {}),
}
#: the test length that the formulas with `auto` above are for
TEST = 40

#: scheme -> (frequencies, decay of every pair over one token, its options)
BASES = {
    "rope": (theta(WIDTH), [1.0] * 4, {}),
    "partial_rope": (theta(4), [1.0] * 2, {"rotary_fraction": 0.5}),
    "p_rope": ([*theta(WIDTH)[:2], 0.0, 0.0], [1.0] * 4, {"rotary_fraction": 0.5}),
    "xpos": (
        theta(WIDTH),
        [((p / 4 + 0.4) / 1.4) ** (1 / 30) for p in range(4)],
        {"scale_base": 30},
    ),
    # here one centre serves two tokens
    "xpos-narrow": (
        theta(WIDTH),
        [((p / 4 + 0.4) / 1.4) ** 24 for p in range(4)],
        {"scale_base": 1 / 24},
    ),
}


def trained(case):
    name = case.split("-")[0]
    return scheme(name, shape(HEADS * WIDTH, HEADS, L), **BASES[case][2])


def mapped(id, encoding, length=TEST):
    return rule(id.split("-")[0], **FORMULAS[id][1]).applied(encoding, L, length)


def score(q, k, distance, frequencies, decays):
    """q . k under a rotation of the first channels by a distance, in plain numbers."""
    half = len(frequencies)
    total = sum(a * b for a, b in zip(q[2 * half :], k[2 * half :], strict=True))
    for p, (frequency, decay) in enumerate(zip(frequencies, decays, strict=True)):
        product = complex(q[p], q[p + half]) * complex(k[p], k[p + half]).conjugate()
        turned = product * complex(math.cos(distance * frequency), math.sin(distance * frequency))
        total += turned.real * decay**distance
    return total


def slow(q, k, v, at, distance, frequencies, decays, slopes=(0.0, 0.0)):
    """Causal attention, one pair after the other; the queries are the last ones."""
    out = torch.zeros(*q.shape, dtype=torch.float64)
    before = k.shape[2] - q.shape[2]
    for b in range(q.shape[0]):
        for h in range(HEADS):
            for r in range(q.shape[2]):
                i = at[before + r]
                scores = [
                    score(
                        q[b, h, r].tolist(),
                        k[b, h, j].tolist(),
                        distance(i, at[j]),
                        frequencies,
                        decays,
                    )
                    / math.sqrt(WIDTH)
                    - slopes[h] * (i - at[j])
                    for j in range(before + r + 1)
                ]
                weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
                out[b, h, r] = weights @ v[b, h, : before + r + 1].double()
    return out


def qkv(rows, keys, dtype=torch.float64):
    sizes = ((rows, 1), (keys, 2), (keys, 3))
    return [normal(1, HEADS, n, WIDTH, seed=s).to(dtype) for n, s in sizes]


def attend(encoding, q, k, v, at):
    pos = torch.tensor(at)[None, :, None]
    with torch.no_grad():
        return encoding.attend(q, k, v, pos[:, -q.shape[2] :], pos, Context(False))


PLACES = {
    "consecutive": list(range(TEST)),
    "later": list(range(1000, 1000 + TEST)),
    "gaps": [i + i // 3 + 2 * (i > 20) for i in range(TEST)],
}


@pytest.mark.parametrize("id", FORMULAS)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("rows", "place"), [(TEST, "consecutive"), (5, "later"), (9, "gaps")])
def test_scores_one_by_one(id, base, rows, place):
    frequencies, decays, _ = BASES[base]
    q, k, v = qkv(rows, TEST)
    got = attend(mapped(id, trained(base)), q, k, v, PLACES[place])
    wanted = slow(q, k, v, PLACES[place], FORMULAS[id][0], frequencies, decays)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("id", FORMULAS)
@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_scores_in_float32_and_in_chunks(id, chunk, monkeypatch):
    monkeypatch.setattr(attention, "CHUNK_SCORES", chunk * TEST * HEADS)
    q, k, v = qkv(TEST, TEST, torch.float32)
    got = attend(mapped(id, trained("rope")), q, k, v, PLACES["consecutive"])
    assert got.dtype == torch.float32
    wanted = slow(q, k, v, PLACES["consecutive"], FORMULAS[id][0], *BASES["rope"][:2])
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("id", FORMULAS)
def test_a_bias_beside_it_keeps_the_true_distance(id):
    both = scheme("stack", shape(HEADS * WIDTH, HEADS, L), parts=["rope", "alibi"])
    q, k, v = qkv(11, TEST)
    got = attend(mapped(id, both), q, k, v, PLACES["consecutive"])
    slopes = alibi_slopes(HEADS)
    wanted = slow(q, k, v, PLACES["consecutive"], FORMULAS[id][0], *BASES["rope"][:2], slopes)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)  # a bias is float32


@pytest.mark.parametrize("id", FORMULAS)
def test_content_beside_it_sees_the_same_weights(id):
    """A forgetting gate that stays open changes nothing."""
    parts = {"parts": ["rope", "fox"], "options": {"fox": {"initial_gate": 1 - 1e-12}}}
    both = tiny_model("stack", options=parts, d_model=16, n_heads=2, train_length=L).double()
    plain = tiny_model("rope", d_model=16, n_heads=2, train_length=L).double()
    with torch.no_grad():
        both.posenc.parts["fox"].weight.zero_()
        ids = tokens(TEST)
        got = both.hidden(ids, mapped(id, both.posenc))
        wanted = plain.hidden(ids, mapped(id, plain.posenc))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", MAPS)
def test_layers_without_rotation_stay_as_they_are(name):
    model = tiny_model("layers", options={"pattern": ["rope", "none"]}, train_length=L)
    found = rule(name).applied(model.posenc, L, TEST)
    trained = [model.posenc.for_layer(i)[0] for i in (0, 1)]
    assert found.for_layer(1)[0] is trained[1]
    alone = rule(name).applied(trained[0], L, TEST)
    q, k, v = qkv(TEST, TEST)
    got = attend(found.for_layer(0)[0], q, k, v, PLACES["consecutive"])
    assert torch.equal(got, attend(alone, q, k, v, PLACES["consecutive"]))
    assert not torch.allclose(got, attend(trained[0], q, k, v, PLACES["consecutive"]))
    with torch.no_grad():
        assert model.hidden(tokens(TEST), found).isfinite().all()


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("base", ["rope", "partial_rope", "p_rope", "xpos"])
def test_up_to_the_window_it_is_the_trained_scheme(name, base):
    encoding, at = trained(base), list(range(500, 508))
    q, k, v = qkv(8, 8)
    plain = attend(encoding, q, k, v, at)
    for n in (8, TEST, 4 * L):
        got = attend(rule(name).applied(encoding, L, n), q, k, v, at)
        torch.testing.assert_close(got, plain, **CLOSE)


def distances(encoding, rows, keys):
    """[rows, keys]: what the last queries rotate by for every key."""
    pos = positions(keys)
    found = torch.zeros(rows, keys, dtype=torch.float64)
    for region in encoding.relative_position(pos[:, -rows:], pos, Context(True)):
        between = region.q_pos[0, :, None, 0] - region.k_pos[0, None, :, 0]
        where = True if region.where is None else region.where[0, 0]
        found = torch.where(torch.as_tensor(where), between.double(), found)
    return found


def test_distances_of_rerope():
    numbers = golden("rerope")
    found = rule("rerope", window=numbers["window"]).applied(rope(8, 8), 8, 12)
    assert distances(found, 1, numbers["row"] + 1)[0].tolist() == numbers["relative"]


def test_distances_of_leaky_rerope():
    numbers = golden("leaky_rerope")
    leaky = rule("leaky_rerope", window=numbers["window"], k=numbers["k"])
    found = distances(leaky.applied(rope(8, 8), 8, 12), 1, numbers["row"] + 1)[0]
    assert found.tolist() == pytest.approx(numbers["relative"], rel=1e-12)


def test_distances_of_self_extend():
    numbers = golden("self_extend")
    own = {k: numbers[k] for k in ("window", "group")}
    found = rule("self_extend", **own).applied(rope(8, 16), 16, 40)
    for row, wanted in numbers["rows"].items():
        assert distances(found, 1, int(row) + 1)[0].tolist() == wanted
    reach = numbers["reach"]
    last = distances(found, 1, reach["tokens"])[0, 0]
    assert last == reach["train_length"] - 1
    assert distances(found, 1, reach["tokens"] + 4)[0, 0] == last + 1
    auto = rule("self_extend", window=numbers["window"])
    assert auto.scale(16, reach["tokens"]) == numbers["group"]
    assert auto.scale(16, reach["tokens"] + 1) > numbers["group"]


@settings(deadline=None, max_examples=60, database=None)
@given(
    name=st.sampled_from(MAPS),
    length=st.integers(8, 80),
    times=st.integers(1, 12),
    more=st.integers(0, 30),
    share=st.floats(0.1, 0.9),
    auto=st.booleans(),
)
def test_no_distance_that_training_has_not_seen(name, length, times, more, share, auto):
    n = length * times + more
    used = length // 2 if auto else max(1, int(share * length))
    rescale = rule(name, window="auto" if auto else used)
    refused = {
        "rerope": False,
        "leaky_rerope": n > length and used == length - 1,
        "self_extend": n > used + used * (length - used),
    }
    if refused[name]:
        with pytest.raises(UnsupportedRescale):
            rescale.applied(rope(8, length), length, n)
        return
    found = rescale.applied(rope(8, length), length, n)
    if n <= length and name != "rerope":
        assert rescale.scale(length, n) == 1
        return
    seen = distances(found, min(n, 40), n).tril(n - min(n, 40))
    assert seen.max() <= max(used, length - 1) + 1e-9
    assert seen.min() >= 0
    near = torch.arange(used).flip(0).double()
    assert torch.equal(seen[-1, -used:], near[-n:])
    if name != "self_extend":
        assert bool((seen[-1].diff() <= 1e-12).all())


def test_automatic_numbers():
    leaky, extend = rule("leaky_rerope"), rule("self_extend")
    assert [leaky.scale(128, n) for n in (64, 128)] == [1, 1]
    assert leaky.scale(128, 1024) == pytest.approx((1023 - 64) / (127 - 64))
    assert [extend.scale(128, n) for n in (64, 128, 129, 256, 512, 1024, 2048, 4160)] == [
        1, 1, 2, 4, 8, 16, 32, 64,
    ]  # fmt: skip
    assert extend.scale(128, 4161) == math.inf
    given = rule("self_extend", group=6)  # half of 128 is no multiple of 6
    near = distances(given.applied(rope(8, 128), 128, 512), 1, 512)[0].flip(0)
    assert near[:60].tolist() == list(range(60)) and near[60] == 511 // 6 + 50 - 451 // 6


def test_past_the_limit_a_given_number_goes_on_and_auto_refuses():
    encoding = rope(8, 16)
    for name, options in (("leaky_rerope", {"k": 2}), ("self_extend", {"group": 2})):
        far = distances(rule(name, **options).applied(encoding, 16, 400), 1, 400)
        assert far[0, 0] > 16
    assert distances(rule("leaky_rerope").applied(encoding, 16, 10**4), 1, 10**4)[0, 0] == 15
    with pytest.raises(UnsupportedRescale) as refused:
        rule("self_extend").applied(encoding, 16, 73)
    assert str(refused.value) == (
        "self_extend with rescale.window=8 reaches at most 72 tokens at L = 16, not 73"
    )
    with pytest.raises(UnsupportedRescale, match=r"rescale.k=auto needs a rescale.window below"):
        rule("leaky_rerope", window=15).applied(encoding, 16, 32)
    with pytest.raises(UnsupportedRescale, match=r"reaches at most 16 tokens at L = 16, not 32"):
        rule("self_extend", window=16).applied(encoding, 16, 32)
    with pytest.raises(UnsupportedRescale, match=r"rescale.group=9 is more than half of L = 16"):
        rule("self_extend", group=9).applied(encoding, 16, 32)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("window", [0, -3, "half"])
def test_refused_windows(name, window):
    with pytest.raises(ConfigError, match=rf"rescale.window={window}: a whole number of at least"):
        rule(name, window=window)


@pytest.mark.parametrize("k", [0.5, 0, -1, math.inf, math.nan, "much"])
def test_refused_steps(k):
    with pytest.raises(ConfigError, match=rf"rescale.k={k}: a number of at least 1, or auto"):
        rule("leaky_rerope", k=k)


def test_refused_groups():
    with pytest.raises(ConfigError, match=r"rescale.group=4 must divide rescale.window=6"):
        rule("self_extend", window=6, group=4)
    for group in (0, "some"):
        with pytest.raises(ConfigError, match=rf"rescale.group={group}: a whole number"):
            rule("self_extend", group=group)
