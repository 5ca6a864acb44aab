"""Another scheme in every layer, windows too: a whole model against one with slow attention."""

import math

import pytest
import torch
from oracles import normal, scheme, shape, theta, tiny_model, tokens, turned

from posbench.encodings.base import Context
from posbench.errors import ConfigError

W = 5
#: three windowed layers that rotate, one full layer that does not
IROPE = {"pattern": ["rope", "rope", "rope", "none"]}
WINDOWS = [W, W, W, None]


def make(options, window=None, layers=4, **given):
    return tiny_model("layers", options=options, n_layers=layers, window=window, **given).double()


def slow_model(model, ids, act):
    """Stream after the last block; `act(layer, x, q, k)` gives scores [B, H, T, T] by a formula."""
    batch, length = ids.shape
    pos = torch.arange(length)[None, :, None]
    x = model.embedding(ids) * math.sqrt(model.config.d_model)
    for layer, block in enumerate(model.blocks):
        normed, own = block.attention_norm(x), block.attention
        q, k, v = (
            (normed @ p.weight.T).reshape(batch, length, 4, 8).transpose(1, 2)
            for p in (own.q_proj, own.k_proj, own.v_proj)
        )
        scores = act(layer, normed, q, k, pos)
        window = (model.config.window or [None] * 4)[layer] or length
        y = torch.zeros_like(v)
        for i in range(length):
            seen = slice(max(0, i + 1 - window), i + 1)
            y[:, :, i] = (scores[:, :, i, None, seen].softmax(-1) @ v[:, :, seen])[:, :, 0]
        x = x + y.transpose(1, 2).reshape(batch, length, -1) @ own.o_proj.weight.T
        x = x + block.mlp(block.mlp_norm(x))
    return x


def dots(q, k):
    return q @ k.transpose(2, 3) / math.sqrt(8)


def rotated(q, k, pos):
    return dots(*(turned(x, pos, theta(8)) for x in (q, k)))


@pytest.mark.parametrize("window", [WINDOWS, [3, 100, None, 1], None])
def test_rotating_windows_and_a_full_layer(window):
    model, ids = make(IROPE, window), tokens(33)

    def act(layer, x, q, k, pos):
        return dots(q, k) if layer == 3 else rotated(q, k, pos)

    with torch.no_grad():
        wanted = slow_model(model, ids, act)
        torch.testing.assert_close(model.hidden(ids), wanted, rtol=0, atol=1e-10)
        last = model.hidden(ids, scored_S=torch.arange(29, 33))
    torch.testing.assert_close(last, wanted[:, -4:], rtol=0, atol=1e-10)


def test_gates_and_temperatures_in_some_layers():
    """[none+logn, fox, rope, fox]: fox has two layers of its own, in their order."""
    pattern = ["none+logn", "fox", "rope", "fox"]
    model, ids = make({"pattern": pattern}, [None, None, W, None]), tokens(25)
    fox = model.posenc.parts["fox"]
    assert fox.weight.shape[0] == 2

    def act(layer, x, q, k, pos):
        if pattern[layer] == "rope":
            return rotated(q, k, pos)
        if pattern[layer] == "none+logn":
            scale = (pos[0, :, 0] + 1).double().log() / math.log(40)
            return dots(q, k) * scale[:, None]
        own = {1: 0, 3: 1}[layer]
        gate = x @ fox.weight[own].T + fox.offset[own]
        total = (1 / (1 + (-gate).exp())).log().cumsum(1).transpose(1, 2)
        return dots(q, k) + total[..., None] - total[:, :, None]

    with torch.no_grad():
        wanted = slow_model(model, ids, act)
        torch.testing.assert_close(model.hidden(ids), wanted, rtol=0, atol=1e-10)


def influence(model, length):
    """[i, j]: largest |d out_i / d x_j|."""
    stream = model.tokens(tokens(length, batch=1)).detach().requires_grad_()
    model.tokens = lambda ids: stream
    out = model.hidden(tokens(length, batch=1))
    probe = normal(out.shape[2])
    rows = [
        torch.autograd.grad(out[0, i] @ probe, stream, retain_graph=True)[0][0].abs().amax(-1)
        for i in range(length)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("name", ["rope", "none", "alibi", "fox", "cope", "path", "stick_breaking"])
@pytest.mark.parametrize("layers", [1, 3])
def test_windows_hide_what_is_beyond_them(name, layers):
    """A layer reaches W - 1 tokens back, so a model of n layers n (W - 1), and no further.

    The filter that makes the vectors of path reaches one more.
    """
    found = influence(make({"pattern": [name]}, [W] * layers, layers), 20)
    distance = torch.arange(20)[:, None] - torch.arange(20)
    reach = layers * (W - 1) + (layers if name == "path" else 0)
    # a gate before the window is in two running totals, whose difference is rounded
    assert found[distance > reach].max() <= (1e-14 if name == "fox" else 0)
    assert (found[distance < 0] == 0).all()
    assert (found[(distance >= 0) & (distance <= layers * (W - 1))] > 0).all()


def test_a_full_layer_sees_everything():
    found = influence(make(IROPE, WINDOWS), 30)
    assert (found.tril() + torch.ones(30, 30).triu(1) > 0).all()
    assert (found.triu(1) == 0).all()


def test_every_layer_has_its_own_place_among_its_scheme_s():
    encoding = make({"pattern": ["fox", "rope", "fox", "cope"]}, layers=8).posenc
    found = [encoding.for_layer(layer) for layer in range(8)]
    assert [own.name for own, _ in found] == ["fox", "rope", "fox", "cope"] * 2
    assert [index for _, index in found] == [0, 0, 1, 0, 2, 1, 3, 1]
    assert found[0][0] is found[2][0] is found[6][0]
    sizes = {name: p.shape[0] for name, p in encoding.named_parameters()}
    assert sizes == {"parts.fox.weight": 4, "parts.fox.offset": 4, "parts.cope.table": 2}


def test_a_layer_s_own_parameter_acts_from_there_on():
    model, ids = make({"pattern": ["none", "fox", "none", "fox"]}), tokens(20)

    def streams():
        found = []
        hooks = [b.register_forward_hook(lambda m, i, o: found.append(o)) for b in model.blocks]
        with torch.no_grad():
            model.hidden(ids)
        for hook in hooks:
            hook.remove()
        return found

    before = streams()
    with torch.no_grad():
        model.posenc.parts["fox"].offset[1] += 1
    same = [torch.equal(a, b) for a, b in zip(before, streams(), strict=True)]
    assert same == [True, True, True, False]


@pytest.mark.parametrize(
    ("pattern", "window"),
    [
        (["fox", "cope", "none+ssmax", "t5"], None),
        (["rope+fox", "none"], [W, None, W, None]),
        (["path", "shaw", "transformer_xl", "stick_breaking"], None),
    ],
)
def test_gradients_reach_every_parameter(pattern, window):
    model = make({"pattern": pattern}, window)
    model(tokens(40)).pow(2).sum().backward()
    for name, parameter in model.posenc.named_parameters():
        assert parameter.grad is not None, name
        rows = parameter.grad.flatten(1) if parameter.ndim > 1 else parameter.grad[:, None]
        assert (rows.abs().sum(-1) > 0).any(), name
        if name.split(".")[-1] in ("weight", "offset", "size", "scale"):
            assert (rows.abs().sum(-1) > 0).all(), name


def test_one_scheme_everywhere_is_that_scheme():
    ids = tokens(30)
    with torch.no_grad():
        alone, patterned = (
            tiny_model(name, n_layers=4, options=options)(ids)
            for name, options in (("alibi", {}), ("layers", {"pattern": ["alibi"]}))
        )
    torch.testing.assert_close(patterned, alone, rtol=0, atol=1e-6)


def test_label_and_properties():
    encoding = scheme("layers", shape(32, 4), pattern=["rope", "none+logn"])
    assert encoding.label == "rope-none+logn"
    assert encoding.shift_invariant and encoding.needs_train_length
    assert encoding.max_length is None
    own, index = encoding.for_layer(1)
    assert (own.label, index) == ("none+logn", 0)
    scale = own.logit_scale(torch.tensor([[[39]]]), torch.arange(40)[None, :, None], Context(True))
    assert scale.item() == pytest.approx(1)


def test_options_reach_their_scheme():
    options = {"rope": {"base": 500}}
    encoding = scheme("layers", shape(32, 4), pattern=["rope", "none"], options=options)
    assert encoding.parts["rope"].base == 500


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pattern": []}, "posenc.pattern=.*name a scheme for every layer"),
        ({"pattern": ["rope"] * 3}, "its length 3 must divide model.n_layers=4"),
        ({"pattern": ["rope"] * 8}, "its length 8 must divide model.n_layers=4"),
        (
            {"pattern": ["rope", "ropes"]},
            r"posenc.pattern=ropes is unknown \(did you mean rope\?\)",
        ),
        (
            {"pattern": ["rope", "stack"]},
            "posenc.pattern=stack: cannot be a part of another scheme",
        ),
        ({"pattern": ["rope", "learned"]}, "learned acts once, before the first layer"),
        ({"pattern": ["rope", "none+sinusoidal"]}, "sinusoidal acts once"),
        ({"pattern": ["shaw+stick_breaking", "none"]}, "both define normalise"),
        (
            {"pattern": ["rope", "none"], "options": {"fox": {}}},
            "posenc.options=fox is unknown.*known: rope, none",
        ),
        (
            {"pattern": ["rope", "none"], "options": {"rope": {"bases": 2}}},
            "posenc.options.rope=bases is unknown",
        ),
    ],
)
def test_what_cannot_be_a_pattern_is_refused_by_name(config, message):
    with pytest.raises(ConfigError, match=message):
        make(config)
