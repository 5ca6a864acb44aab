"""The one interface of positional encodings: hooks with identity defaults.

Shapes: B batch (1 where shared), T time (Tq queries, Tk keys), D width, H heads (1 where shared),
K head width, A position axes (text: 1), N distances. Queries are the last of the keys: row r of Tq
stands at key index Tk - Tq + r, in the whole sequence and in every chunk of it.

The order of operations in a layer is fixed, see `posbench.attention`:

    scores = (rotated q . rotated k) / sqrt(K) * logit_scale + biases     (not divided by sqrt(K))
    scores = content_bias(scores)
    output = normalise(scores where a key is visible, v)                  (softmax by default)

One file, so that the whole interface can be read from top to bottom.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from posbench.errors import ConfigError, NotRescalable
from posbench.settings import Geometry

if TYPE_CHECKING:
    from posbench.rescale.base import Rescale

#: what a scheme may define; a class lists in `hooks` those that it does
HOOKS = (
    "embed",
    "prepare",
    "rotate",
    "relative_position",
    "distance_bias",
    "key_bias",
    "pair_bias",
    "content_bias",
    "visible",
    "logit_scale",
    "normalise",
    "attend",
)


class Context:
    """What one forward pass shares; made anew for each pass, so no state survives a call."""

    def __init__(
        self,
        consecutive: bool,
        layer: int = 0,
        window: int | None = None,
        prepared: Any = None,
        shared: dict[Any, Any] | None = None,
    ):
        #: neighbours differ by one position, so that a distance is a difference of indices
        self.consecutive = consecutive
        #: index of the layer among those whose parameters the scheme holds
        self.layer = layer
        #: keys that a query of this layer sees, itself included; None = all before it
        self.window = window
        #: what the scheme's `prepare` returned for this layer
        self.prepared = prepared
        self._shared = {} if shared is None else shared

    def at(self, layer: int, window: int | None = None, prepared: Any = None) -> "Context":
        """The same pass, seen from a layer."""
        return Context(self.consecutive, layer, window, prepared, self._shared)

    def part(self, name: str) -> "Context":
        """The same layer, seen from one part of a combined scheme."""
        inner = None if self.prepared is None else self.prepared.get(name)
        return Context(self.consecutive, self.layer, self.window, inner, self._shared)

    def alone(self) -> "Context":
        """The same layer, sharing nothing: for positions that are made on the way."""
        return Context(self.consecutive, self.layer, self.window, self.prepared)

    def once(self, key: Any, build: Callable[[], Any]) -> Any:
        """Result of `build`, computed once in this pass and shared by its layers."""
        if key not in self._shared:
            self._shared[key] = build()
        return self._shared[key]


class Region(NamedTuple):
    """Positions to rotate by [B or 1, T, A], and where they count [B or 1, 1, Tq, Tk] (None: all).

    A later region replaces an earlier one where it counts.
    """

    q_pos: Tensor
    k_pos: Tensor
    where: Tensor | None


@dataclass(frozen=True)
class Tied:
    """A hyper-parameter that papers choose for their training length: theirs, and what is used."""

    option: str
    paper: str
    used: str


@dataclass(frozen=True)
class Reduction:
    """A special case in which a scheme or rescaling equals another; `posbench check` tests it."""

    #: the case in words, e.g. "factor = 1"
    case: str
    #: name of the scheme or rescaling of the same group that it then equals
    equals: str
    options: dict[str, Any] = field(default_factory=dict)
    equal_options: dict[str, Any] = field(default_factory=dict)
    #: sets own parameters to the special case, in place
    prepare: Callable[[Any], None] | None = None


def made(cls: Any, config: Any, geometry: Geometry) -> "PositionalEncoding":
    """A scheme of a class for a geometry; one that takes the index gets a geometry of one axis."""
    encoding: PositionalEncoding = cls(config, geometry)
    if len(geometry.shape) not in encoding.axes and 1 in encoding.axes:
        return made(cls, config, replace(geometry, train_shape=(), growing=()))
    return encoding


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
    name: str
    family: str = ""
    paper: str = ""

    #: has parameters of its own
    learnable: bool = False
    #: adding a constant to every position changes nothing
    shift_invariant: bool = True
    #: the output of a token changes when later tokens are appended
    depends_on_total_length: bool = False
    #: its values follow the training length
    needs_train_length: bool = False
    #: `rotate` keeps the norm of queries and keys
    norm_preserving: bool = True
    #: the bias of a distance, or of a pair of positions, differs between layers
    per_layer: bool = False
    #: biases fall with the distance, whatever the parameters
    monotone: bool = False
    #: most keys that `visible` leaves a query; None = no bound
    most_keys: int | None = None
    #: torch.compile takes it, in seconds rather than minutes
    compilable: bool = True
    #: numbers of position axes it understands; where it does not understand those of the data but
    #: takes one, it is given the index in raster order
    axes: tuple[int, ...] = (1,)
    #: what the rescaling acts on that a fine-tuned run was trained under -> that rescaling's label
    trained_under: dict[str, str] = {}
    #: which of HOOKS it defines (set when a class is made; a combined scheme sets its own)
    hooks: frozenset[str] = frozenset()

    @dataclass
    class Config:
        """No options."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.hooks = frozenset(h for h in HOOKS if getattr(cls, h) is not _default(h))

    def __init__(self, config: Any, geometry: Geometry):
        super().__init__()
        self.config = config
        self.geometry = geometry

    # ---- what it is

    @property
    def label(self) -> str:
        """What tables call it."""
        return self.name

    @property
    def max_length(self) -> int | None:
        """Number of positions it is defined for; None = any."""
        return None

    @property
    def query_init_scale(self) -> float:
        """Factor on the initial query projection (T5 folds 1/sqrt(K) into it)."""
        return 1.0

    @property
    def on_a_grid(self) -> bool:
        """Whether positions are coordinates of a picture or clip, not indices in raster order."""
        return len(self.geometry.shape) > 1 and len(self.geometry.shape) in self.axes

    def defined_for(self, shape: tuple[int, ...]) -> bool:
        """Whether every position of a text, picture or clip of this shape has a meaning to it."""
        return self.max_length is None or math.prod(shape) <= self.max_length

    def measured_at(self, shape: tuple[int, ...]) -> "PositionalEncoding":
        """What a rescaling is applied to: itself, or a copy that knows the extents of the test."""
        return self

    def tied(self) -> list[Tied]:
        """Hyper-parameters to be chosen for the training length, given or not."""
        return []

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        """Set the initial value of one of the scheme's own parameters, in place."""
        parameter.normal_(std=0.02, generator=generator)

    @classmethod
    def reductions(cls) -> list[Reduction]:
        """Special cases in which it equals another scheme."""
        return []

    def param_groups(self) -> list[dict[str, Any]]:
        """Own parameters with `lr_factor` and `weight_decay`; they are never given to Muon."""
        return [{"params": list(self.parameters()), "lr_factor": 1.0, "weight_decay": 0.0}]

    def project(self) -> None:
        """Put parameters back into their allowed range, after an optimizer step."""

    def own_tables(self, distances: Tensor) -> dict[str, Any]:
        """Numbers of this scheme that its hooks do not show, as lists, for `posbench show`.

        inv_freq [pairs], rotation_scale (factor on cos and sin), slopes [H], buckets [N] of the
        distances [N]; other names are shown as they are.
        """
        return {}

    # ---- hooks

    def for_layer(self, layer: int) -> tuple["PositionalEncoding", int]:
        """The scheme that acts in a layer, and that layer's index among the scheme's own."""
        return self, layer

    def embed(self, x_BTD: Tensor, pos_BTA: Tensor) -> Tensor:
        """Token stream with the position added; called once, before the first layer."""
        return x_BTD

    def prepare(self, x_BTD: Tensor, pos_BTA: Tensor, ctx: Context) -> Any:
        """What a layer's normed stream gives over all keys; the hooks find it in `ctx.prepared`."""
        return None

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys turned by their positions (pos: [B or 1, T, A]); may get wider."""
        return q_BHTK, k_BHTK

    def relative_position(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> list[Region] | None:
        """Other positions to rotate by, region by region, for a chunk; None = those given."""
        return None

    def distance_bias(self, distance_N: Tensor, ctx: Context) -> Tensor:
        """Bias [H, N] added to the scores, for query minus key positions >= 0 (int64)."""
        raise NotImplementedError

    def key_bias(self, k_pos: Tensor, ctx: Context) -> Tensor:
        """Values [B, H, Tk] of all keys; the bias of a pair is the key's less the query's own."""
        raise NotImplementedError

    def pair_bias(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        """Any other bias, broadcastable to [B, H, Tq, Tk], for a chunk of queries."""
        raise NotImplementedError

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
        """Scores [B, H, Tq, Tk] changed by content, for a chunk; q and k are not rotated.

        `visible` [B or 1, H or 1, Tq, Tk] is False where a key may not be seen; what is returned
        there is ignored, but must be finite or -inf.
        """
        return scores

    def visible(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> Tensor:
        """Mask [B or 1, H or 1, Tq, Tk], on top of causality and the layer's window."""
        raise NotImplementedError

    def logit_scale(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> float | Tensor | None:
        """Factor on q . k: a number, or one per query [B or 1, H or 1, Tq]; None = 1.

        The queries are the last of the keys.
        """
        return None

    def normalise(
        self, scores: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> Tensor:
        """Output [B, H, Tq, K] from scores that are -inf where a key is not visible."""
        return scores.softmax(-1) @ v

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> Tensor:
        """Attention output [B, H, Tq, K] of unrotated q and k: only for what does not factor."""
        from posbench.attention import attend

        return attend(self, q, k, v, q_pos, k_pos, ctx)

    def by_hooks(self, ctx: Context) -> tuple["PositionalEncoding", Context] | None:
        """The scheme whose hooks make a layer's scores, and the layer as it sees it.

        None where attention is computed in another way.
        """
        return None if "attend" in self.hooks else (self, ctx)

    # ---- rescaling

    def changed(
        self, change: Callable[["PositionalEncoding"], "PositionalEncoding"]
    ) -> "PositionalEncoding":
        """A new encoding whose every layer's scheme went through `change`."""
        return change(self)

    def rescaled(
        self, rule: "Rescale", train_length: int, test_length: int
    ) -> "PositionalEncoding":
        """A NEW encoding under a rescaling, sharing the weights; refuses by default."""
        raise NotRescalable(f"{self.name} cannot be rescaled by {rule.name}: it is not rotary")

    def replace(self, **attributes: Any) -> "PositionalEncoding":
        """A shallow copy with other attributes; parameters are shared, nothing else is touched."""
        new = copy.copy(self)
        for kind in ("_parameters", "_buffers", "_modules"):
            new.__dict__[kind] = dict(self.__dict__[kind])
        for name, value in attributes.items():
            setattr(new, name, value)
        return new


def _default(hook: str) -> Any:
    """The base class's own version of a hook."""
    return getattr(PositionalEncoding, hook)
