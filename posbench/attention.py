"""The one place where scores, scale, bias, mask and softmax meet.

    out_i = sum_j softmax_j( (q_i . k_j) / sqrt(K) * logit_scale_i + bias_ij,  j <= i ) v_j

Query row r stands at key index `Tk - Tq + r`: the queries are the last ones of the sequence, or all
of it. Three kernels, chosen from what the encoding declares:

- no bias: torch's fused causal kernel;
- a bias of the distance alone, at consecutive positions: chunks of queries whose rows are REVERSED.
  bias[i, j] = f(i - j) is constant along diagonals; with rows reversed it is constant along
  anti-diagonals, so row r is the vector g(r + j) read from r on, g(m) = f(last - m), and -inf where
  that is the future. The mask is then a view with strides (1, 1) of one vector per head: exact, and
  no memory beyond 2 T numbers a head;
- everything else: `dense`, in chunks of queries that hold a bounded number of scores.

Shapes: B batch, H heads, T time (Tq, Tk), K head width.
"""

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from posbench.encodings.base import Context, PositionalEncoding

#: rows of a chunk of queries in the strided kernel
CHUNK_ROWS = 512
#: scores that the dense kernel holds at a time
CHUNK_SCORES = 1 << 24


def attend(
    encoding: "PositionalEncoding",
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    ctx: "Context",
) -> Tensor:
    """Causal attention [B, H, Tq, K] with the scale and bias of an encoding."""
    scale = encoding.logit_scale(q_pos, ctx)
    if isinstance(scale, Tensor):
        q = q * scale[:, None, :, None].to(q.dtype)
    elif scale is not None:
        q = q * scale
    if not encoding.biased and q.shape[2] == k.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if not ctx.consecutive:
        return _dense_chunks(encoding, q, k, v, q_pos, k_pos)
    bias = _by_distance(encoding, k.shape[2], q, ctx)
    if bias.requires_grad or q.device.type != "cpu":
        return _materialised(q, k, v, bias, ctx)
    return _strided(q, k, v, bias)


def _by_distance(encoding: "PositionalEncoding", length: int, q: Tensor, ctx: "Context") -> Tensor:
    """Bias [H or 1, length] of the distances 0 .. length - 1, once per pass where layers agree."""

    def build() -> Tensor:
        if not encoding.biased:
            return q.new_zeros(1, length)
        return encoding.distance_bias(torch.arange(length, device=q.device)).to(q.dtype)

    key = ("bias", id(encoding), length, ctx.layer if encoding.per_layer else None)
    bias: Tensor = ctx.once(key, build)
    return bias


def _strided(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Chunks of reversed queries, whose bias is a strided view (see the top of the file)."""
    rows, keys = q.shape[2], k.shape[2]
    out = []
    for start in range(0, rows, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, rows)
        end = keys - rows + stop  # keys that the last query of the chunk sees
        # g(m) = f(end - 1 - m) for m < end, then the future
        g = torch.cat(
            (bias[:, :end].flip(1), bias.new_full((bias.shape[0], stop - start), -math.inf)), 1
        )
        mask = g.as_strided((1, g.shape[0], stop - start, end), (0, g.shape[1], 1, 1))
        part = F.scaled_dot_product_attention(
            q[:, :, start:stop].flip(2),
            k[:, :, :end],
            v[:, :, :end],
            attn_mask=mask.expand(q.shape[0], q.shape[1], -1, -1),
        )
        out.append(part.flip(2))
    return torch.cat(out, dim=2)


def _materialised(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, ctx: "Context") -> Tensor:
    """Chunks with their bias laid out as a mask: for a bias in training, and off the CPU."""
    rows, keys = q.shape[2], k.shape[2]
    chunk = max(1, CHUNK_SCORES // (keys * bias.shape[0]))
    out = []
    for start in range(0, rows, chunk):
        stop = min(start + chunk, rows)
        end = keys - rows + stop

        def build(start: int = start, stop: int = stop, end: int = end) -> Tensor:
            index = torch.arange(keys - rows + start, end, device=q.device)
            distance = index[:, None] - torch.arange(end, device=q.device)
            return bias[:, distance.clamp(min=0)].masked_fill(distance < 0, -math.inf)[None]

        mask = ctx.once(("mask", id(bias), start, stop, end), build) if chunk >= rows else build()
        out.append(
            F.scaled_dot_product_attention(
                q[:, :, start:stop], k[:, :, :end], v[:, :, :end], attn_mask=mask
            )
        )
    return torch.cat(out, dim=2)


def _dense_chunks(
    encoding: "PositionalEncoding", q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor
) -> Tensor:
    """`dense` over chunks of queries that hold a bounded number of scores."""
    rows, keys = q.shape[2], k.shape[2]
    chunk = max(1, CHUNK_SCORES // (keys * q.shape[0] * q.shape[1]))
    out = []
    for start in range(0, rows, chunk):
        stop, end = min(start + chunk, rows), keys - rows + min(start + chunk, rows)
        part = slice(start, stop)
        bias = pair_bias(encoding, q_pos[:, part], k_pos[:, :end])
        out.append(dense(q[:, :, part], k[:, :, :end], v[:, :, :end], bias))
    return torch.cat(out, dim=2)


def pair_bias(encoding: "PositionalEncoding", q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
    """Bias [B or 1, H, Tq, Tk] of any positions, from the bias of their distances."""
    if not encoding.biased:
        return None
    distance = (q_pos[:, :, None, 0] - k_pos[:, None, :, 0]).clamp(min=0)
    return encoding.distance_bias(distance.flatten()).unflatten(1, distance.shape).transpose(0, 1)


def dense(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """The formula written out, all scores held: the kernel that the others are tested against."""
    rows, keys = q.shape[2], k.shape[2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[3])
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    future = torch.ones(rows, keys, dtype=torch.bool, device=q.device).triu(keys - rows + 1)
    weights = scores.masked_fill(future, -math.inf).softmax(
        -1, dtype=torch.promote_types(q.dtype, torch.float32)
    )
    return weights.to(v.dtype) @ v
