"""rotary-embedding-torch: tables, types of queries, its cache, and xPos with cached keys."""

import torch
from rotary_embedding_torch import RotaryEmbedding

from peers import formulas, ours
from peers.compare import Probe, Values, at_position, grid, named

SMALL = {"head_dim": [4, 8, 64, 128], "factor": [1.0, 2.0, 8.0]}


def rotary(head_dim: int, **options) -> Values:
    """Frequencies as the angle at position 1."""
    module = RotaryEmbedding(head_dim, **options)
    angle = module(module.get_seq_pos(2), seq_len=2)[1, ::2]
    return named("frequency of pair", angle.tolist())


def cosines(module: RotaryEmbedding, length: int, dtype: torch.dtype) -> Values:
    """cos of every pair at the last position, from rotated queries (1, 0, 1, 0, ...)."""
    q = torch.zeros(1, 1, length, module.freqs.numel() * 2, dtype=dtype)
    q[..., ::2] = 1
    turned = module.rotate_queries_or_keys(q)[0, 0, -1, ::2]
    return at_position("cos", length - 1, turned.tolist())


def axial(head_dim: int, rows: int, columns: int) -> Values:
    """cos of every pair at the last pixel of a picture, whose axes have half the head each."""
    angle = RotaryEmbedding(head_dim // 2).get_axial_freqs(rows, columns)[-1, -1, ::2]
    return at_position("cos", rows * columns - 1, angle.cos().tolist())


def bfloat16_queries(head_dim: int, length: int) -> Values:
    return cosines(RotaryEmbedding(head_dim), length, torch.bfloat16)


def after_bfloat16(head_dim: int, length: int) -> Values:
    """float32 queries after bfloat16 queries of the same length, by one module."""
    module = RotaryEmbedding(head_dim)
    cosines(module, length, torch.bfloat16)
    return cosines(module, length, torch.float32)


def bfloat16_module(head_dim: int, length: int) -> Values:
    return cosines(RotaryEmbedding(head_dim).to(torch.bfloat16), length, torch.float32)


def cached_xpos(head_dim: int, length: int) -> Values:
    """The last query against all keys: with cached keys, and in one pass of a new module."""
    q, k = ours.queries_and_keys(head_dim, length)
    full_q, full_k = RotaryEmbedding(head_dim, use_xpos=True).rotate_queries_and_keys(q, k)
    module = RotaryEmbedding(head_dim, use_xpos=True)
    last_q, all_k = module.rotate_queries_with_cached_keys(q[:, :, -1:], k)
    return ours.gap(last_q @ all_k.mT, full_q[:, :, -1:] @ full_k.mT)


PROBES = [
    Probe(
        scheme="rope",
        part="RotaryEmbedding",
        grid=grid(head_dim=[4, 8, 64, 128], base=[10000.0, 500000.0]),
        peer=lambda head_dim, base: rotary(head_dim, theta=base),
        ours=lambda **at: ours.frequencies("rope", **at),
        oracle=formulas.frequencies(formulas.rope),
        rule="base^(-2p/d) written out",
    ),
    Probe(
        scheme="pi",
        part="RotaryEmbedding, interpolate_factor",
        grid=grid(**SMALL),
        peer=lambda head_dim, factor: rotary(head_dim, interpolate_factor=factor),
        ours=lambda **at: ours.frequencies("pi", **at),
        oracle=formulas.frequencies(formulas.pi),
        rule="the formula of arXiv:2306.15595 written out",
    ),
    Probe(
        scheme="ntk",
        part="RotaryEmbedding, theta_rescale_factor",
        grid=grid(**SMALL),
        peer=lambda head_dim, factor: rotary(head_dim, theta_rescale_factor=factor),
        ours=lambda **at: ours.frequencies("ntk", **at),
        oracle=formulas.frequencies(formulas.ntk),
        rule="the formula of arXiv:2309.00071 section 3.1 written out",
    ),
    Probe(
        scheme="rope_axial",
        part="get_axial_freqs",
        grid=grid(head_dim=[8, 64], rows=[2, 16], columns=[2, 16, 64]),
        peer=axial,
        ours=ours.axial_cosines,
        oracle=formulas.axial_cosines,
        rule="cos of coordinate times the frequency of half the head",
        relative=False,
    ),
    *(
        Probe(
            scheme="rope",
            part=part,
            grid=grid(head_dim=[4, 64], length=[2, 129, 257, 258, 513, 1024, 8192]),
            peer=peer,
            ours=mine,
            oracle=formulas.cosines,
            rule="cos of position times frequency in float64",
            tolerance=1e-2,
            relative=False,
        )
        for part, peer, mine in (
            ("bfloat16 queries", bfloat16_queries, ours.bfloat16_queries),
            (
                "float32 queries after bfloat16 ones",
                after_bfloat16,
                ours.after_bfloat16,
            ),
            ("RotaryEmbedding, cast to bfloat16", bfloat16_module, ours.bfloat16_module),
        )
    ),
    Probe(
        scheme="xpos",
        part="cached keys against one pass",
        grid=grid(head_dim=[4, 8, 64], length=[2, 3, 4, 16, 64, 512]),
        peer=cached_xpos,
        ours=ours.cached_xpos,
        oracle=lambda **_: {"gap of the last query's scores": 0.0},
        rule="the property that cached keys change no score",
        tolerance=1e-4,
        relative=False,
    ),
]
