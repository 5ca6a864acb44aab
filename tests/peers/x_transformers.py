"""x-transformers: rotary tables, T5 buckets and ALiBi."""

import torch
from x_transformers.x_transformers import (
    AlibiPositionalBias,
    RelativePositionBias,
    RotaryEmbedding,
)

from peers import formulas, ours
from peers.compare import Probe, Values, at_distances, at_position, grid, named

SMALL = {"head_dim": [4, 8, 64, 128], "factor": [1.0, 2.0, 8.0]}


def angles(module: RotaryEmbedding, position: int = 1) -> torch.Tensor:
    """Angle of every pair at a position; the module lays pairs out side by side."""
    freqs, _ = module(torch.tensor([position]))
    return freqs[0, 0, ::2].double()


def rotary(head_dim: int, **options) -> Values:
    return named("frequency of pair", angles(RotaryEmbedding(head_dim, **options)).tolist())


def bfloat16_module(head_dim: int, length: int) -> Values:
    module = RotaryEmbedding(head_dim).to(torch.bfloat16)
    return at_position("cos", length - 1, angles(module, length - 1).cos().tolist())


def alibi(heads: int, length: int, before: int) -> Values:
    """Bias of the last query's first key, after the module was called at another length."""
    module = AlibiPositionalBias(heads)
    module(before, before)
    far = module(length, length)[:, -1, 0] / (length - 1)
    return named("slope of head", (-far).tolist())


def buckets(buckets: int, max_distance: int, distances: list[int]) -> Values:
    behind = -torch.tensor(distances)
    found = RelativePositionBias._relative_position_bucket(behind, True, buckets, max_distance)
    return at_distances("bucket", distances, found.tolist())


PROBES = [
    Probe(
        scheme="rope",
        part="RotaryEmbedding",
        grid=grid(head_dim=[4, 8, 64, 128], base=[10000.0, 500000.0]),
        peer=rotary,
        ours=lambda **at: ours.frequencies("rope", **at),
        oracle=formulas.frequencies(formulas.rope),
        rule="base^(-2p/d) written out",
    ),
    Probe(
        scheme="pi",
        part="RotaryEmbedding, interpolation_factor",
        grid=grid(**SMALL),
        peer=lambda head_dim, factor: rotary(head_dim, interpolation_factor=factor),
        ours=lambda **at: ours.frequencies("pi", **at),
        oracle=formulas.frequencies(formulas.pi),
        rule="the formula of arXiv:2306.15595 written out",
    ),
    Probe(
        scheme="ntk",
        part="RotaryEmbedding, base_rescale_factor",
        grid=grid(**SMALL),
        peer=lambda head_dim, factor: rotary(head_dim, base_rescale_factor=factor),
        ours=lambda **at: ours.frequencies("ntk", **at),
        oracle=formulas.frequencies(formulas.ntk),
        rule="the formula of arXiv:2309.00071 section 3.1 written out",
    ),
    Probe(
        scheme="rope",
        part="RotaryEmbedding, cast to bfloat16",
        grid=grid(head_dim=[4, 8, 64], length=[2, 129, 258, 1024, 8192]),
        peer=bfloat16_module,
        ours=ours.bfloat16_module,
        oracle=formulas.cosines,
        rule="cos of position times frequency in float64",
        tolerance=1e-2,
        relative=False,
    ),
    Probe(
        scheme="alibi",
        part="AlibiPositionalBias, after a length",
        grid=grid(heads=range(1, 17), length=[2, 64, 1024], before=[1, 64, 128]),
        peer=alibi,
        ours=ours.slopes,
        oracle=lambda heads, **_: named("slope of head", formulas.alibi_slopes(heads)),
        rule="the published recipe written out (arXiv:2108.12409, official code)",
    ),
    Probe(
        scheme="t5",
        part="RelativePositionBias, causal buckets",
        grid=formulas.BUCKETS,
        peer=buckets,
        ours=ours.buckets,
        oracle=formulas.t5_buckets,
        rule="the bucket rule in whole numbers",
        tolerance=0.5,
        relative=False,
    ),
]
