"""Contextual position encoding."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posbench.encodings.base import Context, PositionalEncoding, Reduction, Tied
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry


@register
class CoPE(PositionalEncoding):
    """Positions count the keys that a query chooses to count (Golovneva et al. 2024).

    gate_ij = sigmoid(score_ij), p_ij = sum of gate_il over l = j .. i, at most P - 1; score_ij gets
    q_i . e(p_ij), not divided by sqrt(K), with e between two whole positions on the line that joins
    them. One table e [P, K] a layer, for all its heads, zero at the start: the gates learn once e
    has. A token's own position is its gate. arXiv:2405.18719 (the other CoPE clips RoPE).
    """

    family = "contextual bias"
    paper = "arXiv:2405.18719"
    learnable = True

    @dataclass
    class Config:
        #: P, number of positions; auto = a quarter of the training length (half of the largest
        #: position at the start, where gates are near 1/2), so that the last one is trained
        max_positions: int | str = "auto"

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        given = config.max_positions
        count = geometry.train_length // 4 if given == "auto" else given
        if not isinstance(count, int) or count < 2:
            raise ConfigError(
                f"posenc.max_positions={given}: a whole number of at least 2, or auto"
            )
        self.needs_train_length = given == "auto"
        self.table = nn.Parameter(torch.empty(geometry.n_layers, count, geometry.head_dim))

    def tied(self) -> list[Tied]:
        return [Tied("posenc.max_positions", "64", str(self.table.shape[1]))]

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("e = 0", "none", prepare=_silence)]

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        parameter.zero_()

    def content_bias(
        self,
        scores: Tensor,
        q: Tensor,
        k: Tensor,
        visible: Tensor,
        q_pos: Tensor,
        k_pos: Tensor,
        ctx: Context,
    ) -> Tensor:
        last = self.table.shape[1] - 1
        counted = scores.sigmoid().masked_fill(~visible, 0.0)
        place = counted.flip(-1).cumsum(-1).flip(-1).clamp(max=last)
        below = place.detach().long()
        columns = q @ self.table[ctx.layer].to(q.dtype).T
        at_below = columns.gather(-1, below)
        at_above = columns.gather(-1, (below + 1).clamp(max=last))
        return scores + torch.lerp(at_below, at_above, place - below)


@torch.no_grad()
def _silence(encoding: CoPE) -> None:
    encoding.table.zero_()
