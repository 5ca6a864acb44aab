"""What posbench has, in the form that probes compare. posbench is imported where it is used."""

from typing import Any

import torch
from torch import Tensor

from peers.compare import Values, at_distances, at_position, named


def tables(name: str, **keys: Any) -> dict[str, Any]:
    """posbench's numeric tables of a scheme or rescaling."""
    import posbench

    return posbench.tables(name, **keys)


def frequencies(name: str, **keys: Any) -> Values:
    """Frequency of every pair."""
    return named("frequency of pair", tables(name, **keys)["inv_freq"])


def scaled(name: str, **keys: Any) -> Values:
    """Frequency of every pair, and the factor on cos and sin."""
    found = tables(name, **keys)
    scale = {"factor on cos and sin": found["rotation_scale"]}
    return named("frequency of pair", found["inv_freq"]) | scale


def slopes(heads: int, **_: Any) -> Values:
    """ALiBi's slope of every head."""
    return named("slope of head", tables("alibi", heads=heads)["slopes"])


def buckets(buckets: int, max_distance: int, distances: list[int]) -> Values:
    """T5's causal bucket of every distance."""
    keys = {"buckets": buckets, "max_distance": max_distance, "distances": distances}
    return at_distances("bucket", distances, tables("t5", **keys)["buckets"])


def rotary(head_dim: int, name: str = "rope") -> Any:
    """A rotary scheme of posbench with its own defaults."""
    from posbench import registry
    from posbench.settings import Geometry

    scheme = registry.get("posenc", name)
    return scheme(scheme.Config(), Geometry(head_dim, 1, 1, 128))


def turned(x: Tensor, position: int, encoding: Any = None) -> Tensor:
    """x [d] rotated by posbench's rope at a position, in the type of x."""
    from posbench.encodings.base import Context

    at, row = torch.tensor([[[position]]]), x[None, None, None]
    turn = (encoding or rotary(len(x))).rotate
    return turn(row, row, at, at, Context(False))[0][0, 0, 0]


def cosines(encoding: Any, position: int, dtype: torch.dtype) -> Values:
    """cos of every pair, from a rotated query (1, ..., 1, 0, ..., 0)."""
    half = encoding.geometry.head_dim // 2
    x = torch.cat((torch.ones(half), torch.zeros(half))).to(dtype)
    return at_position("cos", position, turned(x, position, encoding)[:half].tolist())


def axial_cosines(head_dim: int, rows: int, columns: int) -> Values:
    """cos of every pair at the last pixel of a picture, by rope_axial."""
    last, shape = rows * columns - 1, f"{rows}x{columns}"
    keys = {"head_dim": head_dim, "shape": shape, "test_shape": shape, "positions": [last]}
    return at_position("cos", last, tables("rope_axial", **keys)["rotation"]["cos"][0])


def bfloat16_queries(head_dim: int, length: int) -> Values:
    """cos at the last position, in bfloat16."""
    return cosines(rotary(head_dim), length - 1, torch.bfloat16)


def after_bfloat16(head_dim: int, length: int) -> Values:
    """cos at the last position in float32, by an object that rotated bfloat16 before."""
    encoding = rotary(head_dim)
    cosines(encoding, length - 1, torch.bfloat16)
    return cosines(encoding, length - 1, torch.float32)


def bfloat16_module(head_dim: int, length: int) -> Values:
    """cos at the last position in float32, by a module that was cast to bfloat16."""
    return cosines(rotary(head_dim).to(torch.bfloat16), length - 1, torch.float32)


def cached_xpos(head_dim: int, length: int) -> Values:
    """Scores of the last query alone against all keys, and of the same query in the full pass."""
    from posbench.encodings.base import Context

    encoding, (q, k) = rotary(head_dim, "xpos"), queries_and_keys(head_dim, length)
    at = torch.arange(length)[None, :, None]
    last, keys = encoding.rotate(q[:, :, -1:], k, at[:, -1:], at, Context(True))
    whole, all_keys = encoding.rotate(q, k, at, at, Context(True))
    return gap(last @ keys.mT, whole[:, :, -1:] @ all_keys.mT)


def queries_and_keys(head_dim: int, length: int) -> tuple[Tensor, Tensor]:
    """[1, 1, length, head_dim] each, the same on every call."""
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, 1, length, head_dim, generator=draw) for _ in "qk")


def gap(rows: Tensor, full: Tensor) -> Values:
    """How far two rows of scores are apart, relative to the largest score."""
    return {"gap of the last query's scores": float((rows - full).abs().max() / full.abs().max())}
