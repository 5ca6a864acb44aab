"""transformers: its rope types, ALiBi of three models, T5's buckets, and V-JEPA 2's rotation."""

import torch
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.vjepa2.modeling_vjepa2 import rotate_queries_or_keys

from peers import formulas, ours, transformers_alibi, transformers_rope
from peers.compare import Probe, Values, at_distances, grid


def buckets(buckets: int, max_distance: int, distances: list[int]) -> Values:
    behind = -torch.tensor(distances)
    found = T5Attention._relative_position_bucket(behind, False, buckets, max_distance)
    return at_distances("bucket", distances, found.tolist())


def moved(turn, head_dim: int, shift: int) -> Values:
    """How far scores of a few queries and keys move when both positions are shifted."""
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(8, head_dim, generator=draw, dtype=torch.float64) for _ in "qk")

    def scores(start: int) -> torch.Tensor:
        pairs = zip(q, k, strict=True)
        return torch.stack([turn(a, start + 3) @ turn(b, start) for a, b in pairs])

    return {"largest change of a score": float((scores(shift) - scores(0)).abs().max())}


def vjepa2(x: torch.Tensor, position: int) -> torch.Tensor:
    at = torch.tensor([position], dtype=x.dtype)[None, None]
    return rotate_queries_or_keys(x[None, None, None], at)[0, 0, 0]


PROBES = [
    *transformers_rope.PROBES,
    *transformers_alibi.PROBES,
    Probe(
        scheme="t5",
        part="T5Attention, causal buckets",
        grid=formulas.BUCKETS,
        peer=buckets,
        ours=ours.buckets,
        oracle=formulas.t5_buckets,
        rule="the bucket rule in whole numbers",
        tolerance=0.5,
        relative=False,
    ),
    Probe(
        scheme="rope",
        part="vjepa2 rotate_queries_or_keys",
        grid=grid(head_dim=[2, 4, 8, 64], shift=[1, 7, 1000]),
        peer=lambda **at: moved(vjepa2, **at),
        ours=lambda **at: moved(ours.turned, **at),
        oracle=lambda **_: {"largest change of a score": 0.0},
        rule="the property that a shift of both positions changes no score",
        tolerance=1e-3,
        relative=False,
    ),
]
