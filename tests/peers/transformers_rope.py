"""Rotary embeddings of transformers: rope types, order of calls, layer types, bfloat16."""

import torch
from transformers import GPTNeoXConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from peers import formulas, ours
from peers.compare import Probe, Values, at_position, grid, named


def rotary(
    head_dim: int, kind: str, train_length: int = 2048, **parameters
) -> LlamaRotaryEmbedding:
    """The rotary module of a Llama with this rope_type, trained at a length."""
    base = parameters.pop("base", 10000.0)
    longest = int(train_length * parameters.get("factor", 1))
    # for `dynamic` this is the trained length, for the others the extended one
    longest = train_length if kind in ("default", "dynamic") else longest
    rope = {"rope_type": kind, "rope_theta": base, **parameters}
    if kind in ("yarn", "llama3", "longrope"):
        rope["original_max_position_embeddings"] = train_length
    return LlamaRotaryEmbedding(
        LlamaConfig(
            head_dim=head_dim,
            hidden_size=head_dim,
            num_attention_heads=1,
            max_position_embeddings=longest,
            rope_parameters=rope,
        )
    )


def seen(module: LlamaRotaryEmbedding, *lengths: int) -> LlamaRotaryEmbedding:
    """The module after it was called at these lengths, in this order."""
    for length in lengths:
        module(torch.zeros(1), torch.arange(length)[None])
    return module


def values(module: LlamaRotaryEmbedding, scale: bool = False) -> Values:
    found = named("frequency of pair", module.inv_freq.tolist())
    return found | ({"factor on cos and sin": module.attention_scaling} if scale else {})


def scaled(kind: str, **fixed):
    """Peer's side of a probe: frequencies and factor of a rope_type."""
    return lambda head_dim, **at: values(rotary(head_dim, kind, **fixed, **at), scale=True)


def with_scale(rule, factor=lambda **at: 1.0):
    """Oracle's side: a formula and what belongs on cos and sin."""
    frequencies = formulas.frequencies(rule)
    return lambda **at: frequencies(**at) | {"factor on cos and sin": factor(**at)}


def mine(name: str, **fixed):
    return lambda **at: ours.scaled(name, **fixed, **at)


def nested_yarn(head_dim: int, train_length: int, factor: float, truncate: bool) -> Values:
    """YaRN of one layer type, in a dictionary of layer types."""
    config = rotary(head_dim, "default", train_length * factor).config
    config.rope_parameters = {
        "full_attention": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": factor,
            "truncate": truncate,
            "original_max_position_embeddings": train_length,
        }
    }
    found, _ = ROPE_INIT_FUNCTIONS["yarn"](config, layer_type="full_attention")
    return named("frequency of pair", found.tolist())


def longrope(head_dim: int, train_length: int, factor: float, length: int) -> Values:
    ramp = ramp_of(head_dim, factor)
    keys = {"factor": factor, "long_factor": ramp, "short_factor": [1.0] * (head_dim // 2)}
    return values(seen(rotary(head_dim, "longrope", train_length, **keys), length), scale=True)


def ramp_of(head_dim: int, factor: float) -> list[float]:
    """Divisors that grow from 1 to the factor; real ones are searched and come with a model."""
    last = head_dim // 2 - 1
    return [1 + (factor - 1) * p / last for p in range(last + 1)]


def longrope_ours(head_dim: int, train_length: int, factor: float, length: int) -> Values:
    return ours.scaled(
        "longrope",
        head_dim=head_dim,
        train_length=train_length,
        test_length=length,
        factor=factor,
        long_factor=ramp_of(head_dim, factor),
        short_factor=[1.0] * (head_dim // 2),
    )


def longrope_formula(head_dim: int, train_length: int, factor: float, length: int) -> Values:
    divisors = ramp_of(head_dim, factor) if length > train_length else [1.0] * (head_dim // 2)
    found = [f / x for f, x in zip(formulas.rope(head_dim), divisors, strict=True)]
    scale = formulas.longrope_scale(factor, train_length)
    return named("frequency of pair", found) | {"factor on cos and sin": scale}


def after(head_dim: int, first: int, then: int) -> Values:
    """Dynamic NTK trained at 128, called at one length and then at another."""
    return values(seen(rotary(head_dim, "dynamic", 128, factor=1.0), first, then))


def neox(head_dim: int, rotary_fraction: float) -> Values:
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    rope |= {"partial_rotary_factor": rotary_fraction}
    size = {"hidden_size": head_dim, "num_attention_heads": 1}
    return values(GPTNeoXRotaryEmbedding(GPTNeoXConfig(**size, rope_parameters=rope)))


def bfloat16_module(head_dim: int, length: int) -> Values:
    """Tables asked for in float32."""
    module = rotary(head_dim, "default").to(torch.bfloat16)
    cos, _ = module(torch.zeros(1), torch.tensor([[length - 1]]))
    return at_position("cos", length - 1, cos[0, 0, : head_dim // 2].tolist())


DIMS = [4, 8, 64, 128]
SMALL = {"head_dim": [4, 8, 64], "factor": [1.0, 2.0, 8.0]}
LENGTHS = [64, 128, 129, 256, 1024]

PROBES = [
    Probe(
        scheme="rope",
        part="rope_type default",
        grid=grid(head_dim=[2, *DIMS], base=[10000.0, 500000.0]),
        peer=scaled("default"),
        ours=mine("rope"),
        oracle=with_scale(formulas.rope),
        rule="base^(-2p/d) written out",
    ),
    Probe(
        scheme="pi",
        part="rope_type linear",
        grid=grid(**SMALL),
        peer=scaled("linear"),
        ours=mine("pi"),
        oracle=with_scale(formulas.pi),
        rule="the formula of arXiv:2306.15595 written out",
    ),
    Probe(
        scheme="dynamic_ntk",
        part="rope_type dynamic, a new module",
        grid=grid(head_dim=[4, 8, 64], alpha=[1.0, 2.0], length=LENGTHS),
        peer=lambda head_dim, alpha, length: values(
            seen(rotary(head_dim, "dynamic", 128, factor=alpha), length)
        ),
        ours=lambda head_dim, alpha, length: ours.frequencies(
            "dynamic_ntk", head_dim=head_dim, alpha=alpha, train_length=128, test_length=length
        ),
        oracle=formulas.frequencies(lambda **at: formulas.dynamic_ntk(train_length=128, **at)),
        rule="the formula of the length at hand written out",
    ),
    Probe(
        scheme="dynamic_ntk",
        part="rope_type dynamic, after a length",
        grid=grid(head_dim=[4, 64], first=LENGTHS, then=LENGTHS),
        peer=after,
        ours=lambda head_dim, first, then: [
            ours.frequencies("dynamic_ntk", head_dim=head_dim, train_length=128, test_length=n)
            for n in (first, then)
        ][-1],
        oracle=formulas.frequencies(
            lambda head_dim, first, then: formulas.dynamic_ntk(head_dim, 128, then)
        ),
        rule="the formula of the length at hand written out, whatever was called before",
    ),
    Probe(
        scheme="yarn",
        part="rope_type yarn",
        grid=grid(
            head_dim=DIMS,
            train_length=[64, 256, 2048],
            factor=[1.0, 4.0, 8.0],
            truncate=[True, False],
        ),
        peer=scaled("yarn"),
        ours=mine("yarn"),
        oracle=with_scale(formulas.yarn, lambda factor, **_: formulas.yarn_scale(factor)),
        rule="YaRN's released ramp and 0.1 ln s + 1 written out",
    ),
    Probe(
        scheme="yarn",
        part="rope_type yarn of one layer type",
        grid=grid(
            head_dim=[4, 8, 64], train_length=[256, 2048], factor=[4], truncate=[True, False]
        ),
        peer=nested_yarn,
        ours=lambda **at: ours.frequencies("yarn", **at),
        oracle=formulas.frequencies(formulas.yarn),
        rule="YaRN's released ramp written out, with cut-offs rounded as `truncate` says",
    ),
    Probe(
        scheme="llama3",
        part="rope_type llama3",
        grid=grid(head_dim=DIMS, train_length=[2048, 8192], factor=[8.0], base=[500000.0]),
        peer=scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0),
        ours=mine("llama3"),
        oracle=with_scale(lambda **at: formulas.by_turns(**at, low=1, high=4)),
        rule="Llama 3.1's released rule written out",
    ),
    Probe(
        scheme="longrope",
        part="rope_type longrope",
        grid=grid(head_dim=[4, 64], train_length=[128], factor=[2.0, 8.0], length=LENGTHS),
        peer=longrope,
        ours=longrope_ours,
        oracle=longrope_formula,
        rule="the rule of arXiv:2402.13753 written out",
    ),
    Probe(
        scheme="p_rope",
        part="rope_type proportional",
        grid=grid(head_dim=[4, 8, 64], rotary_fraction=[0.25, 0.5, 1.0]),
        peer=lambda head_dim, rotary_fraction: values(
            rotary(head_dim, "proportional", partial_rotary_factor=rotary_fraction)
        ),
        ours=lambda **at: ours.frequencies("p_rope", **at),
        oracle=formulas.frequencies(
            lambda head_dim, rotary_fraction: [
                f if p < int(rotary_fraction * head_dim // 2) else 0.0
                for p, f in enumerate(formulas.rope(head_dim))
            ]
        ),
        rule="the ladder of the whole head, its slow end set to 0 (arXiv:2410.06205)",
    ),
    Probe(
        scheme="rope",
        part="rope_type default, cast to bfloat16",
        grid=grid(head_dim=[2, 8, 64], length=[2, 129, 258, 1024, 8192]),
        peer=bfloat16_module,
        ours=ours.bfloat16_module,
        oracle=formulas.cosines,
        rule="cos of position times frequency in float64",
        tolerance=1e-2,
        relative=False,
    ),
    Probe(
        scheme="partial_rope",
        part="GPTNeoXRotaryEmbedding",
        grid=grid(head_dim=[8, 64, 128], rotary_fraction=[0.25, 0.5, 1.0]),
        peer=neox,
        ours=lambda **at: ours.frequencies("partial_rope", **at),
        oracle=formulas.frequencies(
            lambda head_dim, rotary_fraction: formulas.rope(int(head_dim * rotary_fraction))
        ),
        rule="the ladder of the turned channels alone",
    ),
]
