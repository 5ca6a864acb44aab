"""The one place where scores, scale, bias, mask and softmax meet.

    out_i = sum_j softmax_j( (q_i . k_j) / sqrt(K) * logit_scale_i + bias_ij,  j <= i ) v_j

Query row r stands at key index `Tk - Tq + r`: the queries are the last ones of the sequence, or all
of it. Three kernels, chosen from the hooks that the encoding defines:

- no bias: torch's fused causal kernel;
- a bias of the distance alone, at consecutive positions, or a window: chunks of queries whose rows
  are REVERSED. bias[i, j] = f(i - j) is constant along diagonals; with rows reversed it is constant
  along anti-diagonals, so row r is the vector g(r + j) read from r on, g(m) = f(last - m), and -inf
  where that is the future. The mask is then a view with strides (1, 1) of one vector per head:
  exact, and no memory beyond 2 T numbers a head;
- everything else: the formula written out, in chunks of queries that hold a bounded number of
  scores, in float32 or better.

Shapes: B batch, H heads, T time (Tq, Tk), K head width.
"""

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from posbench.encodings.base import Region

if TYPE_CHECKING:
    from posbench.encodings.base import Context, PositionalEncoding

#: rows of a chunk of queries in the strided kernel
CHUNK_ROWS = 512
#: scores that a chunk of the other kernels holds
CHUNK_SCORES = 1 << 22
#: distances up to which a bias is looked up in a table
_TABLE = 1 << 20
#: hooks that need the scores themselves
_SCORES = frozenset(
    {"relative_position", "key_bias", "pair_bias", "content_bias", "visible", "normalise"}
)


def written_out(encoding: "PositionalEncoding", ctx: "Context") -> bool:
    """Whether an encoding needs the kernel that holds scores."""
    hooks = encoding.hooks
    return bool(hooks & _SCORES) or ("distance_bias" in hooks and not ctx.consecutive)


def attend(
    encoding: "PositionalEncoding",
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    ctx: "Context",
) -> Tensor:
    """Causal attention [B, H, Tq, K] of queries and keys that are not rotated yet."""
    if written_out(encoding, ctx):
        return _chunks(encoding, q, k, v, q_pos, k_pos, ctx)
    factor = q.shape[3] ** -0.5
    q, k = encoding.rotate(q, k, q_pos, k_pos, ctx)
    q = _scaled(encoding, q, q_pos, ctx)
    biased = "distance_bias" in encoding.hooks
    if not biased and q.shape[2] == k.shape[2] and _window(k.shape[2], ctx) is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=factor)
    kind = torch.promote_types(q.dtype, torch.float32) if biased else q.dtype
    q, k, values = q.to(kind), k.to(kind), v.to(kind)
    bias = _by_distance(encoding, k.shape[2], q, ctx)
    kernel = _materialised if bias.requires_grad or q.device.type != "cpu" else _strided
    return kernel(q, k, values, bias, ctx, factor).to(v.dtype)


def _scaled(encoding: "PositionalEncoding", q: Tensor, q_pos: Tensor, ctx: "Context") -> Tensor:
    """Queries times the encoding's factor on the scores."""
    scale = encoding.logit_scale(q_pos, ctx)
    if isinstance(scale, Tensor):
        return q * scale[..., None].to(q.dtype)
    return q if scale is None else q * scale


def _window(keys: int, ctx: "Context") -> int | None:
    """The layer's window, where it is shorter than the sequence."""
    return ctx.window if ctx.window is not None and ctx.window < keys else None


def _by_distance(encoding: "PositionalEncoding", length: int, q: Tensor, ctx: "Context") -> Tensor:
    """Bias [H or 1, length] of the distances 0 .. length - 1, once per pass where layers agree."""
    window = _window(length, ctx)

    def build() -> Tensor:
        if "distance_bias" in encoding.hooks:
            distance = torch.arange(length, device=q.device)
            bias = encoding.distance_bias(distance, ctx).to(q.dtype)
        else:
            bias = q.new_zeros(1, length)
        if window is None:
            return bias
        return bias.masked_fill(torch.arange(length, device=q.device) >= window, -math.inf)

    layer = ctx.layer if encoding.per_layer else None
    key = ("bias", id(encoding), length, q.dtype, window, layer)
    # the encoding is kept with it, so that no other object can get its id within the pass
    bias: Tensor = ctx.once(key, lambda: (build(), encoding))[0]
    return bias


def _strided(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, ctx: "Context", factor: float
) -> Tensor:
    """Chunks of reversed queries, whose bias is a strided view (see the top of the file)."""
    rows, keys = q.shape[2], k.shape[2]
    window = _window(keys, ctx) or keys
    out = []
    for start in range(0, rows, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, rows)
        end = keys - rows + stop  # keys that the last query of the chunk sees
        begin = max(0, keys - rows + start + 1 - window)  # the first key that the first one sees
        # g(m) = f(end - 1 - m) for m < end, then the future
        g = torch.cat(
            (
                bias[:, : end - begin].flip(1),
                bias.new_full((bias.shape[0], stop - start), -math.inf),
            ),
            1,
        )
        size = (1, g.shape[0], stop - start, end - begin)
        mask = g.as_strided(size, (0, g.shape[1], 1, 1))
        part = F.scaled_dot_product_attention(
            q[:, :, start:stop].flip(2),
            k[:, :, begin:end],
            v[:, :, begin:end],
            attn_mask=mask.expand(q.shape[0], q.shape[1], -1, -1),
            scale=factor,
        )
        out.append(part.flip(2))
    return torch.cat(out, dim=2)


def _materialised(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, ctx: "Context", factor: float
) -> Tensor:
    """Chunks with their bias laid out as a mask: for a bias in training, and off the CPU."""
    rows, keys = q.shape[2], k.shape[2]
    chunk = max(1, CHUNK_SCORES // (keys * bias.shape[0]))
    out = []
    for start in range(0, rows, chunk):
        stop = min(start + chunk, rows)
        end = keys - rows + stop

        def build(start: int = start, stop: int = stop, end: int = end) -> Tensor:
            distance = _distances(keys - rows + start, end, q.device)
            return bias[:, distance.clamp(min=0)].masked_fill(distance < 0, -math.inf)[None]

        mask = ctx.once(("mask", id(bias), start, stop, end), build) if chunk >= rows else build()
        out.append(
            F.scaled_dot_product_attention(
                q[:, :, start:stop], k[:, :, :end], v[:, :, :end], attn_mask=mask, scale=factor
            )
        )
    return torch.cat(out, dim=2)


def _distances(first: int, end: int, device: torch.device) -> Tensor:
    """Query minus key index [end - first, end] of the queries first .. end - 1."""
    return torch.arange(first, end, device=device)[:, None] - torch.arange(end, device=device)


def _chunks(
    encoding: "PositionalEncoding",
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    ctx: "Context",
) -> Tensor:
    """The formula written out, over chunks of queries."""
    rows, keys = q.shape[2], k.shape[2]
    kind = torch.promote_types(q.dtype, torch.float32)
    q, k, values = q.to(kind), k.to(kind), v.to(kind)
    chunk = max(1, CHUNK_SCORES // (keys * q.shape[0] * q.shape[1]))
    turned = None
    if "relative_position" not in encoding.hooks:
        turned = encoding.rotate(q, k, q_pos, k_pos, ctx)
    by_key = encoding.key_bias(k_pos, ctx) if "key_bias" in encoding.hooks else None
    # one place for the result: many small ones among the scores would keep freed memory in pieces
    whole = None if torch.is_grad_enabled() else v.new_empty(*q.shape[:3], v.shape[3])
    out = []
    for start in range(0, rows, chunk):
        stop = min(start + chunk, rows)
        part, end = slice(start, stop), keys - rows + stop
        at = q_pos[:, part], k_pos[:, :end]
        raw = q[:, :, part], k[:, :, :end]
        both = raw if turned is None else (turned[0][:, :, part], turned[1][:, :, :end])
        scores = _products(encoding, raw, both, at, ctx)
        for bias in _biases(encoding, at, None if by_key is None else by_key[..., :end], ctx):
            scores = scores + bias.to(kind)
        seen = seen_keys(encoding, *at, ctx)
        if "content_bias" in encoding.hooks:
            scores = encoding.content_bias(scores, *raw, seen, *at, ctx)
        scores = scores.masked_fill(~seen, -math.inf)
        result = encoding.normalise(scores, values[:, :, :end], *at, ctx)
        if whole is None:
            out.append(result)
        else:
            whole[:, :, part] = result
        del scores, seen, result
    return torch.cat(out, dim=2).to(v.dtype) if whole is None else whole


def _products(
    encoding: "PositionalEncoding",
    raw: tuple[Tensor, Tensor],
    turned: tuple[Tensor, Tensor],
    at: tuple[Tensor, Tensor],
    ctx: "Context",
) -> Tensor:
    """q . k / sqrt(K) * logit_scale [B, H, Tq, Tk] of a chunk, region by region under a map."""
    factor = raw[0].shape[3] ** -0.5

    def product(q: Tensor, k: Tensor) -> Tensor:
        return _scaled(encoding, q, at[0], ctx) @ k.transpose(-1, -2) * factor

    if "relative_position" not in encoding.hooks:
        return product(*turned)
    scores = None
    for region in encoding.relative_position(*at) or [Region(*at, None)]:
        part = product(*encoding.rotate(*raw, region.q_pos, region.k_pos, ctx.alone()))
        if scores is None or region.where is None:
            scores = part
        else:
            scores = torch.where(region.where, part, scores)
    assert scores is not None
    return scores


def _biases(
    encoding: "PositionalEncoding",
    at: tuple[Tensor, Tensor],
    by_key: Tensor | None,
    ctx: "Context",
) -> list[Tensor]:
    """The biases of a chunk, each broadcastable to [B, H, Tq, Tk]."""
    found = []
    if "distance_bias" in encoding.hooks:
        found.append(bias_of_distances(encoding, *at, ctx))
    if by_key is not None:
        # relative to the query's own, in the hook's type: near keys have small numbers
        rows = at[0].shape[1]
        found.append(by_key[:, :, None] - by_key[..., -rows:, None])
    if "pair_bias" in encoding.hooks:
        found.append(encoding.pair_bias(*at, ctx))
    return found


def bias_of_distances(
    encoding: "PositionalEncoding", q_pos: Tensor, k_pos: Tensor, ctx: "Context"
) -> Tensor:
    """Bias [B or 1, H, Tq, Tk] of any positions, from the bias of their distances."""
    distance = (q_pos[:, :, None, 0] - k_pos[:, None, :, 0]).clamp(min=0)
    largest = int(distance.max())
    if largest >= _TABLE:  # few of very many distances
        values, places = distance.unique(return_inverse=True)
        return encoding.distance_bias(values, ctx)[:, places].transpose(0, 1)
    layer = ctx.layer if encoding.per_layer else None
    size = 1 << largest.bit_length()

    def build() -> tuple[Tensor, "PositionalEncoding"]:
        every = torch.arange(size, device=distance.device)
        return encoding.distance_bias(every, ctx), encoding

    table: Tensor = ctx.once(("distances", id(encoding), size, layer), build)[0]
    return table[:, distance].transpose(0, 1)


def seen_keys(
    encoding: "PositionalEncoding", q_pos: Tensor, k_pos: Tensor, ctx: "Context"
) -> Tensor:
    """Mask [B or 1, H or 1, Tq, Tk]: causality, the layer's window, and the encoding's own."""
    rows, keys = q_pos.shape[1], k_pos.shape[1]
    distance = _distances(keys - rows, keys, q_pos.device)
    seen = distance >= 0
    if ctx.window is not None:
        seen = seen & (distance < ctx.window)
    seen = seen[None, None]
    return seen & encoding.visible(q_pos, k_pos, ctx) if "visible" in encoding.hooks else seen
