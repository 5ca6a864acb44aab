"""Rotary position embedding with a block of the head for each axis."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posbench.encodings.axes import SPLITS, RopeOnAxes, split_head
from posbench.encodings.rope import powers
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry


@register
class RopeAxial(RopeOnAxes):
    """RoPE on pictures and clips: each pair turns with the coordinate of one axis (Su 2021).

    R(x, y) = diag(R(x), R(y)), kexue.fm/archives/8397. The pairs of an axis are a run, in the order
    of the axes, with a ladder of its own, base^(-2p/d_axis), p = 0 .. d_axis/2 - 1, from the size
    of that block. Pairs are half-split over the whole head (p, p + d/2), as transformers lays out
    the vision parts of Qwen2-VL, DINOv3 and Pixtral; other code interleaves them or splits each
    block, and Pixtral's columns have the steps between those of its rows. ViTs have base 100
    (arXiv:2403.13298, DINOv3), HunyuanVideo 256. V-JEPA 2 repeats its angles in another layout than
    it turns channels in: only its split is here. A rescaling acts along each axis that grows, by
    its own extents, and has its temperature once, by the largest factor.
    """

    family = "rotary"
    paper = "kexue.fm/archives/8397"
    axes = (2, 3)

    @dataclass
    class Config(RopeOnAxes.Config):
        #: channels of a head for each axis: auto (halves; with three axes d - 4 floor(d/6),
        #: 2 floor(d/6), 2 floor(d/6)), equal, hunyuan (16/56/56 of 128), vjepa2
        #: (2 floor(floor(d/A)/2) each, the rest does not turn), or a list such as [16,24,24]
        split: Any = "auto"

    def __init__(self, config: Config, geometry: Geometry):
        if not (isinstance(config.split, list) or config.split in SPLITS):
            raise ConfigError(
                f"posenc.split={config.split}: must be one of {', '.join(SPLITS)}, or a list of "
                "channels for each axis"
            )
        given = len(geometry.shape)
        count = given if given in self.axes else self.axes[0]
        option = f"posenc.split={config.split}".replace(" ", "")
        channels = split_head(geometry, count, option, config.split)
        super().__init__(config, geometry)
        self.inv_freq = torch.cat([powers(self.base, dim) for dim in channels])
        #: axis [r/2] of each pair
        self.axis_of = torch.repeat_interleave(torch.arange(count), torch.tensor(channels) // 2)

    def turning_with(self, count: int) -> Tensor:
        return self.axis_of
