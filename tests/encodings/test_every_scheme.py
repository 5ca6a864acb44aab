"""What holds for every registered scheme: causality, declared properties, no state."""

import pytest
import torch
from oracles import SCHEMES, normal, positions, scheme, shape, tiny_model, tokens

from posbench.attention import attend
from posbench.encodings.base import Context, PositionalEncoding
from posbench.positions.base import PositionSampler

LENGTH = 40


class From(PositionSampler):
    """Positions that begin at a number."""

    def __init__(self, start):
        super().__init__(None)
        self.start = start

    def draw(self, batch, length, generator=None):
        return positions(length, self.start)


def gradients(model, length):
    """[i, j]: largest |d out_i / d x_j| over the width of the token stream x, out = hidden."""
    ids = tokens(length, batch=1)
    stream = model.tokens(ids).detach().requires_grad_()
    model.tokens = lambda ids: stream
    out = model.hidden(ids)
    probe = normal(out.shape[2], dtype=out.dtype)
    rows = [
        torch.autograd.grad(out[0, i] @ probe, stream, retain_graph=True)[0][0].abs().amax(-1)
        for i in range(length)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("trained_at_this_width", [torch.float32, torch.float64])
def test_no_output_depends_on_a_later_token(name, trained_at_this_width):
    model = tiny_model(name).to(trained_at_this_width)
    found = gradients(model, 14)
    assert torch.equal(found.triu(1), torch.zeros_like(found)), "the future is seen"
    assert bool((found.tril() + torch.ones_like(found).triu(1) > 0).all()), "the past is not seen"


@pytest.mark.parametrize("name", SCHEMES)
def test_no_output_depends_on_a_later_token_where_nothing_is_trained(name):
    """The kernel of evaluation has no gradient of the bias: change a token instead."""
    model = tiny_model(name)
    ids = tokens(20)
    other = ids.clone()
    other[:, 12] = (other[:, 12] + 1) % 61
    with torch.no_grad():
        a, b = model.hidden(ids), model.hidden(other)
    assert torch.equal(a[:, :12], b[:, :12])
    assert not torch.isclose(a[:, 12:], b[:, 12:]).all(-1).any()


def weights(encoding, q, k, q_pos, k_pos):
    """Attention weights [H, T, T]: what comes out for values that are unit vectors."""
    v = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:3], -1)
    ctx = Context(False)
    q, k = encoding.rotate(q, k, q_pos, k_pos, ctx)
    return attend(encoding, q, k, v, q_pos, k_pos, ctx)


@pytest.mark.parametrize("name", [n for n in SCHEMES if scheme(n).shift_invariant])
@pytest.mark.parametrize("shift", [1, 7, 1000])
@pytest.mark.parametrize("rows", [16, 5])
def test_a_common_shift_changes_no_score(name, shift, rows):
    encoding = scheme(name, shape(64, 4, LENGTH)).double()
    q, k = normal(2, 4, rows, 16, seed=1) * 2, normal(2, 4, 16, 16, seed=2)
    k_pos = positions(16)
    q_pos = k_pos[:, 16 - rows :]
    with torch.no_grad():
        plain = weights(encoding, q, k, q_pos, k_pos)
        moved = weights(encoding, q, k, q_pos + shift, k_pos + shift)
    seen = plain > 0
    torch.testing.assert_close(moved[seen].log(), plain[seen].log(), rtol=0, atol=1e-9)
    assert torch.equal(seen, moved > 0)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("shift", [1, 7])
def test_the_model_is_shift_invariant_where_declared_and_only_there(name, shift):
    model = tiny_model(name).double()
    ids = tokens(16)
    with torch.no_grad():
        model.sampler = From(0)
        plain = model(ids)
        model.sampler = From(shift)
        change = (model(ids) - plain).abs().max()
    if model.posenc.shift_invariant:
        assert change < 1e-9
    else:
        assert change > 1e-2


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_absolute_embeddings_are_not_shift_invariant(name):
    encoding = scheme(name)
    x, w = torch.zeros(1, 16, 32), normal(32, 32, dtype=torch.float32)
    with torch.no_grad():
        a, b = (encoding.embed(x, positions(16, c)) for c in (0, 7))
        scores = [(e @ w) @ e.transpose(1, 2) for e in (a, b)]
    assert not encoding.shift_invariant
    assert (a - b).abs().max() > 0.1
    assert (scores[0] - scores[1]).abs().max() > 0.1


@pytest.mark.parametrize("name", SCHEMES)
def test_no_state_between_calls(name):
    def measured(order, model):
        with torch.no_grad():
            return {n: model.hidden(tokens(n)) for n in order}

    longest = tiny_model(name).posenc.max_length or 96
    lengths = sorted({9, LENGTH // 2, LENGTH, longest})
    alone = {n: measured([n], tiny_model(name))[n] for n in lengths}
    model = tiny_model(name)
    shuffled = [lengths[i] for i in (2, 0, 3, 1) if i < len(lengths)]
    for order in (lengths, lengths[::-1], shuffled, lengths):
        for n, out in measured(order, model).items():
            assert torch.equal(out, alone[n]), (order, n)
    for n in lengths:
        for _ in range(2):
            assert torch.equal(measured([n], model)[n], alone[n])


@pytest.mark.parametrize("name", SCHEMES)
def test_training_leaves_no_state_in_evaluation(name):
    model = tiny_model(name)
    with torch.no_grad():
        before = model.hidden(tokens(30))
    model.hidden(tokens(12)).sum().backward()
    with torch.no_grad():
        assert torch.equal(model.hidden(tokens(30)), before)


@pytest.mark.parametrize("name", [n for n in SCHEMES if not scheme(n).depends_on_total_length])
def test_appended_tokens_change_nothing_before_them(name):
    model = tiny_model(name)
    ids = tokens(40)
    with torch.no_grad():
        whole = model.hidden(ids)
        for n in (1, 13, 39):
            torch.testing.assert_close(model.hidden(ids[:, :n]), whole[:, :n], rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", [n for n in SCHEMES if not scheme(n).depends_on_total_length])
def test_one_query_at_a_time_is_the_full_pass(name):
    encoding = scheme(name).double()
    q, k, v = (normal(2, 4, 19, 8, seed=s) for s in (1, 2, 3))
    pos = positions(19)
    with torch.no_grad():
        ctx = Context(True)
        whole = encoding.attend(*encoding.rotate(q, k, pos, pos, ctx), v, pos, pos, ctx)
        for i in range(19):
            seen = pos[:, : i + 1], pos[:, i : i + 1]
            one = Context(True)
            turned = encoding.rotate(q[:, :, i : i + 1], k[:, :, : i + 1], seen[1], seen[0], one)
            step = encoding.attend(*turned, v[:, :, : i + 1], seen[1], seen[0], one)
            torch.testing.assert_close(step, whole[:, :, i : i + 1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SCHEMES)
def test_declared_properties_are_true(name):
    encoding = scheme(name, shape(64, 4, LENGTH)).double()
    assert encoding.learnable == any(True for _ in encoding.parameters())
    assert encoding.family
    assert encoding.paper.startswith("arXiv:")
    assert 1 in encoding.axes
    x = normal(2, 4, 12, 16)
    pos = positions(12, 3)
    q, k = encoding.rotate(x, x, pos, pos, Context(False))
    kept = all(torch.allclose(y.norm(dim=-1), x.norm(dim=-1), atol=1e-12) for y in (q, k))
    assert encoding.norm_preserving == kept
    longer = scheme(name, shape(64, 4, 2 * LENGTH))
    same = encoding.tied() == longer.tied() and encoding.max_length == longer.max_length
    assert encoding.needs_train_length != same


@pytest.mark.parametrize("name", SCHEMES)
def test_every_own_parameter_learns_at_the_training_length(name):
    model = tiny_model(name)
    model(tokens(LENGTH)).pow(2).sum().backward()
    for key, parameter in model.posenc.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", SCHEMES)
def test_own_parameters_are_declared_once_and_without_decay(name):
    encoding = scheme(name)
    groups = encoding.param_groups()
    listed = [id(p) for g in groups for p in g["params"]]
    assert sorted(listed) == sorted(id(p) for p in encoding.parameters())
    assert all(g["weight_decay"] == 0 and g["lr_factor"] > 0 for g in groups)


def test_the_base_class_is_nope():
    q, k, v = (normal(1, 2, 5, 4, seed=s) for s in (1, 2, 3))
    pos = positions(5)
    plain, none = PositionalEncoding(None, shape(8, 2)), scheme("none", shape(8, 2))
    for encoding in (plain, none):
        assert encoding.rotate(q, k, pos, pos, Context(True)) == (q, k)
        assert encoding.embed(v, pos) is v
        assert encoding.logit_scale(pos, Context(True)) is None
        assert not encoding.biased
        assert encoding.max_length is None
    a, b = (e.attend(q, k, v, pos, pos, Context(True)) for e in (plain, none))
    assert torch.equal(a, b)
    with pytest.raises(NotImplementedError):
        plain.distance_bias(torch.arange(3))


def test_a_copy_with_another_table_leaves_the_original_alone():
    encoding = scheme("learned")
    before = encoding.table
    other = encoding.replace(table=torch.nn.Parameter(torch.zeros_like(before)))
    assert other.table is not before
    assert encoding.table is before


def test_a_copy_with_other_frequencies_leaves_the_original_alone():
    encoding = scheme("rope")
    before = encoding.inv_freq.clone()
    other = encoding.replace(inv_freq=encoding.inv_freq / 2, logit_multiplier=3.0)
    assert torch.equal(encoding.inv_freq, before)
    assert encoding.logit_multiplier == 1.0
    assert other.logit_multiplier == 3.0


def test_a_pass_computes_shared_things_once_and_keeps_nothing():
    ctx, calls = Context(True), []
    for layer in range(3):
        assert ctx.at(layer).once("key", lambda: calls.append(1) or 7) == 7
        assert ctx.at(layer).layer == layer
    assert len(calls) == 1
    assert Context(True).once("key", lambda: 8) == 8
