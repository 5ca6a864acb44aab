"""Nats of the scored tokens of windows: batching, memory bounds, refusals.

A window names the input positions whose predictions are scored; only those pass through the output
layer. Shapes: B batch, T length of the windows of a batch, S scored positions, V vocabulary.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from posbench import attention
from posbench.data.windows import Window
from posbench.encodings.base import Context, PositionalEncoding
from posbench.model import Decoder, mlp_width

#: scored positions that pass through the output layer at a time
LOGIT_ROWS = 2048


@dataclass
class Block:
    """Nats of the scored tokens of one block of one document."""

    document: str
    block: int
    end: int
    nats: float
    tokens: int
    bytes: int


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
    acting = [posenc.for_layer(i)[0] for i in range(len(model.blocks))]
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

    return 0.8 * psutil.virtual_memory().available


def alike(one: Window, other: Window) -> bool:
    """Whether two windows can share a batch: equal length, equal scored positions."""
    return len(one.inputs) == len(other.inputs) and np.array_equal(one.scored, other.scored)


def batches(windows: Iterable[Window], tokens: int) -> Iterator[list[Window]]:
    """Consecutive windows of one shape, up to `tokens` input tokens at a time (one at least)."""
    batch: list[Window] = []
    for window in windows:
        full = (len(batch) + 1) * len(window.inputs) > tokens
        if batch and (full or not alike(window, batch[0])):
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def _fitting(
    model: Decoder, posenc: PositionalEncoding, whole: Iterable[list[Window]], limit: float
) -> Iterator[list[Window]]:
    """Batches cut into smaller ones where all their windows together would not fit."""
    for batch in whole:
        n, length, scored = len(batch), len(batch[0].inputs), len(batch[0].scored)
        while n > 1 and memory_needed(model, posenc, n, length, scored) > limit:
            n = (n + 1) // 2
        yield from (batch[i : i + n] for i in range(0, len(batch), n))


@torch.inference_mode()
def score(
    model: Decoder,
    posenc: PositionalEncoding,
    windows: Iterable[Window],
    token_bytes: Any,
    batch_tokens: int,
    limit: float,
    draws: int = 1,
) -> list[Block]:
    """Blocks in the order of the windows; windows of the same (document, block) are summed.

    `token_bytes` is the number of bytes of each token id [V], `limit` the memory bound in bytes.
    Where test positions are drawn at random, nats are the mean over `draws` draws.
    Raises OutOfMemory. Nats may come out infinite or NaN: the caller decides what that means.
    """
    device = next(model.parameters()).device
    blocks: dict[tuple[str, int], Block] = {}
    for batch in _fitting(model, posenc, batches(windows, batch_tokens), limit):
        inputs = torch.stack([torch.as_tensor(w.inputs) for w in batch]).to(device)
        labels = torch.stack([torch.as_tensor(w.labels) for w in batch])
        scored = torch.as_tensor(batch[0].scored)
        if memory_needed(model, posenc, len(batch), inputs.shape[1], len(scored)) > limit:
            raise OutOfMemory
        try:
            nats = _nats(model, posenc, inputs, labels.to(device), scored.to(device), draws)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or _is_allocation(error):
                raise OutOfMemory from None
            raise
        for window, value, label in zip(batch, nats, labels, strict=True):
            key = window.document, window.block
            block = blocks.setdefault(key, Block(*key, window.end, 0.0, 0, 0))
            block.nats += value
            block.tokens += len(label)
            block.bytes += int(token_bytes[label.numpy()].sum())
            block.end = max(block.end, window.end)
    return list(blocks.values())


def _nats(
    model: Decoder,
    posenc: PositionalEncoding,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    scored: torch.Tensor,
    draws: int = 1,
) -> list[float]:
    """Summed nats of every window of a batch, the mean over draws of positions."""
    total = torch.zeros(len(inputs), dtype=torch.float64)
    rows = max(1, LOGIT_ROWS // len(inputs))
    draws = draws if model.sampler.random_test else 1
    for draw in range(draws):
        pos = model.sampler.testing(inputs.shape[1], draw)
        hidden = model.hidden(inputs, posenc, pos, scored)
        for i in range(0, len(scored), rows):
            logits = model.logits(hidden[:, i : i + rows]).float()
            loss = F.cross_entropy(
                logits.flatten(0, 1), labels[:, i : i + rows].flatten(), reduction="none"
            )
            total += loss.double().cpu().unflatten(0, (len(inputs), -1)).sum(1)
    return [float(t) / draws for t in total]


def _is_allocation(error: RuntimeError) -> bool:
    """Whether torch says that memory ran out."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in text


def finite(blocks: list[Block]) -> bool:
    """Whether every block has a finite loss."""
    return all(math.isfinite(b.nats) for b in blocks)
