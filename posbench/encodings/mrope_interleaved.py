"""Multimodal rotary position embedding whose axes take turns along the ladder."""

import torch
from torch import Tensor

from posbench.encodings.mrope import Sections
from posbench.errors import ConfigError
from posbench.registry import register


@register
class MRopeInterleaved(Sections):
    """M-RoPE with axes in turn, so that each has fast and slow pairs (Qwen3-VL).

    The ladder of `mrope`; pair p goes to time, height, width for p mod 3 = 0, 1, 2 while
    p < 3 sections[axis], the rest to time. `sections` are 24, 20 and 20 of 64 pairs, scaled: height
    and width get floor(20/64 * d/2) each, time the rest. Sections with more pairs of height or
    width than the ladder has turns are refused; released code cuts them short without a word. Text
    and pictures are as in `mrope`. Bai et al. 2025, arXiv:2511.21631.
    """

    family = "rotary"
    paper = "arXiv:2511.21631"
    share = 20

    def shared_out(self) -> Tensor:
        place = torch.arange(sum(self.sections))
        axis = place % 3
        found = torch.where(place < 3 * torch.tensor(self.sections)[axis], axis, 0)
        for one, name in ((1, "height"), (2, "width")):
            room, wanted = int((found == one).sum()), self.sections[one]
            if room < wanted:
                raise ConfigError(
                    f"posenc.sections={self.sections}: among {len(place)} pairs only {room} are "
                    f"{name}'s in turn, not {wanted}"
                )
        return found
