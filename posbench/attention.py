"""The one place where scores, scale, bias, mask and softmax meet; hence one long file.

    out_i = sum_j softmax_j( (q_i . k_j) / sqrt(K) * logit_scale_i + bias_ij,  j <= i ) v_j

Query row r stands at key index `Tk - Tq + r`: the queries are the last ones of the sequence, or all
of it. The kernel follows from the hooks that the encoding defines:

- no bias: torch's fused causal kernel;
- a bias of the distance alone, at consecutive positions, or a window: `_strided`, fused, chunks of
  queries whose rows are REVERSED. bias[i, j] = f(i - j) is constant along diagonals; with rows
  reversed it is constant along anti-diagonals, so row r is the vector g(r + j) read from r on,
  g(m) = f(last - m), and -inf where that is the future. The mask is then a view with strides
  (1, 1) of one vector per head: exact, and no memory beyond 2 T numbers a head. A sequence of one
  chunk, and a bias that needs its gradient, get the mask laid out (`_materialised`), for all layers
  at once where one chunk holds it; CUDA gets a compiled FlexAttention (`_flex`);
- positions to rotate by that follow the queries, one region a chunk: the same, turned chunk by
  chunk;
- a bias of the key less the query's own: `_keyed`, fused, every chunk in two parts (see there);
- any other bias that the positions alone decide, and keys that are not seen: `_masked`, fused, laid
  out chunk by chunk;
- everything else: `_chunks`, the formula written out, in chunks of queries that hold a bounded
  number of scores, in float32 or better.

One file, although long: the kernels share chunk sizes, masks and the rule that chooses among them.
Shapes: B batch, H heads, T time (Tq, Tk), K head width.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

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
#: most chunks whose masks the layers of a pass share
SHARED_CHUNKS = 8
#: distances up to which a bias is looked up in a table
_TABLE = 1 << 20
#: the fused kernel of CPUs that also returns the logarithm of every row's sum
_CPU_KERNEL = "_scaled_dot_product_flash_attention_for_cpu"
#: hooks that need the scores themselves
_SCORES = frozenset(
    {"relative_position", "key_bias", "pair_bias", "content_bias", "visible", "normalise"}
)


def written_out(encoding: "PositionalEncoding", ctx: "Context") -> bool:
    """Whether an encoding needs a kernel that holds scores, or a bias for each of them."""
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
    needs = encoding.hooks & _SCORES
    if needs == {"key_bias"} and "distance_bias" not in encoding.hooks and _fuses(q, k, ctx):
        return _keyed(encoding, q, k, v, q_pos, k_pos, ctx)
    if needs == {"relative_position"} and (
        "distance_bias" not in encoding.hooks or ctx.consecutive
    ):
        out = _turned_in_chunks(encoding, q, k, v, q_pos, k_pos, ctx)
        if out is not None:
            return out
    if written_out(encoding, ctx):
        kernel = _chunks if needs - {"pair_bias", "visible"} else _masked
        return kernel(encoding, q, k, v, q_pos, k_pos, ctx)
    q, k = encoding.rotate(q, k, q_pos, k_pos, ctx)
    return _fused(encoding, _scaled(encoding, q, q_pos, k_pos, ctx), k, v, k.shape[2], ctx)


def _fused(
    encoding: "PositionalEncoding", q: Tensor, k: Tensor, v: Tensor, length: int, ctx: "Context"
) -> Tensor:
    """Attention of rotated and scaled queries under the bias of distances below `length`."""
    factor = v.shape[3] ** -0.5
    biased = "distance_bias" in encoding.hooks
    if not biased and q.shape[2] == k.shape[2] and _window(k.shape[2], ctx) is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=factor)
    kind = torch.promote_types(q.dtype, torch.float32) if biased else q.dtype
    q, k, values = q.to(kind), k.to(kind), v.to(kind)
    bias = _by_distance(encoding, length, q, ctx)
    kernel = _strided
    # torch's GPU kernels of FlexAttention have heads of 16 channels or more
    if q.device.type == "cuda" and q.shape[3] == v.shape[3] >= 16:
        kernel = _flex
    elif bias.requires_grad or q.device.type != "cpu" or k.shape[2] <= CHUNK_ROWS:
        kernel = _materialised
    return kernel(q, k, values, bias, ctx, factor).to(v.dtype)


def _scaled(
    encoding: "PositionalEncoding", q: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: "Context"
) -> Tensor:
    """Queries times the encoding's factor on the scores."""
    scale = encoding.logit_scale(q_pos, k_pos, ctx)
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
    """Chunks with their bias laid out as a mask."""
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


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    """FlexAttention, compiled once for all lengths."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def _flex(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, ctx: "Context", factor: float) -> Tensor:
    """FlexAttention: the bias is read from its vector, blocks of the future are passed over."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    rows, keys = q.shape[2], k.shape[2]
    window, heads = _window(keys, ctx) or keys, bias.shape[0]

    def distance(row: Tensor, key: Tensor) -> Tensor:
        return row + (keys - rows) - key

    def seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return (distance(row, key) >= 0) & (distance(row, key) < window)

    def biased(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return score + bias[head % heads, distance(row, key).clamp(min=0)]

    mask = ctx.once(
        ("blocks", rows, keys, window),
        lambda: create_block_mask(seen, None, None, rows, keys, device=str(q.device)),
    )
    own = q.device.type == "cuda" and not torch.compiler.is_compiling()
    kernel: Any = _compiled_flex() if own else flex_attention
    out: Tensor = kernel(q.contiguous(), k.contiguous(), v.contiguous(), biased, mask, scale=factor)
    return out


def _turned_in_chunks(
    encoding: "PositionalEncoding",
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    ctx: "Context",
) -> Tensor | None:
    """Fused attention of chunks that are each rotated by one region's positions.

    None where a chunk has several: what they give must then be chosen score by score.
    """
    rows, keys = q.shape[2], k.shape[2]
    out = []
    for start in range(0, rows, CHUNK_ROWS):
        part, end = slice(start, min(start + CHUNK_ROWS, rows)), keys - rows + start + CHUNK_ROWS
        at = q_pos[:, part], k_pos[:, :end]
        regions = encoding.relative_position(*at, ctx) or [Region(*at, None)]
        if len(regions) > 1 or regions[0].where is not None:
            return None
        turned = encoding.rotate(q[:, :, part], k[:, :, :end], *regions[0][:2], ctx.alone())
        asking = _scaled(encoding, turned[0], *at, ctx)
        out.append(_fused(encoding, asking, turned[1], v[:, :, :end], keys, ctx))
    return torch.cat(out, dim=2)


def _dense(x: Tensor) -> Tensor:
    """A tensor whose last axis lies together, as the kernel takes for granted."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _fuses(q: Tensor, k: Tensor, ctx: "Context") -> bool:
    """Whether `_keyed` can be used: on a CPU, without gradients or a window."""
    plain = q.device.type == "cpu" and not torch.is_grad_enabled()
    return plain and hasattr(torch.ops.aten, _CPU_KERNEL) and _window(k.shape[2], ctx) is None


def _keyed(
    encoding: "PositionalEncoding",
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    ctx: "Context",
) -> Tensor:
    """A bias b_j - b_i of the key less the query's own, with the fused kernel.

    A chunk of queries sees the keys before it under b_j - b_0, where 0 is the chunk's first token:
    one row for all queries, a view without memory. What differs between queries, b_0 - b_i, is
    constant along a row, so it only weighs that part against the other one: the keys of the chunk
    itself, whose bias is laid out in the hook's own type. The two are joined by the logarithms of
    their sums. So near keys keep small numbers, however long the sequence is.
    """
    kernel = getattr(torch.ops.aten, _CPU_KERNEL)
    kind = torch.promote_types(q.dtype, torch.float32)
    factor = v.shape[3] ** -0.5
    turned = encoding.rotate(q.to(kind), k.to(kind), q_pos, k_pos, ctx)
    if turned[0].shape[3] != v.shape[3]:  # the kernel wants one width
        return _chunks(encoding, q, k, v, q_pos, k_pos, ctx)
    q = _scaled(encoding, turned[0], q_pos, k_pos, ctx)
    q, k, values = _dense(q), _dense(turned[1]), _dense(v.to(kind))
    by_key = encoding.key_bias(k_pos, ctx).expand(q.shape[0], q.shape[1], -1).contiguous()
    rows, keys = q.shape[2], k.shape[2]
    whole = v.new_empty(*q.shape[:3], v.shape[3])
    for start in range(0, rows, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, rows)
        first, end = keys - rows + start, keys - rows + stop

        def part(begin: int, upto: int, mask: Tensor, asking: Tensor) -> tuple[Tensor, Tensor]:
            known = k[:, :, begin:upto], values[:, :, begin:upto]
            found: tuple[Tensor, Tensor] = kernel(
                asking, *known, 0.0, False, attn_mask=mask.to(kind), scale=factor
            )
            return found

        asking, own = q[:, :, start:stop], by_key[..., first:end]
        future = _distances(first, end, q.device)[:, first:] < 0
        near = (own[..., None, :] - own[..., None]).masked_fill(future, -math.inf)
        out, weight = part(first, end, near, asking)
        if first:
            row = (by_key[..., :first] - own[..., :1])[..., None, :].to(kind)
            far, far_weight = part(0, first, row.expand(-1, -1, stop - start, -1), asking)
            far_weight = far_weight + (own[..., :1] - own).to(kind)
            share = torch.sigmoid(far_weight - weight)[..., None]
            out = torch.lerp(out, far, share)
        whole[:, :, start:stop] = out
    return whole


def _distances(first: int, end: int, device: torch.device) -> Tensor:
    """Query minus key index [end - first, end] of the queries first .. end - 1."""
    return torch.arange(first, end, device=device)[:, None] - torch.arange(end, device=device)


def _masked(
    encoding: "PositionalEncoding",
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    ctx: "Context",
) -> Tensor:
    """Fused attention over chunks of queries; their biases and what they see are laid out.

    The layers of a pass share the masks where there are few.
    """
    rows, keys = q.shape[2], k.shape[2]
    kind = torch.promote_types(q.dtype, torch.float32)
    q, k = encoding.rotate(q.to(kind), k.to(kind), q_pos, k_pos, ctx)
    q, values = _scaled(encoding, q, q_pos, k_pos, ctx), v.to(kind)
    chunk = max(1, CHUNK_SCORES // (keys * q_pos.shape[0] * q.shape[1]))
    out = []
    for start in range(0, rows, chunk):
        stop = min(start + chunk, rows)
        part, end = slice(start, stop), keys - rows + stop
        at = q_pos[:, part], k_pos[:, :end]

        def build(at: tuple[Tensor, Tensor] = at) -> tuple[Tensor, Any]:
            bias = sum(_biases(encoding, at, None, ctx), q.new_zeros(1, 1, 1, 1)).to(kind)
            mask = torch.where(seen_keys(encoding, *at, ctx), bias, -math.inf)
            # kept with the mask, so that no other object can get their ids within the pass
            return mask, (encoding, k_pos)

        layer = ctx.layer if encoding.per_layer else None
        key = ("pairs", id(encoding), id(k_pos), rows, start, kind, ctx.window, layer)
        shared = rows <= SHARED_CHUNKS * chunk and "prepare" not in encoding.hooks
        mask = (ctx.once(key, build) if shared else build())[0]
        out.append(
            F.scaled_dot_product_attention(
                q[:, :, part], k[:, :, :end], values[:, :, :end], mask, scale=v.shape[3] ** -0.5
            )
        )
    return torch.cat(out, dim=2).to(v.dtype)


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
        scores = _scores(encoding, raw, both, by_key, at, ctx)
        result = encoding.normalise(scores, values[:, :, :end], *at, ctx)
        if whole is None:
            out.append(result)
        else:
            whole[:, :, part] = result
        del scores, result
    return torch.cat(out, dim=2).to(v.dtype) if whole is None else whole


def scores(
    encoding: "PositionalEncoding",
    q: Tensor,
    k: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    ctx: "Context",
) -> Tensor:
    """What `normalise` gets of all queries at once [B, H, Tq, Tk]: -inf where a key is not seen."""
    kind = torch.promote_types(q.dtype, torch.float32)
    raw = turned = q.to(kind), k.to(kind)
    if "relative_position" not in encoding.hooks:
        turned = encoding.rotate(*raw, q_pos, k_pos, ctx)
    by_key = encoding.key_bias(k_pos, ctx) if "key_bias" in encoding.hooks else None
    return _scores(encoding, raw, turned, by_key, (q_pos, k_pos), ctx)


def _scores(
    encoding: "PositionalEncoding",
    raw: tuple[Tensor, Tensor],
    turned: tuple[Tensor, Tensor],
    by_key: Tensor | None,
    at: tuple[Tensor, Tensor],
    ctx: "Context",
) -> Tensor:
    """Those of a chunk; `by_key` of all keys."""
    scores = _products(encoding, raw, turned, at, ctx)
    by_key = None if by_key is None else by_key[..., : scores.shape[3]]
    for bias in _biases(encoding, at, by_key, ctx):
        scores = scores + bias.to(raw[0].dtype)
    seen = seen_keys(encoding, *at, ctx)
    if "content_bias" in encoding.hooks:
        scores = encoding.content_bias(scores, *raw, seen, *at, ctx)
    return scores.masked_fill(~seen, -math.inf)


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
        return _scaled(encoding, q, *at, ctx) @ k.transpose(-1, -2) * factor

    if "relative_position" not in encoding.hooks:
        return product(*turned)
    scores = None
    for region in encoding.relative_position(*at, ctx) or [Region(*at, None)]:
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
