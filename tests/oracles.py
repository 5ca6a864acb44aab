"""What the tests share: builders, golden numbers, and formulas written out slowly.

The slow forms use no code of the package beyond the values of parameters.
"""

import cmath
import dataclasses
import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posbench import model as models
from posbench import registry
from posbench.encodings.base import PositionalEncoding
from posbench.model import Decoder
from posbench.rescale.base import Rescale
from posbench.settings import Geometry, ModelConfig, OptimizerConfig, RunConfig, TrainConfig

# the tensors are tiny: threads that wait for each other cost more than they bring
torch.set_num_threads(1)

#: the schemes of texts, and those of pictures and clips alone
SCHEMES = tuple(n for n in registry.names("posenc") if 1 in registry.get("posenc", n).axes)
ON_GRIDS = tuple(n for n in registry.names("posenc") if n not in SCHEMES)
#: those with an independent form here
SURVEY = ("none", "sinusoidal", "learned", "t5", "alibi", "rope")

#: every registered rescaling, and options that change the formula: id -> (name, options)
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in registry.names("rescale")},
    "dynamic_ntk-alpha2": ("dynamic_ntk", {"alpha": 2.0}),
    "dynamic_ntk-incremental": ("dynamic_ntk", {"mode": "incremental"}),
    "yarn-exact": ("yarn", {"truncate": False}),
    "yarn-auto": ("yarn", {"factor": "auto"}),
    "yarn-attention": ("yarn", {"attention_factor": 1.25}),
    "ntk_mixed-released": ("ntk_mixed", {"b": 0.75}),
    "longrope": ("longrope", {"long_factor": [2.0]}),
    "leaky_rerope-k4": ("leaky_rerope", {"window": 4, "k": 4}),
    "self_extend-group2": ("self_extend", {"window": 4, "group": 2}),
    "window-sinks": ("window", {"sinks": 2}),
    "stack-incremental": (
        "stack",
        {
            "parts": ["dynamic_ntk", "rerope", "logn"],
            "options": {"dynamic_ntk": {"mode": "incremental"}},
        },
    ),
}
STATIC = tuple(id for id in RULES if "incremental" not in id)


def golden(name: str) -> dict[str, Any]:
    """Numbers of tests/golden/<name>.json."""
    path = Path(__file__).parent / "golden" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def shape(d_model: int = 32, n_heads: int = 4, train_length: int = 40) -> Geometry:
    return Geometry(d_model, n_heads, 2, train_length)


def scheme(name: str, geometry: Geometry | None = None, **options: Any) -> PositionalEncoding:
    """An encoding with its parameters initialised."""
    cls = registry.get("posenc", name)
    encoding = cls(cls.Config(**options), geometry or shape())
    with torch.no_grad():
        for key, parameter in encoding.named_parameters():
            encoding.init_parameter(key, parameter, models.seeded(0, key))
    return encoding


def rule(name: str, **options: Any) -> Rescale:
    """A rescaling; factor 4 unless given, where it takes one."""
    cls = registry.get("rescale", name)
    if any(f.name == "factor" for f in dataclasses.fields(cls.Config)):
        options = {"factor": 4.0, **options}
    return cls(cls.Config(**options))


def rope(dim: int, length: int, base: float = 10000.0) -> PositionalEncoding:
    """RoPE with heads of a size, trained at a length."""
    return scheme("rope", Geometry(dim, 1, 1, length), base=base)


def run_config(
    posenc: str = "none",
    seed: int = 0,
    train_length: int = 40,
    optimizer: OptimizerConfig | None = None,
    options: dict[str, Any] | None = None,
    **model: Any,
) -> RunConfig:
    """Settings of a run without data; the model is tiny and 2 layers deep unless given."""
    return RunConfig(
        posenc=registry.get("posenc", posenc).Config(**(options or {})),
        positions=registry.get("positions", "standard").Config(),
        data=None,
        model=ModelConfig(**{"d_model": 32, "n_layers": 2, "n_heads": 4, **model}),
        train=TrainConfig(seq_len=train_length),
        optimizer=optimizer or OptimizerConfig(),
        seed=seed,
    )


def tiny_model(posenc: str = "none", vocab: int = 61, **settings: Any) -> Decoder:
    return models.build(run_config(posenc, **settings), vocab)


def tokens(length: int, batch: int = 2, vocab: int = 61, seed: int = 0) -> Tensor:
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def normal(*size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def positions(length: int, start: int = 0) -> Tensor:
    """[1, length, 1], consecutive."""
    return torch.arange(start, start + length)[None, :, None]


def theta(dim: int, base: float = 10000.0) -> list[float]:
    """Frequencies of RoPE."""
    return [base ** (-2.0 * p / dim) for p in range(dim // 2)]


def turned(x: Tensor, pos: Tensor, frequencies: list[float]) -> Tensor:
    """x [B, H, T, d] with pairs (p, p + d/2) turned as complex numbers by pos [B or 1, T, 1]."""
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half].double(), x[..., half:].double())
    turn = [[[cmath.exp(1j * int(m) * f) for f in frequencies] for m in row] for row in pos[..., 0]]
    z = z * torch.tensor(turn, dtype=torch.complex128)[:, None]
    return torch.cat((z.real, z.imag), -1)


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8h/c), h = 1..c, c the largest power of two <= heads; then 2^(-4h/c), h = 1, 3, 5 ..."""
    c = 2 ** int(math.log2(heads))
    return [2 ** (-8 * h / c) for h in range(1, c + 1)] + [
        2 ** (-4 * h / c) for h in range(1, 2 * (heads - c), 2)
    ]


@functools.cache
def t5_bucket(n: int, buckets: int, max_distance: int) -> int:
    """Bucket of a distance in whole numbers: n/e >= (M/e)^(k/(b-e)) without a logarithm."""
    e = buckets // 2
    if n < e:
        return max(n, 0)
    k = 0
    while e + k + 1 < buckets and (
        n ** (buckets - e) * e ** (k + 1) >= max_distance ** (k + 1) * e ** (buckets - e)
    ):
        k += 1
    return e + k


def bias_of(encoding: PositionalEncoding) -> Callable[[int, int], Any]:
    """Bias of (head, distance) of ALiBi or T5, independent of the package; else 0."""
    if encoding.name == "alibi":
        slopes = alibi_slopes(encoding.geometry.n_heads)
        return lambda h, d: -slopes[h] * max(d, 0)
    if encoding.name == "t5":
        b, m = encoding.config.buckets, encoding.max_distance
        return lambda h, d: encoding.bias[t5_bucket(max(d, 0), b, m), h]
    return lambda h, d: 0.0


def slow_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Callable[[int, int], Any] = lambda h, d: 0.0,
    scale: float | list[float] = 1.0,
    q_pos: Tensor | None = None,
    k_pos: Tensor | None = None,
) -> Tensor:
    """Causal attention one query at a time; the queries are the last ones of the sequence."""
    batch, heads, rows, width = q.shape
    keys = k.shape[2]
    k_pos = positions(keys) if k_pos is None else k_pos
    q_pos = k_pos[:, keys - rows :] if q_pos is None else q_pos
    out = []
    for b in range(batch):
        q_at, k_at = (p[min(b, p.shape[0] - 1), :, 0].tolist() for p in (q_pos, k_pos))
        for h in range(heads):
            for r in range(rows):
                seen = keys - rows + r + 1
                factor = scale[r] if isinstance(scale, list) else scale
                added = [bias(h, q_at[r] - k_at[j]) for j in range(seen)]
                added = [
                    x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64)
                    for x in added
                ]
                scores = k[b, h, :seen] @ q[b, h, r] / math.sqrt(width) * factor
                scores = scores + torch.stack(added).to(q.dtype)
                weights = (scores - scores.max().detach()).exp()
                out.append(weights @ v[b, h, :seen] / weights.sum())
    return torch.stack(out).reshape(batch, heads, rows, v.shape[3])


def relative_error(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max() / b.double().abs().max())
