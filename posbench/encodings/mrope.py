"""Multimodal rotary position embedding: one ladder, a section of it for each axis."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posbench.encodings.axes import RopeOnAxes
from posbench.encodings.base import Reduction
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry


class Sections(RopeOnAxes):
    """One ladder over the head, whose pairs are shared out among time, height and width."""

    family = "rotary"
    axes = (1, 2, 3)
    one_ladder = True
    #: pairs of height and of width in 64
    share = 24

    @dataclass
    class Config(RopeOnAxes.Config):
        #: pairs that turn with time, height and width; null = as released, see the scheme
        sections: list[int] | None = None

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        pairs, given = geometry.head_dim // 2, config.sections
        side = self.share * pairs // 64
        self.sections = [pairs - 2 * side, side, side] if given is None else list(given)
        if given is None and not side:
            raise ConfigError(
                f"model.d_model={geometry.d_model} / model.n_heads={geometry.n_heads} gives heads "
                f"of {geometry.head_dim}: posenc={self.name} needs at least "
                f"{2 * -(-64 // self.share)}"
            )
        if len(self.sections) != 3 or min(self.sections) < 0 or 0 in self.sections[1:]:
            raise ConfigError(
                f"posenc.sections={given}: three numbers of pairs, for time, height and width; "
                "only time may have none"
            )
        if sum(self.sections) != pairs:
            raise ConfigError(
                f"posenc.sections={given} has {sum(self.sections)} pairs, a head of "
                f"{geometry.head_dim} channels has {pairs}"
            )
        #: time, height or width [d/2] as 0, 1, 2
        self.section_of = self.shared_out()

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("positions of one axis", "rope")]

    def shared_out(self) -> Tensor:
        """What each pair [d/2] turns with: 0 time, 1 height, 2 width."""
        raise NotImplementedError

    def turning_with(self, count: int) -> Tensor:
        """On text all three are the index; on pictures time stands still."""
        if count == 1:
            return torch.zeros_like(self.section_of)
        return self.section_of - (3 - count)


@register
class MRope(Sections):
    """M-RoPE: the ladder of RoPE, its fast pairs for time, then height, then width (Qwen2-VL).

    theta_p = base^(-2p/d) over the whole head. `sections` are 16, 24 and 24 of 64 pairs, scaled:
    height and width get floor(24/64 * d/2) each, time the rest. On text all three axes hold the
    index, which makes it `rope` exactly; on pictures time is 0 for all tokens, so that its pairs do
    not turn. A rescaling gives each pair what the whole ladder has at the extents of the pair's
    axis. Wang et al. 2024, arXiv:2409.12191.
    """

    family = "rotary"
    paper = "arXiv:2409.12191"

    def shared_out(self) -> Tensor:
        return torch.repeat_interleave(torch.arange(3), torch.tensor(self.sections))
