"""Scores that grow with the logarithm of the position."""

import math
from dataclasses import dataclass

from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding, Tied, wide
from posbench.registry import register
from posbench.settings import Geometry


def visible_keys(q_pos: Tensor, ctx: Context) -> Tensor:
    """Keys that a query at each position sees [B or 1, 1, Tq]: i + 1, or as many as the window."""
    count = q_pos[:, None, :, 0].to(wide(q_pos.device)) + 1
    return count if ctx.window is None else count.clamp(max=ctx.window)


@register
class LogN(PositionalEncoding):
    """Scores times ln(i + 1) / ln L at position i, so that entropy stays as keys get more.

    Su 2021, kexue.fm/archives/8823. In a layer with a window the number of keys is at most that.
    It has no other position signal: combine it, as in posenc=stack posenc.parts=[rope,logn]. On a
    model trained without it use rescale=logn, which keeps the factor at 1 up to L.
    """

    family = "temperature"
    paper = "kexue.fm/archives/8823"
    shift_invariant = False
    needs_train_length = True

    @dataclass
    class Config:
        #: never below 1
        clamp: bool = False

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)

    def tied(self) -> list[Tied]:
        return [Tied("log base of logn", "512", str(self.geometry.train_length))]

    def logit_scale(self, q_pos: Tensor, ctx: Context) -> Tensor:
        scale = visible_keys(q_pos, ctx).log() / math.log(self.geometry.train_length)
        return scale.clamp(min=1.0) if self.config.clamp else scale
