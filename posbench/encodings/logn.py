"""Scores that grow with the logarithm of the number of keys."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding, Tied, wide
from posbench.registry import register


def visible_keys(q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
    """Keys that each query sees [1, 1, Tq]: itself and all before it, or as many as the window."""
    keys = k_pos.shape[1]
    first = keys - q_pos.shape[1] + 1
    count = torch.arange(first, keys + 1, device=q_pos.device, dtype=wide(q_pos.device))
    count = count if ctx.window is None else count.clamp(max=ctx.window)
    return count[None, None]


@register
class LogN(PositionalEncoding):
    """Scores times ln(n) / ln L for the n keys that a query sees, so that entropy stays.

    Su 2021, kexue.fm/archives/8823. Tokens are counted, whatever their positions, and in a layer
    with a window no more than that. It has no other position signal: combine it, as in
    posenc=stack posenc.parts=[rope,logn]. On a model trained without it use rescale=logn, which
    keeps the factor at 1 up to L.
    """

    family = "temperature"
    paper = "kexue.fm/archives/8823"
    needs_train_length = True

    @dataclass
    class Config:
        #: never below 1
        clamp: bool = False

    def tied(self) -> list[Tied]:
        return [Tied("log base of logn", "512", str(self.geometry.train_length))]

    def logit_scale(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        scale = visible_keys(q_pos, k_pos, ctx).log() / math.log(self.geometry.train_length)
        return scale.clamp(min=1.0) if self.config.clamp else scale
