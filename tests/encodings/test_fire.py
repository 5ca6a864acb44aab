"""FIRE: golden inputs, the network by hand, and what the query's position changes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import golden, normal, positions, scheme, shape, tiny_model, tokens

from posbench.encodings import fire
from posbench.encodings.base import Context, Tied
from posbench.errors import ConfigError
from posbench.settings import Geometry


def slow_share(i, j, c, least):
    """What the network reads, from the formula."""
    return math.log(abs(c * (i - j)) + 1) / (math.log(abs(c * max(i, abs(least))) + 1) + 1e-6)


def slow_bias(encoding, layer, i, j):
    """Bias of every head [H] for one pair, by torch's own modules."""
    width, heads = encoding.config.width, encoding.geometry.n_heads
    network = torch.nn.Sequential(
        torch.nn.Linear(1, width), torch.nn.ReLU(), torch.nn.Linear(width, heads)
    ).double()
    with torch.no_grad():
        network[0].weight.copy_(encoding.inner_weight[layer][:, None])
        network[0].bias.copy_(encoding.inner_offset[layer])
        network[2].weight.copy_(encoding.outer_weight[layer])
        network[2].bias.copy_(encoding.outer_offset[layer])
        least = encoding.multiplier[layer].item() * encoding.threshold
        share = slow_share(i, j, encoding.c[layer].item(), least)
        return network(torch.tensor([share], dtype=torch.float64))


def trained_like(heads=3, length=16, dtype=torch.float64, **options):
    """A scheme whose numbers all differ from the initial ones."""
    encoding = scheme("fire", Geometry(8 * heads, heads, 2, length), **options).to(dtype)
    with torch.no_grad():
        for n, parameter in enumerate(encoding.parameters()):
            parameter += 0.1 * normal(*parameter.shape, seed=n).to(dtype)
    return encoding


def test_golden():
    numbers = golden("fire_input")
    encoding = scheme("fire", threshold=numbers["threshold"]).double()
    assert encoding.c.tolist() == pytest.approx([numbers["c"]] * 2)
    with torch.no_grad():
        encoding.c.fill_(numbers["c"])
    for (i, j), wanted in zip(numbers["pairs"], numbers["inputs"], strict=True):
        share = encoding.share(torch.tensor([[[i]]]), torch.tensor([[[j]]]), 0)
        assert share.dtype == torch.float64
        assert share.item() == pytest.approx(wanted, rel=1e-8, abs=1e-9)


@settings(deadline=None, max_examples=30, database=None)
@given(
    i=st.integers(0, 10**6),
    back=st.integers(0, 10**6),
    c=st.floats(-2, 2),
    multiplier=st.floats(-3, 3),
    threshold=st.integers(1, 1000),
)
def test_the_input_of_the_network(i, back, c, multiplier, threshold):
    encoding = scheme("fire", threshold=threshold).double()
    with torch.no_grad():
        encoding.c.fill_(c)
        encoding.multiplier.fill_(multiplier)
    j = max(0, i - back)
    share = encoding.share(torch.tensor([[[i]]]), torch.tensor([[[j]]]), 1).item()
    assert share == pytest.approx(slow_share(i, j, c, multiplier * threshold), rel=1e-10)
    assert 0 <= share <= 1


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rows", [21, 6, 1])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_a_layer_equals_a_slow_loop(shared, rows, layer, dtype, error):
    encoding = trained_like(dtype=dtype, shared=shared)
    q, k, v = (normal(2, 3, n, 8, seed=s, dtype=dtype) for s, n in enumerate((rows, 21, 21)))
    pos = positions(21)
    own = 0 if shared else layer
    wanted = torch.zeros(2, 3, rows, 8, dtype=torch.float64)
    for row in range(rows):
        i = 21 - rows + row
        bias = torch.stack([slow_bias(encoding, own, i, j) for j in range(i + 1)], -1)
        for b in range(2):
            for h in range(3):
                scores = k[b, h, : i + 1].double() @ q[b, h, row].double() / math.sqrt(8) + bias[h]
                wanted[b, h, row] = scores.softmax(0) @ v[b, h, : i + 1].double()
    got = encoding.attend(q, k, v, pos[:, 21 - rows :], pos, Context(True, layer))
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=error)


def test_layers_differ_unless_shared():
    pos = positions(9)
    own, shared = trained_like(), trained_like(shared=True)
    for encoding in (own, shared):
        a, b = (encoding.pair_bias(pos, pos, Context(True, layer)) for layer in (0, 1))
        assert torch.equal(a, b) == (encoding is shared)
        assert encoding.per_layer == (encoding is own)


@pytest.mark.parametrize(("shared", "sets"), [(False, 2), (True, 1)])
def test_number_of_parameters(shared, sets):
    encoding = scheme("fire", shape(32, 4), shared=shared)
    assert sum(p.numel() for p in encoding.parameters()) == sets * (32 + 32 + 32 * 4 + 4 + 2)


def test_initial_values():
    encoding = scheme("fire", shape(128, 64))
    assert encoding.c.tolist() == pytest.approx([0.1, 0.1])
    assert encoding.multiplier.tolist() == [1.0, 1.0]
    for name, bound in (("inner", 1.0), ("outer", 32**-0.5)):
        for part in ("weight", "offset"):
            value = getattr(encoding, f"{name}_{part}")
            assert 0.8 * bound < value.abs().max() <= bound
            assert abs(value.mean()) < 0.3 * bound


def test_same_distance_same_bias_only_up_to_the_threshold():
    encoding = trained_like(length=20)  # |m L0| is about 10
    edge = int((encoding.multiplier[0] * 10).abs().item())
    pos = positions(40)
    bias = encoding.pair_bias(pos, pos, Context(True))[0]
    near, far = bias[:, edge - 1, edge - 4], bias[:, edge, edge - 3]
    torch.testing.assert_close(near, far, rtol=1e-12, atol=0)
    assert not torch.isclose(bias[:, 39, 36], near).any()
    assert not encoding.shift_invariant


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_chunks_equal_the_whole(rows, monkeypatch):
    encoding = trained_like()
    q, k, v = (normal(2, 3, 90, 8, seed=s) for s in (1, 2, 3))
    pos = positions(90)
    whole = encoding.attend(q, k, v, pos, pos, Context(True))
    monkeypatch.setattr(fire, "PAIRS", 50)
    for start in range(0, 90, rows):
        part, stop = slice(start, start + rows), min(start + rows, 90)
        keys = (k[:, :, :stop], v[:, :, :stop])
        got = encoding.attend(q[:, :, part], *keys, pos[:, part], pos[:, :stop], Context(True))
        torch.testing.assert_close(got, whole[:, :, part], rtol=0, atol=1e-12)


def test_positions_of_every_sequence_of_a_batch():
    encoding = trained_like()
    q, k, v = (normal(2, 3, 9, 8, seed=s) for s in (1, 2, 3))
    both = torch.cat((positions(9, 3), positions(9, 70)))
    got = encoding.attend(q, k, v, both, both, Context(False))
    for b in range(2):
        one = (x[b : b + 1] for x in (q, k, v, both, both))
        alone = encoding.attend(*one, Context(False))
        torch.testing.assert_close(got[b : b + 1], alone, rtol=0, atol=1e-12)


def test_a_longer_text_changes_no_earlier_output():
    model = tiny_model("fire")
    ids = tokens(100)
    with torch.no_grad():
        torch.testing.assert_close(
            model.hidden(ids)[:, :50], model.hidden(ids[:, :50]), rtol=0, atol=2e-5
        )


def test_every_parameter_learns():
    model = tiny_model("fire")
    model(tokens(40)).pow(2).sum().backward()
    for name, parameter in model.posenc.named_parameters():
        assert bool(parameter.grad.isfinite().all()), name
        # the offset of the output moves whole rows of scores, which softmax does not see
        if name != "outer_offset":
            assert all(one.abs().sum() > 1e-6 for one in parameter.grad), name


@pytest.mark.parametrize("length", [32, 128, 512])
def test_reaches_half_the_training_length_by_default(length):
    encoding = scheme("fire", shape(train_length=length))
    assert encoding.tied() == [Tied("posenc.threshold", "512", str(length // 2))]
    assert encoding.needs_train_length
    fixed = scheme("fire", shape(train_length=length), threshold=512)
    assert fixed.tied() == [Tied("posenc.threshold", "512", "512")]
    assert not fixed.needs_train_length


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_a_cast_module_computes_in_full_precision(cast):
    encoding = trained_like(dtype=torch.float32).to(cast)
    pos = positions(3, 5000)
    bias = encoding.pair_bias(pos, pos, Context(True))
    assert bias.dtype == torch.float32
    wanted = slow_bias(encoding, 0, 5002, 5001)
    torch.testing.assert_close(bias[0, :, 2, 1].double(), wanted, rtol=1e-4, atol=1e-6)


def test_refusals():
    for threshold in (0, 2.5, "far"):
        with pytest.raises(ConfigError, match=rf"posenc.threshold={threshold}: a whole number"):
            scheme("fire", threshold=threshold)
    with pytest.raises(ConfigError, match=r"posenc.width=0: must be at least 1"):
        scheme("fire", width=0)
