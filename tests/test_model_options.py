"""`model.qk_norm` and `model.qkv_bias` under rope and alibi: the formula, and what stays."""

import math
from typing import Any

import pytest
import torch
from oracles import alibi_slopes, normal, positions, theta, tiny_model, tokens, turned
from torch import Tensor

from posbench.encodings.base import Context
from posbench.model import Decoder

HEADS, WIDTH = 4, 8
OPTIONS: list[dict[str, Any]] = [
    {"qk_norm": True},
    {"qkv_bias": True},
    {"qk_norm": True, "qkv_bias": True},
]


def filled(name: str, **options: Any) -> Decoder:
    """A model in float64 whose norms and biases are not at their start."""
    model = tiny_model(name, **options).double()
    with torch.no_grad():
        for i, (key, p) in enumerate(model.named_parameters()):
            if p.ndim == 1:
                p.copy_(normal(*p.shape, seed=i) * 0.3 + (0 if key.endswith("bias") else 1))
    return model


def by_hand(model: Decoder, name: str, x: Tensor, options: dict[str, Any]) -> Tensor:
    """Attention [T, D] of the first layer for a normed stream [T, D], head by head."""
    own = {n: p.detach() for n, p in model.blocks[0].attention.named_parameters()}
    length, out = len(x), []
    at = positions(length)
    for h in range(HEADS):
        rows = slice(h * WIDTH, (h + 1) * WIDTH)
        q, k, v = (
            x @ own[f"{n}_proj.weight"][rows].T
            + (own[f"{n}_proj.bias"][rows] if options.get("qkv_bias") else 0)
            for n in "qkv"
        )
        if options.get("qk_norm"):
            q, k = (
                y / (y**2).mean(-1, keepdim=True).add(1e-6).sqrt() * own[f"{n}_norm.weight"]
                for n, y in (("q", q), ("k", k))
            )
        if name == "rope":
            q, k = (turned(y[None, None], at, theta(WIDTH))[0, 0] for y in (q, k))
        for i in range(length):
            scores = torch.stack([q[i] @ k[j] / math.sqrt(WIDTH) for j in range(i + 1)])
            if name == "alibi":
                slope = alibi_slopes(HEADS)[h]
                scores = scores - slope * torch.arange(i, -1, -1, dtype=torch.float64)
            out.append(scores.softmax(0) @ v[: i + 1])
    heads = torch.stack(out).reshape(HEADS, length, WIDTH)
    return heads.transpose(0, 1).flatten(1) @ own["o_proj.weight"].T


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["rope", "alibi"])
@torch.no_grad()
def test_the_formula_is_the_loop(name: str, options: dict[str, Any]) -> None:
    model = filled(name, **options)
    x, pos = normal(1, 13, 32, seed=9), positions(13)
    layer, ctx = model.blocks[0].attention, Context(True)
    wanted = by_hand(model, name, x[0], options)
    torch.testing.assert_close(layer(x, pos, model.posenc, ctx)[0], wanted, rtol=0, atol=1e-12)
    plain = by_hand(model, name, x[0], options={})
    assert float((wanted - plain).abs().max()) > 1e-3
    last = layer(x, pos, model.posenc, Context(True), 3)
    torch.testing.assert_close(last[0], wanted[-3:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["none", "rope", "alibi", "t5"])
def test_other_parameters_start_as_they_do_without(name: str, options: dict[str, Any]) -> None:
    plain = dict(tiny_model(name).named_parameters())
    model = dict(tiny_model(name, **options).named_parameters())
    assert all(torch.equal(model[key], plain[key]) for key in plain)
    new = {key: p for key, p in model.items() if key not in plain}
    kinds = [*(["norm.weight"] if options.get("qk_norm") else [])]
    kinds += ["proj.bias"] if options.get("qkv_bias") else []
    assert len(new) == 2 * (2 * ("norm.weight" in kinds) + 3 * ("proj.bias" in kinds))
    for key, p in new.items():
        assert key.endswith(tuple(kinds))
        assert torch.equal(p, torch.full_like(p, float(key.endswith("weight"))))


@pytest.mark.parametrize("name", ["rope", "alibi"])
@torch.no_grad()
def test_biases_of_0_change_nothing(name: str) -> None:
    ids = tokens(20)
    torch.testing.assert_close(tiny_model(name, qkv_bias=True)(ids), tiny_model(name)(ids))


@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_under_qk_norm_scores_are_bounded(name: str) -> None:
    """|q . k| / sqrt(K) <= sqrt(K) however large the projections; and all of it learns."""
    model = tiny_model(name, qk_norm=True, qkv_bias=True)
    layer, x = model.blocks[0].attention, normal(1, 9, 32, seed=1, dtype=torch.float32)
    with torch.no_grad():
        heads = layer.q_norm(1000 * layer.q_proj(x).unflatten(-1, (HEADS, -1)))
    assert float(heads.norm(dim=-1).max()) <= math.sqrt(WIDTH) * (1 + 1e-5)
    model(tokens(20)).logsumexp(-1).sum().backward()
    assert all(float(p.grad.abs().max()) > 0 for p in layer.parameters())
