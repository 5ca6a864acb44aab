"""Nats of the scored tokens of windows: batching, memory bounds, refusals.

A window names the input positions whose predictions are scored; only those pass through the output
layer. Shapes: B batch, T length of the windows of a batch, S scored positions, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from posbench import attention, devices
from posbench.data.windows import Window
from posbench.encodings.base import Context, PositionalEncoding
from posbench.flops import mlp_width
from posbench.grid import Shape
from posbench.model import Decoder

#: scored positions that pass through the output layer at a time
LOGIT_ROWS = 2048
#: windows of equal inputs, which share one forward pass
Pass = tuple[Window, ...]
#: is told what the first reading gives: scored positions [S] and their nats [B, S], float64
Watch = Callable[[torch.Tensor, torch.Tensor], None]


@dataclass
class Block:
    """Nats of the scored tokens of one block of one document."""

    document: str
    block: int
    end: int
    nats: float
    tokens: int
    bytes: int
    #: tokens whose most likely prediction is right; the mean over draws
    correct: float = 0.0
    #: that of the window
    distance: int | None = None


class OutOfMemory(Exception):
    """A forward pass would need more memory than is allowed, or the allocator refused."""


def memory_needed(
    model: Decoder, posenc: PositionalEncoding, batch: int, length: int, scored: int
) -> int:
    """Upper estimate in bytes of what a forward pass adds at its peak, float32.

    Per token: the stream and its norm, queries, keys, values before and after rotation, the output
    and its reversed copy, and the MLP's hidden width three times; then one chunk of scores and
    mask, position tables in float64, and the logits.
    """
    config = model.config
    per_token = 14 * config.d_model + 3 * mlp_width(config)
    tables = 4 * length * config.d_model // config.n_heads
    bias = 4 * config.n_heads * length
    chunk = batch * config.n_heads * attention.CHUNK_ROWS * 1024
    ctx = Context(model.sampler.consecutive)
    layers = [posenc.for_layer(i)[0] for i in range(len(model.blocks))]
    acting = [m for e in layers for m in e.modules() if isinstance(m, PositionalEncoding)]
    if any(attention.written_out(e, ctx) for e in acting):
        chunk = 16 * max(attention.CHUNK_SCORES, batch * config.n_heads * length)
    if any("attend" in e.hooks for e in acting):  # keys turned anew, and what is made on the way
        chunk = 64 * batch * length * config.d_model
    logits = 3 * batch * min(scored, LOGIT_ROWS) * model.head.out_features
    numbers = batch * length * per_token + 2 * tables + bias + chunk + logits
    return int(1.3 * 4 * numbers)  # a third on top for what the allocator keeps


def memory_limit(gib: float | None, device: torch.device) -> float:
    """Bytes that an evaluation may use: as given in GiB, or 80 % of what is free now."""
    if gib is not None:
        return gib * 2**30
    if device.type == "cuda":
        return 0.8 * torch.cuda.mem_get_info(device)[0]
    import psutil

    devices.give_back_memory()
    return 0.8 * psutil.virtual_memory().available


def alike(one: Pass, other: Pass) -> bool:
    """Whether two passes can share a batch: equal shape, equal scored positions."""
    return one[0].shape == other[0].shape and all(
        np.array_equal(a.scored, b.scored) for a, b in zip(one, other, strict=True)
    )


def batches(passes: Iterable[Pass], tokens: int) -> Iterator[list[Pass]]:
    """Consecutive passes of one shape, up to `tokens` input tokens at a time (one at least)."""
    batch: list[Pass] = []
    for each in passes:
        full = (len(batch) + 1) * len(each[0].inputs) > tokens
        if batch and (full or not alike(each, batch[0])):
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch


def _rows(batch: Sequence[Pass]) -> int:
    """The most positions of a window that pass through the output layer together."""
    return max(len(window.scored) for window in batch[0])


def _fitting(
    model: Decoder, posenc: PositionalEncoding, whole: Iterable[list[Pass]], limit: float
) -> Iterator[list[Pass]]:
    """Batches cut into smaller ones where all their windows together would not fit."""
    for batch in whole:
        n, length = len(batch), len(batch[0][0].inputs)
        while n > 1 and memory_needed(model, posenc, n, length, _rows(batch)) > limit:
            n = (n + 1) // 2
        yield from (batch[i : i + n] for i in range(0, len(batch), n))


def score(
    model: Decoder,
    posenc: PositionalEncoding,
    windows: Iterable[Window],
    token_bytes: Any,
    batch_tokens: int,
    limit: float,
    draws: int = 1,
    watch: Watch | None = None,
) -> list[Block]:
    """Blocks in the order of the windows; windows of the same (document, block) are summed.

    `token_bytes` is the number of bytes of each token id [V], `limit` the memory bound in bytes.
    Where test positions are drawn at random, nats are the mean over `draws` draws.
    Raises OutOfMemory. Nats may come out infinite or NaN: the caller decides what that means.
    """
    (blocks,) = _blocks(model, posenc, [windows], token_bytes, batch_tokens, limit, draws, watch)
    return blocks


def score_together(
    model: Decoder,
    posenc: PositionalEncoding,
    readings: Sequence[Iterable[Window]],
    token_bytes: Any,
    batch_tokens: int,
    limit: float,
    watch: Watch | None = None,
) -> list[list[Block]]:
    """As `score`, for several readings of equal inputs off one forward pass.

    Each scores consecutive positions, the last reading those at the end of the inputs. What one
    gives does not depend on the others.
    """
    return _blocks(model, posenc, readings, token_bytes, batch_tokens, limit, watch=watch)


@torch.inference_mode()
def _blocks(
    model: Decoder,
    posenc: PositionalEncoding,
    readings: Sequence[Iterable[Window]],
    token_bytes: Any,
    batch_tokens: int,
    limit: float,
    draws: int = 1,
    watch: Watch | None = None,
) -> list[list[Block]]:
    """Blocks of every reading."""
    device = next(model.parameters()).device
    found: list[dict[tuple[str, int], Block]] = [{} for _ in readings]
    passes = batches(zip(*readings, strict=True), batch_tokens)
    for batch in _fitting(model, posenc, passes, limit):
        inputs = torch.stack([torch.as_tensor(p[0].inputs) for p in batch]).to(device)
        labels = [
            torch.stack([torch.as_tensor(w.labels) for w in same])
            for same in zip(*batch, strict=True)
        ]
        scored = [torch.as_tensor(w.scored).to(device) for w in batch[0]]
        if memory_needed(model, posenc, len(batch), inputs.shape[1], _rows(batch)) > limit:
            raise OutOfMemory
        there = [part.to(device) for part in labels]
        try:
            nats, right = _nats(model, posenc, inputs, batch[0][0].shape, there, scored, draws)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or _is_allocation(error):
                raise OutOfMemory from None
            raise
        if watch is not None:
            watch(scored[0], nats[0])
        for reading, blocks in enumerate(found):
            sums = [part[reading].sum(1).tolist() for part in (nats, right)]
            for each, value, hits, label in zip(batch, *sums, labels[reading], strict=True):
                window = each[reading]
                key = window.document, window.block
                new = Block(*key, window.end, 0.0, 0, 0, distance=window.distance)
                block = blocks.setdefault(key, new)
                block.nats += value
                block.correct += hits
                block.tokens += len(label)
                block.bytes += int(token_bytes[label.numpy()].sum())
                block.end = max(block.end, window.end)
    return [list(blocks.values()) for blocks in found]


def _nats(
    model: Decoder,
    posenc: PositionalEncoding,
    inputs: torch.Tensor,
    shape: Shape,
    labels: Sequence[torch.Tensor],
    scored: Sequence[torch.Tensor],
    draws: int = 1,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Nats [B, S] of a batch, and 1 where the most likely token is right, for each reading.

    Float64, the mean over draws of positions. A reading is scored positions [S] with their labels
    [B, S].
    """
    total, right = ([torch.zeros(part.shape).double() for part in labels] for _ in range(2))
    rows = max(1, LOGIT_ROWS // len(inputs))
    draws = draws if model.sampler.random_test else 1
    for draw in range(draws):
        pos = model.positions(shape, draw)[:, : inputs.shape[1]]
        streams = _streams(model, posenc, inputs, pos, scored)
        for i, (hidden, wanted) in enumerate(zip(streams, labels, strict=True)):
            for j in range(0, hidden.shape[1], rows):
                logits = model.logits(hidden[:, j : j + rows]).float()
                labels_BS = wanted[:, j : j + rows]
                loss = F.cross_entropy(logits.flatten(0, 1), labels_BS.flatten(), reduction="none")
                total[i][:, j : j + rows] += loss.cpu().double().unflatten(0, (len(inputs), -1))
                right[i][:, j : j + rows] += (logits.argmax(-1) == labels_BS).cpu()
    return [nats / draws for nats in total], [hits / draws for hits in right]


def _streams(
    model: Decoder,
    posenc: PositionalEncoding,
    inputs: torch.Tensor,
    pos: torch.Tensor,
    scored: Sequence[torch.Tensor],
) -> Iterator[torch.Tensor]:
    """Hidden stream [B, S, D] of each reading.

    They share all blocks but the last, which computes for each what its own positions need.
    """
    entering: list[tuple[Any, ...]] = []
    last = model.blocks[-1]
    watch = last.register_forward_pre_hook(lambda _, arguments: entering.append(arguments))
    try:
        longest = model.hidden(inputs, posenc, pos, scored[-1])
    finally:
        watch.remove()
    x_BTD, pos_BTA, own, ctx, _ = entering[0]
    for places in scored[:-1]:
        end = int(places[-1]) + 1
        yield last(x_BTD[:, :end], pos_BTA[:, :end], own, ctx.alone(), len(places))
    yield longest


def _is_allocation(error: RuntimeError) -> bool:
    """Whether torch says that memory ran out."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in text


def finite(blocks: list[Block]) -> bool:
    """Whether every block has a finite loss."""
    return all(math.isfinite(b.nats) for b in blocks)
