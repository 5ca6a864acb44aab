"""Several schemes at once: every combination against a loop over pairs, and what is refused."""

import math

import pytest
import torch
from loops import TYPES, Layer, gaps, spread
from oracles import alibi_slopes, scheme, shape, theta, tiny_model, tokens, turned

from posbench.encodings.base import PositionalEncoding
from posbench.encodings.stack import combine
from posbench.errors import ConfigError

SHAPE = shape(24, 3, 40)


def stack(*parts, **options):
    return scheme("stack", SHAPE, parts=list(parts), options=options)


# ---- what each part does to a score, from its formula


def rotated(layer, base=10000.0):
    """q . k / sqrt(K) after the rotation of both."""
    q, k = (turned(x, layer.pos, theta(8, base)) for x in (layer.q, layer.k))
    return lambda b, h, i, j: q[b, h, i] @ k[b, h, j] / math.sqrt(8)


def faded(layer):
    """The sum of the log gates after the key."""
    fox = layer.encoding.parts["fox"]
    weight, offset = fox.weight[layer.layer].double(), fox.offset[layer.layer].double()
    gate = torch.einsum("btd,hd->bht", layer.x.double(), weight) + offset[:, None]
    logs = -torch.log1p((-gate).exp())
    return lambda b, h, i, j: logs[b, h, j + 1 : i + 1].sum()


def sloped(layer):
    slopes = alibi_slopes(3)
    return lambda b, h, i, j: -slopes[h] * (layer.at(b, i) - layer.at(b, j))


def rope_fox(layer):
    dot, bias = rotated(layer), faded(layer)
    return layer.loop(lambda *at: dot(*at) + bias(*at))


def rope_fox_logn(layer):
    dot, bias = rotated(layer), faded(layer)

    def score(b, h, i, j):
        scale = math.log(i + 1) / math.log(40)
        return dot(b, h, i, j) * scale + bias(b, h, i, j)

    return layer.loop(score)


def alibi_ssmax(layer):
    bias, s = sloped(layer), layer.encoding.parts["ssmax"].scale[layer.layer].double()

    def score(b, h, i, j):
        return layer.dot(b, h, i, j) * s[h] * math.log(i + 1) + bias(b, h, i, j)

    return layer.loop(score)


def logn_ssmax(layer):
    """Factors multiply."""
    s = layer.encoding.parts["ssmax"].scale[layer.layer].double()

    def score(b, h, i, j):
        count = math.log(i + 1)
        return layer.dot(b, h, i, j) * s[h] * count * count / math.log(40)

    return layer.loop(score)


def alibi_fox(layer):
    one, other = sloped(layer), faded(layer)
    return layer.loop(lambda *at: layer.dot(*at) + one(*at) + other(*at))


def fox_stick_breaking(layer):
    """A constant in a row of scores counts here."""
    bias = faded(layer)

    def weigh(scores):
        left, weights = torch.ones((), dtype=torch.float64), []
        for s in scores[:-1].flip(0).sigmoid():
            weights.append(left * s)
            left = left * (1 - s)
        return torch.stack([*reversed(weights), left])

    return layer.loop(lambda *at: layer.dot(*at) + bias(*at), weigh=weigh)


def fox_cope(layer):
    """Gates are made of scores that are faded already."""
    bias, table = faded(layer), layer.encoding.parts["cope"].table[layer.layer].double()

    def score(b, h, i, j):
        scores = [layer.dot(b, h, i, t) + bias(b, h, i, t) for t in range(j, i + 1)]
        place = torch.stack(scores).sigmoid().sum().clamp(max=len(table) - 1.0)
        below = min(math.floor(place.detach()), len(table) - 2)
        e = table[below] * (below + 1 - place) + table[below + 1] * (place - below)
        return scores[0] + layer.q[b, h, i].double() @ e

    return layer.loop(score)


def rope_shaw(layer):
    dot, shaw = rotated(layer), layer.encoding.parts["shaw"]
    keys, values = (t[layer.layer, 0].double() for t in (shaw.keys, shaw.values))

    def far(b, i, j):
        return min(layer.at(b, i) - layer.at(b, j), len(keys) - 1)

    return layer.loop(
        lambda b, h, i, j: (
            dot(b, h, i, j) + layer.q[b, h, i].double() @ keys[far(b, i, j)] / math.sqrt(8)
        ),
        lambda b, h, i, j: layer.v[b, h, j].double() + values[far(b, i, j)],
    )


CASES = {
    "rope+fox": (stack("rope", "fox"), rope_fox),
    "rope+fox+logn": (stack("rope", "fox", "logn"), rope_fox_logn),
    "logn+fox+rope": (stack("logn", "fox", "rope"), rope_fox_logn),
    "alibi+ssmax": (stack("alibi", "ssmax"), alibi_ssmax),
    "logn+ssmax": (stack("logn", "ssmax"), logn_ssmax),
    "alibi+fox": (stack("alibi", "fox"), alibi_fox),
    "fox+stick_breaking": (stack("fox", "stick_breaking"), fox_stick_breaking),
    "fox+cope": (stack("fox", "cope", cope={"max_positions": 4}), fox_cope),
    "rope+shaw": (stack("rope", "shaw", shaw={"max_distance": 5}), rope_shaw),
}
for encoding, _ in CASES.values():
    spread(encoding)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "error"), TYPES)
@pytest.mark.parametrize("pos", [None, gaps(17)])
def test_a_layer_is_the_loop(case, dtype, error, pos):
    encoding, slow = CASES[case]
    layer = Layer(encoding.to(dtype), 17, dtype=dtype, pos=pos)
    with torch.no_grad():
        layer.same(slow(layer), error)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_loop(case):
    encoding, slow = CASES[case]
    layer = Layer(encoding.double(), 11).learning()
    layer.same_gradients(slow(layer))
    layer.sees_no_future()


@pytest.mark.parametrize("case", CASES)
def test_its_label_names_the_parts(case):
    assert CASES[case][0].label == case


@pytest.mark.parametrize("case", CASES)
def test_every_parameter_learns_and_is_declared_once(case):
    parts = case.split("+")
    model = tiny_model("stack", options={"parts": parts})
    model(tokens(40)).pow(2).sum().backward()
    own = dict(model.posenc.named_parameters())
    for name, parameter in own.items():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    listed = [id(p) for group in model.posenc.param_groups() for p in group["params"]]
    assert sorted(listed) == sorted(map(id, own.values()))
    assert {name.split(".")[1] for name in own} <= set(parts)


@pytest.mark.parametrize("name", ["fox", "ssmax", "cope", "t5", "learned"])
def test_a_part_begins_as_it_does_alone(name):
    joined = dict(stack("none", name).named_parameters())
    for key, parameter in scheme(name, SHAPE).named_parameters():
        wanted = torch.empty_like(parameter)
        with torch.no_grad():
            draw = torch.Generator().manual_seed(1)
            scheme(name, SHAPE).init_parameter(key, wanted, draw)
            inside = joined[f"parts.{name}.{key}"]
            draw = torch.Generator().manual_seed(1)
            stack("none", name).init_parameter(f"parts.{name}.{key}", inside, draw)
        assert torch.equal(inside, wanted)


class Hides(PositionalEncoding):
    """Every n-th token before the query, the query itself never."""

    def __init__(self, n):
        super().__init__(None, SHAPE)
        self.name, self.n = f"hides_{n}", n

    def visible(self, q_pos, k_pos, ctx):
        distance = q_pos[:, None, :, None, 0] - k_pos[:, None, None, :, 0]
        return (distance % self.n != 0) | (distance == 0)


def test_masks_must_all_agree():
    layer = Layer(combine([Hides(2), scheme("alibi", SHAPE), Hides(3)]), 17)
    bias = sloped(layer)

    def score(b, h, i, j):
        if i != j and ((i - j) % 2 == 0 or (i - j) % 3 == 0):
            return torch.tensor(-math.inf, dtype=torch.float64)
        return layer.dot(b, h, i, j) + bias(b, h, i, j)

    with torch.no_grad():
        layer.same(layer.loop(score), 1e-11)


def test_embeddings_add_up():
    both, x, pos = stack("learned", "sinusoidal"), torch.zeros(1, 9, 24), gaps(9, 1)
    found = both.embed(x, pos)
    parts = [both.parts[name].embed(x, pos) for name in both.parts]
    torch.testing.assert_close(found, parts[0] + parts[1], rtol=0, atol=1e-6)
    assert all(p.abs().max() > 0.1 for p in parts)


def test_options_reach_their_part():
    layer = Layer(stack("rope", "none", rope={"base": 50}))
    with torch.no_grad():
        layer.same(layer.loop(rotated(layer, 50.0)), 1e-11)
    assert stack("rope", "fox", fox={"initial_gate": 0.9}).parts["fox"].config.initial_gate == 0.9


def test_properties_follow_from_the_parts():
    both = stack("rope", "fox")
    assert both.learnable and both.shift_invariant and both.norm_preserving
    assert not both.needs_train_length
    scaled = stack("alibi", "logn")
    assert not scaled.learnable and scaled.shift_invariant and scaled.needs_train_length
    assert not stack("alibi", "sinusoidal").shift_invariant
    assert stack("learned", "rope").max_length == 40
    assert both.max_length is None
    tied = stack("shaw", "cope").tied()
    assert [t.option for t in tied] == ["posenc.max_distance", "posenc.max_positions"]


def test_stacks_of_stacks_are_taken_apart():
    inner = stack("rope", "fox")
    whole = combine([inner, scheme("logn", SHAPE)])
    assert whole.label == "rope+fox+logn"
    assert whole.parts["fox"] is inner.parts["fox"]
    layer = Layer(whole.double(), 11)
    with torch.no_grad():
        layer.same(rope_fox_logn(layer), 1e-11)


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        (["shaw", "stick_breaking"], {}, "shaw and stick_breaking both define normalise"),
        (["path", "rope"], {}, "path computes its own attention, so rope cannot act beside it"),
        (["fox", "path"], {}, "path computes its own attention, so fox cannot act beside it"),
        (["logn", "path"], {}, "path computes its own attention, so logn cannot act beside it"),
        (["rope", "fox", "rope"], {}, "rope is named twice"),
        (["rope"], {}, "name two or more schemes"),
        ([], {}, "name two or more schemes"),
        (["rope", "foxes"], {}, r"posenc.parts=foxes is unknown \(did you mean fox\?\)"),
        (["rope", "stack"], {}, "posenc.parts=stack: cannot be a part of another scheme"),
        (["rope", "layers"], {}, "posenc.parts=layers: cannot be a part of another scheme"),
        (["rope", "fox"], {"alibi": {}}, "posenc.options=alibi is unknown; known: rope, fox"),
        (
            ["rope", "fox"],
            {"rope": {"bases": 5}},
            r"posenc.options.rope=bases is unknown \(did you mean base\?\)",
        ),
        (
            ["rope", "fox"],
            {"fox": {"initial_gate": "half"}},
            "posenc.options.fox.initial_gate=half: ",
        ),
        (["rope", "fox"], {"fox": {"initial_gate": 1.5}}, "posenc.initial_gate=1.5"),
        (["rope", "fox"], {"fox": 0.9}, r"posenc.options.fox=0.9: write \{option: value\}"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(parts, options, message):
    with pytest.raises(ConfigError, match=message):
        stack(*parts, **options)


def test_an_embedding_may_stand_beside_an_attention_of_its_own():
    whole, alone = stack("learned", "path"), scheme("path", SHAPE)
    with torch.no_grad():
        for ours, theirs in zip(whole.parts["path"].parameters(), alone.parameters(), strict=True):
            ours.copy_(theirs)
    layers = [Layer(e, dtype=torch.float32) for e in (whole, alone)]
    assert torch.equal(layers[0].attend(), layers[1].attend())
    x = torch.zeros(1, 21, 24)
    assert torch.equal(whole.embed(x, layers[0].pos)[0], whole.parts["learned"].table[:21])
