"""A small decoder-only transformer with a positional scheme.

One file: layers, model, how it is built and its initial values are read together.

What is unusual about it:

- The initial value of a tensor is a function of (seed, its name): parameters of a positional scheme
  shift nothing else, and every scheme starts from the same weights.
- The token embedding is multiplied by sqrt(D), so that the token stream has unit rms at the start,
  whatever the width; absolute encodings are added to that.
- Only the positions that are asked for pass through the output layer.
- The positional scheme is an argument of `forward`, so one trained model is measured under many.

Shapes: B batch, T time, D width, H heads, K head width, V vocabulary, S scored positions, A axes.
"""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posbench import grid, registry
from posbench.encodings.base import Context, PositionalEncoding, Tied, made
from posbench.errors import ConfigError, RunError
from posbench.flops import mlp_width
from posbench.grid import Shape
from posbench.linear import Linear
from posbench.positions.base import PositionSampler
from posbench.rescale.base import Rescale
from posbench.seeds import seeded
from posbench.settings import ModelConfig, RunConfig, geometry


def norm(config: ModelConfig, width: int) -> nn.Module:
    """RMSNorm (llama) or LayerNorm (gpt2)."""
    return nn.LayerNorm(width) if config.style == "gpt2" else nn.RMSNorm(width, eps=1e-6)


class SwiGLU(nn.Module):
    """down( silu(gate x) * up x ), no biases."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate_proj = Linear(width, hidden, bias=False)
        self.up_proj = Linear(width, hidden, bias=False)
        self.down_proj = Linear(hidden, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
        return out


class GeluMlp(nn.Module):
    """down( gelu(up x) ) with biases."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up_proj = Linear(width, hidden)
        self.down_proj = Linear(hidden, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.gelu(self.up_proj(x_BTD), approximate="tanh"))
        return out


class Attention(nn.Module):
    """Multi-head causal self-attention; everything positional is the encoding's."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, self.heads = config.d_model, config.n_heads
        biased = config.style == "gpt2"
        qkv_bias = biased if config.qkv_bias is None else config.qkv_bias
        self.q_proj = Linear(width, width, bias=qkv_bias)
        self.k_proj = Linear(width, width, bias=qkv_bias)
        self.v_proj = Linear(width, width, bias=qkv_bias)
        self.o_proj = Linear(width, width, bias=biased)
        per_head = width // config.n_heads
        self.q_norm = nn.RMSNorm(per_head, eps=1e-6) if config.qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(per_head, eps=1e-6) if config.qk_norm else nn.Identity()

    def forward(
        self,
        x_BTD: Tensor,
        pos_BTA: Tensor,
        posenc: PositionalEncoding,
        ctx: Context,
        last: int | None = None,
    ) -> Tensor:
        """Output of the `last` positions (all if None), each seeing all before it."""

        def split(y_BTD: Tensor) -> Tensor:
            return y_BTD.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        with torch.autocast(x_BTD.device.type, enabled=False):
            ctx.prepared = posenc.prepare(x_BTD, pos_BTA, ctx)
        asking_BTD, q_pos = x_BTD, pos_BTA
        if last is not None:
            asking_BTD, q_pos = x_BTD[:, -last:], pos_BTA[:, -last:]
        q = self.q_norm(split(self.q_proj(asking_BTD)))
        k = self.k_norm(split(self.k_proj(x_BTD)))
        v = split(self.v_proj(x_BTD))
        # tables and scores keep their own types: what is cast is q, k and v
        with torch.autocast(x_BTD.device.type, enabled=False):
            y = posenc.attend(q, k, v, q_pos, pos_BTA, ctx)
        out: Tensor = self.o_proj(y.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to the stream."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attention_norm = norm(config, config.d_model)
        self.attention = Attention(config)
        self.mlp_norm = norm(config, config.d_model)
        mlp = GeluMlp if config.style == "gpt2" else SwiGLU
        self.mlp = mlp(config.d_model, mlp_width(config))

    def forward(
        self,
        x_BTD: Tensor,
        pos_BTA: Tensor,
        posenc: PositionalEncoding,
        ctx: Context,
        last: int | None = None,
    ) -> Tensor:
        """Stream of the `last` positions (all if None)."""
        change = self.attention(self.attention_norm(x_BTD), pos_BTA, posenc, ctx, last)
        x_BTD = change + (x_BTD if last is None else x_BTD[:, -last:])
        out: Tensor = x_BTD + self.mlp(self.mlp_norm(x_BTD))
        return out


class Decoder(nn.Module):
    """Token embedding, blocks, final norm, output embedding (tied by default)."""

    def __init__(
        self,
        config: ModelConfig,
        vocab_size: int,
        posenc: PositionalEncoding,
        sampler: PositionSampler,
    ):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.d_model)
        scale = config.embed_scale
        self.embed_scale = math.sqrt(config.d_model) if scale is None else scale
        self.posenc = posenc
        self.sampler = sampler
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.final_norm = norm(config, config.d_model)
        self.head = Linear(config.d_model, vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight

    def positions(self, shape: Shape, draw: int = 0) -> Tensor:
        """Test positions [1, T, A] of a text (T,), picture or clip, in raster order."""
        if self.posenc.on_a_grid:
            return grid.coordinates(shape)
        return self.sampler.testing(grid.count(shape), draw)

    def has_positions(self, shape: Shape, posenc: PositionalEncoding | None = None) -> bool:
        """Whether sampler and encoding (None: the trained one) are defined for such an input."""
        posenc = self.posenc if posenc is None else posenc
        if posenc.on_a_grid:
            return posenc.defined_for(shape)
        length, most = grid.count(shape), self.sampler.max_length
        drawn = most is None or length <= most
        return drawn and posenc.defined_for((self.sampler.span(length),))

    def training_positions(self, batch: int, shape: Shape, seed: int, step: int) -> Tensor:
        """Positions [batch or 1, T, A] of a training step: a function of (seed, step)."""
        if self.posenc.on_a_grid:
            return grid.coordinates(shape)
        return self.sampler.training(batch, grid.count(shape), seed, step)

    def tokens(self, tokens_BT: Tensor) -> Tensor:
        """Token stream [B, T, D] before any position is added; unit rms at the start."""
        out: Tensor = self.embedding(tokens_BT) * self.embed_scale
        return out

    def hidden(
        self,
        tokens_BT: Tensor,
        posenc: PositionalEncoding | None = None,
        pos_BTA: Tensor | None = None,
        scored_S: Tensor | None = None,
    ) -> Tensor:
        """Stream [B, S, D] after the last block at the input positions `scored_S` (None: all).

        `posenc` replaces the trained encoding, for a rescaling; `pos_BTA` gives the positions
        (None: those of the test). Scored positions ascend; where they are the last ones, the last
        block computes nothing else.
        """
        posenc = self.posenc if posenc is None else posenc
        length = tokens_BT.shape[1]
        if pos_BTA is None:
            if posenc.on_a_grid:
                raise ValueError("coordinates cannot be told from a length: give the positions")
            pos_BTA = self.positions((length,))
        pos_BTA = pos_BTA.to(tokens_BT.device)
        ctx = Context(self.sampler.consecutive and pos_BTA.shape[-1] == 1)
        x_BTD = posenc.embed(self.tokens(tokens_BT), pos_BTA)
        last = None
        if scored_S is not None and scored_S.tolist() == list(range(length))[-len(scored_S) :]:
            last = len(scored_S)
        for layer, block in enumerate(self.blocks):
            final = layer == len(self.blocks) - 1
            own, index = posenc.for_layer(layer)
            window = self.config.window[layer] if self.config.window else None
            x_BTD = block(x_BTD, pos_BTA, own, ctx.at(index, window), last if final else None)
        return x_BTD if last is not None or scored_S is None else x_BTD[:, scored_S]

    def logits(self, x_BSD: Tensor) -> Tensor:
        """Logits [B, S, V] of the positions that are handed over."""
        out: Tensor = self.head(self.final_norm(x_BSD))
        return out

    def forward(self, tokens_BT: Tensor, pos_BTA: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] at every position."""
        return self.logits(self.hidden(tokens_BT, pos_BTA=pos_BTA))


def build(config: RunConfig, vocab_size: int) -> Decoder:
    """The model that a run's settings describe, initialised from its seed."""
    model = Decoder(config.model, vocab_size, build_posenc(config), build_sampler(config))
    initialise(model, config.seed)
    return model


def build_posenc(config: RunConfig) -> PositionalEncoding:
    """The run's positional scheme; ConfigError where it does not fit the model."""
    sampler = build_sampler(config)
    cls = registry.get("posenc", config.posenc.name)
    around = geometry(config, sampler.trained)
    axes, encoding = len(around.shape), made(cls, config.posenc, around)
    if axes not in encoding.axes and 1 not in encoding.axes:
        raise ConfigError(
            f"posenc={encoding.name} needs positions of {' or '.join(map(str, encoding.axes))} "
            f"axes; data={config.data.name} has {axes}"
        )
    if encoding.on_a_grid and not sampler.consecutive:
        raise ConfigError(
            f"positions={sampler.name} draws positions of one axis; use positions=standard with "
            f"posenc={encoding.name} on data={config.data.name}"
        )
    needed = sampler.span(config.train.seq_len)
    known = encoding.on_a_grid or encoding.defined_for((needed,))
    if config.base is None and not known:  # posbench.finetune has its own words
        raise ConfigError(
            f"positions={sampler.name}: a test of train.seq_len={config.train.seq_len} tokens "
            f"reaches position {needed - 1}, and training gives posenc={encoding.label} "
            f"{sampler.trained} positions from 0 on; begin the test sooner (positions.test_offset)"
        )
    if config.rescale is None:
        return encoding
    rule: Rescale = registry.get("rescale", config.rescale.name)(config.rescale)
    return rule.trained_into(encoding, config.first_length, sampler.target)


def tied(config: RunConfig) -> list[Tied]:
    """Hyper-parameters of the run's scheme and sampler that follow the training length."""
    return [*build_posenc(config).tied(), *build_sampler(config).tied()]


def build_sampler(config: RunConfig) -> PositionSampler:
    """The run's position sampler."""
    sampler: PositionSampler = registry.get("positions", config.positions.name)(
        config.positions, config.train.seq_len
    )
    return sampler


@torch.no_grad()
def initialise(model: Decoder, seed: int) -> None:
    """Set every parameter as a function of (seed, name).

    | parameter                              | initial value                                |
    |----------------------------------------|----------------------------------------------|
    | norm weights                           | 1                                            |
    | biases                                 | 0                                            |
    | token embedding, output embedding      | N(0, 1/D); times sqrt(D) the stream has rms 1|
    | q, k, v, gate, up projections          | N(0, 1/fan_in)                               |
    | q projection under a scheme that asks  | the same times `query_init_scale`            |
    | o and down projections                 | N(0, 1/fan_in) / sqrt(2 n_layers)            |
    | the scheme's own                       | its `init_parameter`                         |
    """
    residual = (2 * model.config.n_layers) ** -0.5
    for name, p in model.named_parameters():
        generator = seeded(seed, name)
        if name.startswith("posenc."):
            model.posenc.init_parameter(name.removeprefix("posenc."), p, generator)
        elif p.ndim == 1:
            p.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            p.normal_(std=p.shape[1] ** -0.5, generator=generator)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.mul_(residual)
            elif name.endswith("q_proj.weight"):
                p.mul_(model.posenc.for_layer(int(name.split(".")[1]))[0].query_init_scale)


def load_weights(model: Decoder, path: Path) -> None:
    """Fill a model from a safetensors file; RunError if it is damaged or does not fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    try:
        load_model(model, str(path))
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{path}: damaged checkpoint ({reason})") from None


def checked(config: RunConfig, weights: Path, vocab_size: int) -> PositionalEncoding:
    """The encoding of a stored run; RunError where settings and weights do not make a model."""
    try:
        model = build(config, vocab_size)
    except ConfigError as error:
        raise RunError(f"{weights.parent.parent}: {error}") from None
    load_weights(model, weights)
    return model.posenc
