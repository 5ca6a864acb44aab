"""attention.csv: how sharp attention is at L and at 4 L, layer by layer, for every rescaling.

On the first windows of the frozen targets, of their scored queries only, in passes of their own.
What a layer attends with is caught on the way and its scores are written out with the scheme's own
hooks; no fused kernel shows them. The largest score is that which enters the softmax, scaled and
biased. Entropy is that of the weights, -sum w ln w in nats, the mean over heads and queries; its
share is what it has of ln n, the most that n visible keys allow. A scheme with a normalisation of
its own has the entropy of the weights that this gives; one that computes attention in another way
than from scores has no rows.
"""

import math
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from posbench import attention
from posbench.data.dataset import Dataset
from posbench.encodings.base import Context, PositionalEncoding, wide
from posbench.evaluate import positions, protocols
from posbench.evaluate.plan import Cell, Key, Plan
from posbench.evaluate.signature import signature
from posbench.grid import Shape
from posbench.model import Decoder

FILE = "attention.csv"
COLUMNS = [
    "run_id", "rescale", "factor", "options", "test_len", "layer", "max_logit", "entropy",
    "entropy_share", "n_windows",
]  # fmt: skip
#: windows that are looked at
WINDOWS = 8
#: multiples of L
LENGTHS = (1, 4)


class Sharpness:
    """Largest score and mean entropy of one layer, added up window by window."""

    def __init__(self) -> None:
        self.largest, self.entropy, self.share = -math.inf, 0.0, 0.0
        self.rows, self.choices = 0, 0

    def add(self, scores: Tensor, weights: Tensor) -> None:
        """Scores, -inf where a key is not seen, and weights [..., queries, keys]."""
        self.largest = max(self.largest, float(scores.max()))
        entropy = torch.special.entr(weights.to(wide(weights.device)).clamp(min=0)).sum(-1)
        most = (scores > -math.inf).sum(-1).to(entropy.dtype).log().expand_as(entropy)
        several = most > 0
        self.entropy += float(entropy.sum())
        self.rows += entropy.numel()
        self.share += float((entropy[several] / most[several]).sum())
        self.choices += int(several.sum())

    def columns(self) -> dict[str, float | None]:
        """What the table shows of the layer."""
        share = self.share / self.choices if self.choices else None
        return {
            "max_logit": self.largest,
            "entropy": self.entropy / self.rows,
            "entropy_share": share,
        }


class _Watched(PositionalEncoding):
    """An encoding that hands over what its layers attend with."""

    name = "watched"

    def __init__(self, inner: PositionalEncoding, tell: Callable[..., None]):
        super().__init__(None, inner.geometry)
        self.inner, self.tell, self.axes = inner, tell, inner.axes

    def for_layer(self, layer: int) -> tuple[PositionalEncoding, int]:
        own, index = self.inner.for_layer(layer)
        return _Watched(own, partial(self.tell, layer)), index

    def embed(self, x_BTD: Tensor, pos_BTA: Tensor) -> Tensor:
        return self.inner.embed(x_BTD, pos_BTA)

    def prepare(self, x_BTD: Tensor, pos_BTA: Tensor, ctx: Context) -> Any:
        return self.inner.prepare(x_BTD, pos_BTA, ctx)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> Tensor:
        self.tell(self.inner, q, k, q_pos, k_pos, ctx)
        return self.inner.attend(q, k, v, q_pos, k_pos, ctx)


def weights_of(
    encoding: PositionalEncoding,
    scores: Tensor,
    width: int,
    q_pos: Tensor,
    k_pos: Tensor,
    ctx: Context,
) -> Tensor:
    """Weights [B, H, Tq, Tk] of the keys' values; `width` is that of a head.

    A normalisation of the scheme's own is asked what it makes of unit values, `width` keys at a
    time, less what it makes of none.
    """
    if "normalise" not in encoding.hooks:
        return scores.to(wide(scores.device)).softmax(-1)
    keys, found = scores.shape[3], []
    unit = torch.eye(keys, device=scores.device, dtype=scores.dtype)
    values = F.pad(unit, (0, -keys % width))[None, None]
    at = q_pos, k_pos, ctx
    none = encoding.normalise(scores, torch.zeros_like(values[..., :width]), *at)
    for part in values.split(width, -1):
        found.append(encoding.normalise(scores, part, *at) - none)
    return torch.cat(found, -1)[..., :keys]


@torch.inference_mode()
def sharpness(
    model: Decoder, encoding: PositionalEncoding, inputs: list[Tensor], scored: int
) -> dict[int, Sharpness]:
    """By layer, of the last `scored` queries of inputs [T] each; one window at a time."""
    found: dict[int, Sharpness] = {}

    def tell(
        layer: int,
        acting: PositionalEncoding,
        q: Tensor,
        k: Tensor,
        q_pos: Tensor,
        k_pos: Tensor,
        ctx: Context,
    ) -> None:
        own = acting.by_hooks(ctx.alone())
        if own is None:
            return
        scheme, seen = own
        q, at = q[:, :, -scored:], (q_pos[:, -scored:], k_pos)
        scores = attention.scores(scheme, q, k, *at, seen)
        weights = weights_of(scheme, scores, q.shape[3], *at, seen)
        found.setdefault(layer, Sharpness()).add(scores, weights)

    for tokens in inputs:
        pos = model.positions((len(tokens),))
        last = torch.arange(len(tokens) - scored, len(tokens))
        model.hidden(tokens[None], _Watched(encoding, tell), pos, last)
    return found


def keys(todo: Plan) -> list[Key]:
    """The rows that are looked at: of texts, on the frozen targets, at L and 4 L."""
    if not isinstance(todo.data, Dataset):
        return []
    lengths = [n * todo.train_length for n in LENGTHS]
    return [
        key
        for key in dict.fromkeys(todo.wanted())
        if key.protocol == protocols.SAME_TARGETS and key.length in lengths
    ]


def table(
    todo: Plan,
    cells: dict[Key, Cell],
    model: Decoder,
    encoding_of: Callable[[Key], PositionalEncoding | str],
) -> pd.DataFrame:
    """A line for every row and layer; rescalings that make one encoding share its passes."""
    made: list[dict[str, Any]] = []
    known: dict[Hashable, list[dict[str, Any]]] = {}
    for key in keys(todo):
        encoding = encoding_of(key)
        if cells[key].status != "ok" or isinstance(encoding, str):
            continue
        same = key.shape, signature(encoding)
        lines = known.get(same) if same[1] is not None else None
        if lines is None:
            lines = known[same] = _lines(todo, key.shape, model, encoding)
        made += [positions.about(todo, key) | line for line in lines]
    return pd.DataFrame(made, columns=COLUMNS)


def _lines(
    todo: Plan, shape: Shape, model: Decoder, encoding: PositionalEncoding
) -> list[dict[str, Any]]:
    """The layers' columns at one test length."""
    assert isinstance(todo.data, Dataset) and todo.eval.blocks is not None
    docs = min(WINDOWS, todo.eval.docs or WINDOWS, len(todo.data.targets.documents))
    blocks = min(todo.eval.blocks, -(-WINDOWS // docs))
    windows = list(todo.data.target_windows(shape, docs, blocks))[:WINDOWS]
    device = next(model.parameters()).device
    inputs = [torch.as_tensor(window.inputs).to(device) for window in windows]
    found = sharpness(model, encoding, inputs, todo.data.targets.scored)
    return [
        {"layer": layer, "n_windows": len(windows)} | own.columns()
        for layer, own in sorted(found.items())
    ]
