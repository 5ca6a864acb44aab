"""KERPLE's power kernel."""

from typing import Any

import torch
from torch import Tensor

from posbench.encodings.alibi import slopes
from posbench.encodings.base import Reduction
from posbench.encodings.kerple_log import Kerple
from posbench.registry import register


@torch.no_grad()
def _linear(scheme: Any) -> None:
    """Exponent 1, and ALiBi's slopes."""
    scheme.r1.copy_(torch.tensor(slopes(scheme.geometry.n_heads), dtype=torch.float64))
    scheme.r2.fill_(1.0)


@register
class KerplePower(Kerple):
    """A learned penalty that is a power of the distance (Chi et al. 2022).

    bias[h, i, j] = -r1_h (i - j)^(r2_h), added after 1/sqrt(K); r1 ~ U(0, 1), r2 ~ U(0, 2) at the
    start, both kept at 0.01 or above and r2 at 2 or below. arXiv:2205.09921. r2 = 1 is ALiBi.
    """

    family = "relative bias"
    paper = "arXiv:2205.09921"
    initial = {"r1": 1.0, "r2": 2.0}
    largest = {"r2": 2.0}

    @classmethod
    def reductions(cls) -> list[Reduction]:
        return [Reduction("r2 = 1 and r1 = slopes", "alibi", {"least": 0.0}, prepare=_linear)]

    def kernel(self, distance_N: Tensor, r2: Tensor) -> Tensor:
        # 0^r has no usable gradient in r: its logarithm is infinite
        return (r2 * distance_N.clamp(min=1).log()).exp() * (distance_N > 0)
