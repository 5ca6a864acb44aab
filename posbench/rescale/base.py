"""Interface of rescalings: new frequencies and a new logit scale from a factor s."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from posbench.errors import ConfigError, UnsupportedRescale

if TYPE_CHECKING:
    from posbench.encodings.base import PositionalEncoding


@dataclass(frozen=True)
class Ladder:
    """A trained rotary ladder: frequencies [dim/2] in float64, base, rotary size and L."""

    inv_freq: Tensor
    base: float
    dim: int
    train_length: int

    @property
    def turns(self) -> Tensor:
        """Full turns r_p = L * theta_p / (2 pi) that each pair makes within the training length."""
        return self.train_length * self.inv_freq / (2 * math.pi)


class Rescale:
    """Base class: `frequencies` and `logit_multiplier` as functions of the scale."""

    group: ClassVar[str] = "rescale"
    name: ClassVar[str]
    family: ClassVar[str] = "rescaling"
    paper: ClassVar[str] = ""

    @dataclass
    class Config:
        #: s = target / training length; auto = max(1, test length / L), anew for every length
        factor: int | float | str = "auto"

    def __init__(self, config: Any):
        self.config = config
        factor = getattr(config, "factor", None)
        if isinstance(factor, str) and factor != "auto":
            raise ConfigError(f"rescale.factor={factor}: a number of at least 1, or auto")
        if isinstance(factor, int | float) and not 1 <= factor < math.inf:
            raise ConfigError(f"rescale.factor={factor}: must be at least 1, or auto")

    @property
    def factor(self) -> str:
        """The factor as given, for the table; empty where the rule takes none."""
        factor = getattr(self.config, "factor", "")
        return factor if isinstance(factor, str) else f"{factor:.12g}"

    def scale(self, train_length: int, test_length: int) -> float:
        """The number s in use at a test length."""
        if self.config.factor == "auto":
            return max(1.0, test_length / train_length)
        return float(self.config.factor)

    def frequencies(self, ladder: Ladder, scale: float) -> Tensor:
        """Rescaled frequencies [dim/2], float64."""
        raise NotImplementedError

    def logit_multiplier(self, scale: float) -> float:
        """Factor on the attention scores (a temperature below 1 sharpens: factor above 1)."""
        return 1.0

    def applied(
        self, encoding: "PositionalEncoding", train_length: int, test_length: int
    ) -> "PositionalEncoding":
        """The encoding to test with; the trained one is left as it is."""
        return encoding.rescaled(self, train_length, test_length)


def ramp_blend(inv_freq: Tensor, keep: Tensor, scale: float) -> Tensor:
    """theta' = (1 - keep) * theta / s + keep * theta; exactly theta at s = 1."""
    return inv_freq * (keep + (1 - keep) / scale)


def kept_by_turns(ladder: Ladder, alpha: float, beta: float) -> Tensor:
    """gamma(r) of arXiv:2309.00071: 0 below alpha turns, 1 above beta, linear in r between."""
    return ((ladder.turns - alpha) / (beta - alpha)).clamp(0, 1)


def yarn_logit_multiplier(scale: float) -> float:
    """1/t with sqrt(1/t) = 0.1 ln s + 1: scores are multiplied by (0.1 ln s + 1)^2."""
    return (0.1 * math.log(scale) + 1.0) ** 2 if scale > 1 else 1.0


#: training length of the models for which alpha = 1 and beta = 32 were set
_LLAMA_LENGTH = 2048


@dataclass
class TurnsConfig(Rescale.Config):
    """Cut-offs in turns within the training length."""

    #: pairs with fewer turns are fully interpolated
    alpha: float = 1.0
    #: pairs with more turns are left alone; auto = 32 * L / 2048, the same share of the ladder
    beta: int | float | str = 32.0

    def cut_offs(self, train_length: int) -> tuple[float, float]:
        """alpha and beta in use, checked."""
        if isinstance(self.beta, str) and self.beta != "auto":
            raise ConfigError(f"rescale.beta={self.beta}: a number above rescale.alpha, or auto")
        auto = isinstance(self.beta, str)
        beta = 32.0 * train_length / _LLAMA_LENGTH if auto else float(self.beta)
        if not 0 < self.alpha < beta:
            raise (UnsupportedRescale if auto else ConfigError)(
                f"rescale.alpha={self.alpha:g} and rescale.beta={self.beta}"
                f"{f' ({beta:g} at L = {train_length})' if auto else ''}: need 0 < alpha < beta"
            )
        return self.alpha, beta
