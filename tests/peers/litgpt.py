"""litgpt: its table builder, read back from the cos and sin it returns."""

import torch
from litgpt.model import build_rope_cache

from peers import formulas, ours
from peers.compare import Probe, Values, grid, named

SHAPES = {"head_dim": [4, 8, 16, 64, 128], "base": [10000.0, 500000.0]}


def read_back(head_dim: int, base: float = 10000.0, scale: bool = False, **options) -> Values:
    """Frequencies and factor from row 1 of the tables: every frequency is below pi."""
    cos, sin = build_rope_cache(2, head_dim, base=base, **options)
    cos, sin = (x[1, : head_dim // 2].double() for x in (cos, sin))
    found = named("frequency of pair", torch.atan2(sin, cos).tolist())
    return found | ({"factor on cos and sin": float(torch.hypot(sin, cos)[0])} if scale else {})


def linear(head_dim: int, factor: float) -> Values:
    return read_back(head_dim, extra_config={"factor": factor})


def llama3(head_dim: int, train_length: int, factor: float, base: float) -> Values:
    extra = {"factor": factor, "low_freq_factor": 1, "high_freq_factor": 4}
    return read_back(head_dim, base, extra_config=extra | {"original_max_seq_len": train_length})


def yarn(head_dim: int, train_length: int, factor: float, scale: bool = False) -> Values:
    extra = {"factor": factor, "beta_fast": 32, "beta_slow": 1}
    extra |= {"original_max_seq_len": train_length}
    return read_back(head_dim, scale=scale, extra_config=extra)


def factor_of(values: Values) -> Values:
    return {"factor on cos and sin": values["factor on cos and sin"]}


YARN = {"head_dim": [4, 8, 16, 64, 128], "train_length": [256, 2048, 4096], "factor": [2, 8]}

PROBES = [
    Probe(
        scheme="rope",
        part="build_rope_cache",
        grid=grid(**SHAPES),
        peer=read_back,
        ours=lambda **at: ours.frequencies("rope", **at),
        oracle=formulas.frequencies(formulas.rope),
        rule="base^(-2p/d) written out",
    ),
    Probe(
        scheme="pi",
        part="build_rope_cache, factor",
        grid=grid(head_dim=[4, 64], factor=[2, 4, 8]),
        peer=linear,
        ours=lambda **at: ours.frequencies("pi", **at),
        oracle=formulas.frequencies(formulas.pi),
        rule="the formula of arXiv:2306.15595 written out",
    ),
    Probe(
        scheme="llama3",
        part="build_rope_cache, Llama 3 keys",
        grid=grid(head_dim=[4, 64, 128], train_length=[2048, 8192], factor=[8], base=[5e5]),
        peer=llama3,
        ours=lambda **at: ours.frequencies("llama3", **at),
        oracle=formulas.frequencies(lambda **at: formulas.by_turns(**at, low=1, high=4)),
        rule="Llama 3.1's released rule written out",
    ),
    Probe(
        scheme="yarn",
        part="build_rope_cache, YaRN keys",
        grid=grid(**YARN),
        peer=yarn,
        ours=lambda **at: ours.frequencies("yarn", **at),
        oracle=formulas.frequencies(formulas.yarn),
        rule="YaRN's released ramp written out (arXiv:2309.00071, official code)",
    ),
    Probe(
        scheme="yarn",
        part="build_rope_cache, YaRN, no mscale",
        grid=grid(head_dim=[4], train_length=[256], factor=[1, 2, 8]),
        peer=lambda **at: factor_of(yarn(**at, scale=True)),
        ours=lambda **at: factor_of(ours.scaled("yarn", **at)),
        oracle=lambda factor, **_: {"factor on cos and sin": formulas.yarn_scale(factor)},
        rule="0.1 ln s + 1 (arXiv:2309.00071 section 3.4)",
    ),
]
