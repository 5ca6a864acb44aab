"""Rescalings against the functions of transformers."""

import math

import pytest
import torch
from oracles import normal, positions, rope, rule
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from posbench.encodings.base import Context

SHAPES = [(8, 2048), (64, 128), (32, 64), (128, 4096), (64, 32)]
CLOSE = {"rtol": 2e-6, "atol": 0}


def config(dim, length, kind, base=10000.0, **parameters):
    return LlamaConfig(
        hidden_size=dim,
        num_attention_heads=1,
        head_dim=dim,
        max_position_embeddings=length,
        rope_parameters={"rope_type": kind, "rope_theta": base, **parameters},
    )


def theirs(dim, length, kind, test_length=None, **parameters):
    """Frequencies and the factor on cos and sin."""
    found, factor = ROPE_INIT_FUNCTIONS[kind](
        config(dim, length, kind, **parameters), "cpu", seq_len=test_length
    )
    return found.double(), factor


@pytest.mark.parametrize(("dim", "length"), SHAPES)
@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0])
def test_pi(dim, length, factor):
    wanted, _ = theirs(dim, length, "linear", factor=factor)
    found = rule("pi", factor=factor).applied(rope(dim, length), length, length)
    torch.testing.assert_close(found.inv_freq, wanted, **CLOSE)


@pytest.mark.parametrize(("dim", "length"), SHAPES)
@pytest.mark.parametrize("alpha", [1, 2, 4])
@pytest.mark.parametrize("times", [0.5, 1, 1.5, 2, 16])
def test_dynamic_ntk(dim, length, alpha, times):
    """A fresh module for every length: theirs keeps the longest that it has seen."""
    test_length = int(times * length)
    module = LlamaRotaryEmbedding(config(dim, length, "dynamic", factor=float(alpha)))
    ids = torch.arange(test_length)[None]
    cos, sin = module(torch.zeros(1), ids)
    found = rule("dynamic_ntk", alpha=alpha).applied(rope(dim, length), length, test_length)
    torch.testing.assert_close(found.inv_freq, module.inv_freq.double(), **CLOSE)
    wanted, _ = theirs(dim, length, "dynamic", test_length, factor=float(alpha))
    torch.testing.assert_close(found.inv_freq, wanted, **CLOSE)
    ours = found.cos_sin(positions(test_length), torch.float32, Context(True))
    for a, b in zip(ours, (cos, sin), strict=True):
        error = (a[0, 0].repeat(1, 2) - b[0]).abs().max()
        assert error < 1e-6 * test_length  # theirs multiplies in float32


@pytest.mark.parametrize(("dim", "length"), SHAPES)
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("factor", [2.0, 4.0, 32.0])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 32.0), (2.0, 16.0)])
def test_yarn(dim, length, truncate, factor, alpha, beta):
    wanted, attention_factor = theirs(
        dim,
        length,
        "yarn",
        factor=factor,
        truncate=truncate,
        beta_slow=alpha,
        beta_fast=beta,
        original_max_position_embeddings=length,
    )
    found = rule("yarn", factor=factor, truncate=truncate, alpha=alpha, beta=beta).applied(
        rope(dim, length), length, length
    )
    torch.testing.assert_close(found.inv_freq, wanted, rtol=2e-5, atol=0)
    # theirs multiplies cos and sin of both queries and keys, ours the scores
    assert found.logit_multiplier == pytest.approx(attention_factor**2, rel=1e-12)


@pytest.mark.parametrize("factor", [1.0, 4.0, 40.0])
@pytest.mark.parametrize(
    "given",
    [
        {"attention_factor": 1.0},
        {"attention_factor": 1.3},
        {"mscale": 1.0, "mscale_all_dim": 1.0},
        {"mscale": 0.707, "mscale_all_dim": 0.707},
        {"mscale": 0.5, "mscale_all_dim": 1.5},
        {"mscale": 0.707},
        {"mscale_all_dim": 0.5},
    ],
)
def test_temperatures_of_yarn(factor, given):
    _, wanted = theirs(
        64, 128, "yarn", factor=factor, original_max_position_embeddings=128, **given
    )
    assert rule("yarn", factor=factor, **given).rotation_scale(factor) == pytest.approx(wanted)


@pytest.mark.parametrize(("dim", "length"), SHAPES)
@pytest.mark.parametrize("factor", [2.0, 4.0, 32.0])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 32.0), (1.0, 4.0)])
@pytest.mark.parametrize("name", ["ntk_by_parts", "llama3"])
def test_llama3(dim, length, factor, alpha, beta, name):
    wanted, attention_factor = theirs(
        dim,
        length,
        "llama3",
        factor=factor,
        low_freq_factor=alpha,
        high_freq_factor=beta,
        original_max_position_embeddings=length,
    )
    found = rule(name, factor=factor, alpha=alpha, beta=beta).applied(
        rope(dim, length), length, length
    )
    assert attention_factor == 1.0
    assert found.logit_multiplier == 1.0
    torch.testing.assert_close(found.inv_freq, wanted, rtol=2e-5, atol=0)


def factors(dim, largest):
    """Growing ones, as a search finds them."""
    return [largest ** ((p / (dim // 2)) ** 2) for p in range(dim // 2)]


@pytest.mark.parametrize(("dim", "length"), SHAPES)
@pytest.mark.parametrize("factor", [1.0, 4.0, 32.0])
@pytest.mark.parametrize("attention_factor", [None, 1.0, 1.7])
@pytest.mark.parametrize("times", [0.5, 1, 1.5, 4])
def test_longrope(dim, length, factor, attention_factor, times):
    both = {"long_factor": factors(dim, 1.5 * factor), "short_factor": factors(dim, 1.1)}
    both["attention_factor"] = attention_factor
    n = int(times * length)
    wanted, on_tables = theirs(
        dim, length, "longrope", n, factor=factor, original_max_position_embeddings=length, **both
    )
    found = rule("longrope", factor=factor, **both).applied(rope(dim, length), length, n)
    torch.testing.assert_close(found.inv_freq, wanted, **CLOSE)
    assert found.logit_multiplier == pytest.approx(on_tables**2, rel=1e-12)
    assert found.own_tables(torch.arange(1))["rotation_scale"] == pytest.approx(on_tables)


#: in the last two a cut-off lies past the last pair, and past the head size
@pytest.mark.parametrize(
    ("dim", "length", "base"),
    [(64, 128, 72.0), (64, 128, 500000.0), (8, 2048, 72.0), (8, 32768, 72.0)],
)
@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_on_other_bases(dim, length, base, truncate):
    rescale = rule("yarn", factor=8.0, truncate=truncate)
    found = rescale.applied(rope(dim, length, base), length, length)
    parameters = {"factor": 8.0, "truncate": truncate, "original_max_position_embeddings": length}
    wanted, _ = theirs(dim, length, "yarn", base=base, **parameters)
    torch.testing.assert_close(found.inv_freq, wanted, rtol=2e-5, atol=0)


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("pi", {}, {"rope_type": "linear"}),
        ("yarn", {}, {"rope_type": "yarn"}),
        ("yarn", {"attention_factor": 0.9}, {"rope_type": "yarn", "attention_factor": 0.9}),
        (
            "llama3",
            {"beta": 8.0},
            {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 8.0},
        ),
        (
            "longrope",
            {"long_factor": factors(64, 4.0), "short_factor": factors(64, 1.2)},
            {
                "rope_type": "longrope",
                "long_factor": factors(64, 4.0),
                "short_factor": factors(64, 1.2),
            },
        ),
    ],
)
@pytest.mark.parametrize("n", [64, 65, 200])
def test_attention(name, options, parameters, n):
    """Tables with their factor, and ours with the scale on the scores, give equal attention."""
    kind = parameters["rope_type"]
    own = {k: v for k, v in parameters.items() if k != "rope_type"}
    if kind != "linear":
        own["original_max_position_embeddings"] = 64
    module = LlamaRotaryEmbedding(config(64, 64, kind, factor=4.0, **own))
    q, k, v = (normal(1, 2, n, 64, seed=s, dtype=torch.float32) for s in (1, 2, 3))
    turned = apply_rotary_pos_emb(q, k, *module(q, torch.arange(n)[None]))
    scores = turned[0] @ turned[1].transpose(2, 3) / math.sqrt(64)
    future = torch.ones(n, n).triu(1) > 0
    wanted = scores.masked_fill(future, -math.inf).softmax(-1) @ v
    encoding = rule(name, factor=4.0, **options).applied(rope(64, 64), 64, n)
    pos = positions(n)
    got = encoding.attend(q, k, v, pos, pos, Context(True))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
