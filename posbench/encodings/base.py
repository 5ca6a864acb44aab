"""The one interface of positional encodings: hooks with identity defaults.

Shapes: B batch (1 where shared), T time, D width, H heads, K head width, A position axes (text: 1),
N distances. The order of operations in a layer is fixed, see `posbench.attention`:

    scores = (q . k) / sqrt(K) * logit_scale + bias        (the bias is not divided by sqrt(K))
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from posbench.errors import ConfigError, UnsupportedRescale
from posbench.settings import Geometry

if TYPE_CHECKING:
    from posbench.rescale.base import Rescale


class Context:
    """What one forward pass shares; made anew for each pass, so no state survives a call."""

    def __init__(self, consecutive: bool, layer: int = 0, shared: dict[Any, Any] | None = None):
        #: positions are 0, 1, 2, ... so that a distance is a difference of indices
        self.consecutive = consecutive
        #: index of the layer that calls
        self.layer = layer
        self._shared = {} if shared is None else shared

    def at(self, layer: int) -> "Context":
        """The same pass, seen from a layer."""
        return Context(self.consecutive, layer, self._shared)

    def once(self, key: Any, build: Callable[[], Any]) -> Any:
        """Result of `build`, computed once in this pass and shared by its layers."""
        if key not in self._shared:
            self._shared[key] = build()
        return self._shared[key]


@dataclass(frozen=True)
class Tied:
    """A hyper-parameter that follows the training length: what the paper has and what is used."""

    option: str
    paper: str
    used: str


def wide(device: torch.device) -> torch.dtype:
    """Type in which tables are computed: float64, or float32 where a device has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def check_rms(rms: float) -> None:
    """Refuse a root mean square of an embedding that is not a positive number."""
    if not 0 < rms < math.inf:
        raise ConfigError(f"posenc.rms={rms}: must be above 0")


class PositionalEncoding(nn.Module):
    """Base class; without overridden hooks it is NoPE.

    A scheme is a subclass in its own file with a nested dataclass `Config` and `@register`.
    """

    group: ClassVar[str] = "posenc"
    name: ClassVar[str]
    family: ClassVar[str] = ""
    paper: ClassVar[str] = ""

    #: has parameters of its own
    learnable: ClassVar[bool] = False
    #: adding a constant to every position changes nothing
    shift_invariant: ClassVar[bool] = True
    #: the output of a token changes when later tokens are appended
    depends_on_total_length: ClassVar[bool] = False
    #: its values follow the training length
    needs_train_length: ClassVar[bool] = False
    #: `rotate` keeps the norm of queries and keys
    norm_preserving: ClassVar[bool] = True
    #: layers differ
    per_layer: ClassVar[bool] = False
    #: numbers of position axes it understands
    axes: ClassVar[tuple[int, ...]] = (1,)
    #: which hooks the class defines (set when the class is made)
    biased: ClassVar[bool] = False

    @dataclass
    class Config:
        """No options."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.biased = cls.distance_bias is not PositionalEncoding.distance_bias

    def __init__(self, config: Any, geometry: Geometry):
        super().__init__()
        self.config = config
        self.geometry = geometry

    @property
    def max_length(self) -> int | None:
        """Longest sequence it is defined for; None = any."""
        return None

    @property
    def query_init_scale(self) -> float:
        """Factor on the initial query projection (T5 folds 1/sqrt(K) into it)."""
        return 1.0

    def tied(self) -> list[Tied]:
        """Hyper-parameters that follow the training length."""
        return []

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        """Set the initial value of one of the scheme's own parameters, in place."""
        parameter.normal_(std=0.02, generator=generator)

    def param_groups(self) -> list[dict[str, Any]]:
        """Own parameters with `lr_factor` and `weight_decay`; they are never given to Muon."""
        return [{"params": list(self.parameters()), "lr_factor": 1.0, "weight_decay": 0.0}]

    def embed(self, x_BTD: Tensor, pos_BTA: Tensor) -> Tensor:
        """Token stream with the position added; called once, before the first layer."""
        return x_BTD

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys turned by their positions (pos: [B or 1, T, A])."""
        return q_BHTK, k_BHTK

    def distance_bias(self, distance_N: Tensor) -> Tensor:
        """Bias [H, N] added to the scores, for query minus key positions >= 0 (int64)."""
        raise NotImplementedError

    def logit_scale(self, q_pos: Tensor, ctx: Context) -> float | Tensor | None:
        """Factor on the scores: a number, or one per query [B or 1, T]; None = 1."""
        return None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> Tensor:
        """Attention output [B, H, T, K]; override only what does not factor into the hooks."""
        from posbench.attention import attend

        return attend(self, q, k, v, q_pos, k_pos, ctx)

    def rescaled(
        self, rule: "Rescale", train_length: int, test_length: int
    ) -> "PositionalEncoding":
        """A NEW encoding under a rescaling, sharing the weights; refuses by default."""
        raise UnsupportedRescale(f"{self.name} cannot be rescaled by {rule.name}: it is not rotary")

    def replace(self, **attributes: Any) -> "PositionalEncoding":
        """A shallow copy with other attributes; parameters are shared, nothing else is touched."""
        new = copy.copy(self)
        for kind in ("_parameters", "_buffers", "_modules"):
            new.__dict__[kind] = dict(self.__dict__[kind])
        for name, value in attributes.items():
            setattr(new, name, value)
        return new
