"""Every option of a run and of an evaluation: fields, types, defaults and their checks.

Plain dataclasses without torch. A field marked `identity=False` (a path, a device, how often to
log) does not change a result, so it does not enter the hash that names a run's folder. Fields at
their default do not enter it either: a new option orphans no finished run. One file, so that
every option and its check is found in one place.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from posbench.errors import ConfigError

#: raise it when a change makes equal settings give other results
SCHEMA = 1
#: the learning rate times the width of the model, where none is given
BASE_RATE = 0.6
TIERS = ("smoke", "demo", "evidence", "paper")
STYLES = ("llama", "gpt2")
PROTOCOLS = ("same_targets", "nonoverlapping", "sliding", "prefix", "repeat")
PRECISIONS = ("float32", "bf16")
COMPILE = ("auto", "true", "false")
#: windows of a validation loss at most
WINDOWS = 65_536


def _aside(default: Any) -> Any:
    """A field that changes no result."""
    return field(default=default, metadata={"identity": False})


def positive(options: dict[str, float | None], least: float = 1) -> None:
    """Refuse values below `least`, naming the option."""
    for option, value in options.items():
        if value is not None and value < least:
            raise ConfigError(f"{option}={value}: must be at least {least}")


def above_zero(options: dict[str, float | None]) -> None:
    """Refuse what is no number above 0, naming the option."""
    for option, value in options.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{option}={value}: must be a number above 0")


def one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a value that is not in the list, naming the option and the list."""
    if value not in known:
        raise ConfigError(f"{option}={value}: must be one of {', '.join(known)}")


@dataclass
class ModelConfig:
    """Shape and style of the decoder. The defaults are the preset `tiny`."""

    d_model: int = 128
    n_layers: int = 4
    n_heads: int = 4
    #: llama: RMSNorm, SwiGLU, no biases; gpt2: LayerNorm, GELU, biases
    style: str = "llama"
    #: width of the MLP; null = 8/3 (llama, rounded up to 128) or 4 (gpt2) times d_model
    hidden: int | None = None
    #: RMSNorm on every head's query and key
    qk_norm: bool = False
    #: bias on the query, key and value projections; null = as the style has it
    qkv_bias: bool | None = None
    #: input and output embedding are one matrix
    tied: bool = True
    #: factor on the token embedding; null = sqrt(d_model), which gives unit rms at the start
    embed_scale: float | None = None
    #: keys that a query sees, itself included, one entry a layer; null in it = all before
    window: list[int | None] | None = None

    def __post_init__(self) -> None:
        positive(
            {
                "model.d_model": self.d_model,
                "model.n_layers": self.n_layers,
                "model.n_heads": self.n_heads,
                "model.hidden": self.hidden,
            }
        )
        if self.embed_scale is not None and not math.isfinite(self.embed_scale):
            raise ConfigError(f"model.embed_scale={self.embed_scale}: must be a number")
        one_of("model.style", self.style, STYLES)
        if self.d_model % self.n_heads:
            raise ConfigError(
                f"model.d_model={self.d_model} is not divisible by model.n_heads={self.n_heads}"
            )
        if self.window is not None and len(self.window) != self.n_layers:
            raise ConfigError(
                f"model.window={self.window}: needs one entry for each of "
                f"model.n_layers={self.n_layers} layers (null = no window)"
            )
        for window in self.window or []:
            positive({"model.window": window})


@dataclass
class TrainConfig:
    """The training loop."""

    steps: int = 1000
    #: L, the training length in tokens
    seq_len: int = 128
    batch_size: int = 16
    #: peak learning rate of AdamW; null = 0.6 / model.d_model
    lr: float | None = None
    #: share of the steps over which the rate rises linearly
    warmup: float = 0.05
    #: share of the steps, at the end, over which the rate falls linearly
    decay: float = 0.5
    #: the rate at the last step, as a share of the peak
    final_lr: float = 0.05
    #: largest norm of the gradient
    clip: float = 1.0
    precision: str = "float32"
    #: windows of the validation loss, and how often it is taken
    val_windows: int = 128
    val_every: int = _aside(200)
    #: of a fine-tuning: the length whose loss is logged as it goes, and how often; null = what its
    #: positions prepare for
    target: int | None = None
    target_every: int = _aside(10)
    log_every: int = _aside(10)
    checkpoint_every: int = _aside(200)
    #: auto, cpu, cuda or mps
    device: str = _aside("auto")
    #: threads of one run on a CPU; auto = measured once; null = torch's own choice
    threads: int | str | None = _aside("auto")
    #: true, false, or auto: where the run is long enough for compiling to pay for itself
    compile: str = _aside("auto")

    def __post_init__(self) -> None:
        self.compile = str(self.compile).lower()
        one_of("train.compile", self.compile, COMPILE)
        positive(
            {
                "train.steps": self.steps,
                "train.batch_size": self.batch_size,
                "train.val_windows": self.val_windows,
                "train.val_every": self.val_every,
                "train.target_every": self.target_every,
                "train.log_every": self.log_every,
                "train.checkpoint_every": self.checkpoint_every,
            }
        )
        if self.val_windows > WINDOWS:
            raise ConfigError(f"train.val_windows={self.val_windows}: must be at most {WINDOWS}")
        if isinstance(self.threads, str) and self.threads != "auto":
            raise ConfigError(f"train.threads={self.threads}: a whole number, auto or null")
        if isinstance(self.threads, int):
            positive({"train.threads": self.threads})
        positive({"train.seq_len": self.seq_len, "train.target": self.target}, least=8)
        above_zero({"train.lr": self.lr})
        if not self.clip > 0:  # infinite: never clipped
            raise ConfigError(f"train.clip={self.clip}: must be above 0")
        for name in ("warmup", "decay", "final_lr"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"train.{name}={getattr(self, name)}: must be from 0 to 1")
        if self.warmup + self.decay > 1:
            raise ConfigError(
                f"train.warmup={self.warmup} and train.decay={self.decay}: together at most 1"
            )
        one_of("train.precision", self.precision, PRECISIONS)


@dataclass
class OptimizerConfig:
    """AdamW for everything, or Muon for the 2-D weights of the blocks and AdamW for the rest."""

    name: str = "adamw"
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    #: learning rate of Muon as a multiple of train.lr
    muon_lr_factor: float = 1.0

    def __post_init__(self) -> None:
        one_of("optimizer.name", self.name, ("adamw", "muon"))
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(
                f"optimizer.weight_decay={self.weight_decay}: must be a number, 0 or above"
            )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"optimizer.{name}={getattr(self, name)}: must be in [0, 1)")
        above_zero({"optimizer.muon_lr_factor": self.muon_lr_factor})


@dataclass
class BaseRun:
    """What a fine-tuning keeps of the finished run that it goes on from."""

    weights_sha256: str
    #: L of the run that began from nothing: what its scheme and every rescaling go by
    train_length: int
    #: that run's `Geometry.span`
    span: int
    #: steps taken up to here, all legs together: the batches go on from there
    steps: int
    run_id: str = _aside("")
    #: what tables call the run that began from nothing
    preset: str = _aside("")


@dataclass
class RunConfig:
    """One training run. `posenc`, `positions` and `data` hold the Config of a registered class.

    A fine-tuning also has a `base`, and in `rescale` the Config of the rescaling it trains under.
    """

    posenc: Any = dataclasses.MISSING
    positions: Any = dataclasses.MISSING
    data: Any = dataclasses.MISSING
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    rescale: Any = None
    base: BaseRun | None = None
    seed: int = 0
    tier: str = "demo"
    #: folder of the finished run to go on from, which fills in `base`
    init: str | None = _aside(None)
    #: runs are kept below <runs_root>/<name>/
    name: str = _aside("default")
    runs_root: str = _aside("runs")
    #: train again although the run is finished
    fresh: bool = _aside(False)
    #: the option of the group posenc that was chosen (a scheme's name or a preset's)
    preset: str = _aside("")

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of a training example along each axis: (L,) for text."""
        return tuple(getattr(self.data, "shape", None) or (self.train.seq_len,))

    @property
    def first_length(self) -> int:
        """L of the training that began from nothing: this one's, unless it is a fine-tuning."""
        return self.base.train_length if self.base else self.train.seq_len

    @property
    def steps_before(self) -> int:
        """Steps of earlier runs that this one goes on from."""
        return self.base.steps if self.base else 0

    def __post_init__(self) -> None:
        one_of("tier", self.tier, TIERS)
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed}: must be at least 0")
        check_name("name", self.name)
        if self.train.lr is None:
            self.train.lr = BASE_RATE / self.model.d_model
        self.preset = self.preset or str(self.posenc.name)
        shape = getattr(self.data, "shape", None)
        if shape is not None:
            self.train.seq_len = _tokens_of(list(shape), self.train.seq_len)


def _tokens_of(shape: list[int], given: int) -> int:
    """Tokens of a picture or clip, in place of the default; refuses another length that is given.

    A length that equals the default cannot be told from it.
    """
    tokens = math.prod(shape)
    if tokens < 8:
        raise ConfigError(f"data.shape={shape}: needs at least 8 tokens")
    if given not in (tokens, TrainConfig.seq_len):
        raise ConfigError(
            f"train.seq_len={given}: data.shape={shape} gives {tokens} tokens; leave train.seq_len "
            "out"
        )
    return tokens


@dataclass
class EvalConfig:
    """How a trained run is measured."""

    #: test lengths in tokens; null = 1/2, 1, 2, 4, 8 and 16 times the training length
    lengths: list[int] | None = None
    #: pictures and clips instead: test extents such as 24x24 or 8x16x16; null = the data's own
    shapes: list[str] | None = None
    #: the first n documents of the targets file; null = all
    docs: int | None = None
    #: blocks of scored tokens in each document; null = 4 (pictures, clips: 16), or as
    #: many as the targets hold
    blocks: int | None = None
    protocol: str = "same_targets"
    #: `sliding` has this window alone, in tokens; null = one for each test length
    window: int | None = None
    #: `sliding`: tokens that a window goes on by; null = half the window
    stride: int | None = None
    #: `repeat`: how far back the earlier copies lie, in tokens; null = at the start of the window
    distances: list[int] | None = None
    #: folder of a run of the same model, data and number of tokens, trained at 4 L or so: what its
    #: loss has below the crop is what there is to gain (column `headroom`)
    long: str | None = _aside(None)
    #: draws that a row averages where positions are drawn at random in the test too
    draws: int = 5
    #: choose among the option sets of each rescaling by the loss on validation documents at each
    #: test length: rows of track `val_tuned` beside the others
    tune: bool = False
    #: a row that would need more is refused; GiB; null = 80 % of what is free
    memory_limit: float | None = _aside(None)
    #: windows are batched up to this many tokens
    batch_tokens: int = _aside(4096)
    device: str = _aside("auto")
    threads: int | None = _aside(None)

    def __post_init__(self) -> None:
        one_of("eval.protocol", self.protocol, PROTOCOLS)
        positive(
            {
                "eval.docs": self.docs,
                "eval.blocks": self.blocks,
                "eval.stride": self.stride,
                "eval.draws": self.draws,
                "eval.batch_tokens": self.batch_tokens,
                "eval.threads": self.threads,
            }
        )
        if self.memory_limit is not None and not self.memory_limit > 0:
            raise ConfigError(f"eval.memory_limit={self.memory_limit}: must be above 0 (GiB)")
        positive({"eval.window": self.window}, least=64)
        self.distances = _sizes("eval.distances", self.distances)
        self.lengths = _sizes("eval.lengths", self.lengths)


def _sizes(option: str, given: list[int] | None) -> list[int] | None:
    """Sizes in tokens, in ascending order."""
    if given == []:
        raise ConfigError(f"{option}=[]: give at least one")
    for size in given or []:
        positive({option: size})
    return sorted(set(given)) if given else None


@dataclass
class DataPlace:
    """Where a run's own text lies now."""

    #: for runs of data=text whose text was moved; its content must be the same
    path: str | None = _aside(None)


@dataclass
class SweepConfig:
    """One rescaling and one protocol of `posbench eval-lengths`."""

    rescale: Any = dataclasses.MISSING
    eval: EvalConfig = field(default_factory=EvalConfig)
    data: DataPlace = field(default_factory=DataPlace)
    runs_root: str = _aside("runs")
    #: evaluate the runs of this name
    name: str | None = _aside(None)


@dataclass(frozen=True)
class Geometry:
    """What a positional scheme may know about the model around it."""

    d_model: int
    n_heads: int
    n_layers: int
    train_length: int
    #: positions that training may draw are below it; 0 = train_length
    span: int = 0
    #: extent of a training example along each axis; () = text, (train_length,)
    train_shape: tuple[int, ...] = ()
    #: axes along which tests may be longer than training; () = all
    growing: tuple[bool, ...] = ()

    @property
    def positions(self) -> int:
        return self.span or self.train_length

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of a training example along each of its axes."""
        return self.train_shape or (self.train_length,)

    @property
    def grows(self) -> tuple[bool, ...]:
        """Whether tests may be longer than training, for each axis."""
        return self.growing or (True,) * len(self.shape)


def geometry(config: RunConfig, span: int = 0) -> Geometry:
    """The geometry that a run's settings describe; `span` as its sampler gives it.

    A fine-tuning has that of the run it goes on from, since its weights go by that.
    """
    m, largest = config.model, getattr(config.data, "largest", config.shape)
    growing = tuple(T > L for L, T in zip(config.shape, largest, strict=True))
    growing = growing if len(growing) > 1 else ()
    length, shape = config.first_length, config.shape
    if config.base:
        span, shape = config.base.span, shape if len(shape) > 1 else (length,)
    return Geometry(m.d_model, m.n_heads, m.n_layers, length, span, shape, growing)


def check_name(option: str, value: str) -> None:
    """A folder name: letters, digits, dots, dashes and underscores."""
    if not value or value.startswith(".") or not all(c.isalnum() or c in "._-" for c in value):
        raise ConfigError(f"{option}={value}: use letters, digits, '.', '-' and '_' only")


def changed(config: Any) -> dict[str, Any]:
    """The fields that matter to a result and are not at their default; a `name` always stays."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        if not f.metadata.get("identity", True):
            continue
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            inner = changed(value)
            if inner:
                found[f.name] = inner
        elif f.name == "name" or value != default_of(f):
            whole = isinstance(value, float) and value.is_integer()
            found[f.name] = int(value) if whole else value  # 8 and 8.0 are one setting
    return found


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names; a part's name under the part's."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix.rstrip(".") if key == "name" and prefix else prefix + key] = value
    return found


def differing(settings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each of some flat settings what is not the same in all of them."""
    keys = sorted({key for one in settings for key in one})
    vary = [key for key in keys if len({str(one.get(key)) for one in settings}) > 1]
    return [{key: one[key] for key in vary if key in one} for one in settings]


def in_words(settings: dict[str, Any]) -> str:
    """Flat settings as a user writes them: `model.qk_norm=true train.lr=0.01`."""
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in settings.items()}
    return " ".join(f"{key}={text}" for key, text in texts.items())


def default_of(f: "dataclasses.Field[Any]") -> Any:
    """Default value of a field, or MISSING."""
    if f.default_factory is not dataclasses.MISSING:
        return f.default_factory()
    return f.default


def digest(value: Any, length: int = 8) -> str:
    """First hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def run_id(config: RunConfig, content_sha256: str, plugins: Sequence[Any] = ()) -> str:
    """Folder name of a run: a function of what decides its result, and of nothing else.

    `plugins` are the facts of the plug-in files that it uses.
    """
    identity = {"schema": SCHEMA, "data_sha256": content_sha256, **changed(config)}
    if plugins:
        identity["plugins"] = list(plugins)
    return f"{config.preset}-L{config.train.seq_len}-s{config.seed}-{digest(identity)}"
