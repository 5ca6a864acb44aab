"""T5's bucketed relative bias."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posbench.encodings.base import Context, PositionalEncoding, Tied
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.settings import Geometry


def bucket(distance: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Bucket of a causal distance (query minus key): exact below buckets/2, then logarithmic.

    n < e: n; else min(buckets - 1, e + floor(ln(n/e) / ln(max_distance/e) * (buckets - e))) with
    e = buckets // 2. Keys after the query (negative distance) fall in bucket 0.
    """
    exact = buckets // 2
    n = distance.clamp(min=0)
    ratio = (n.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    far = exact + (ratio * (buckets - exact)).long()
    return torch.where(n < exact, n, far.clamp(max=buckets - 1))


def furthest(option: int | str, auto: int) -> int:
    """The option max_distance, or what `auto` stands for; ConfigError for other words."""
    given = auto if option == "auto" else option
    if not isinstance(given, int):
        raise ConfigError(f"posenc.max_distance={given}: a whole number or auto")
    return given


@register
class T5Bias(PositionalEncoding):
    """A learned number per head and distance bucket, added to the scores (Raffel et al. 2020).

    bias[h, i, j] = E[bucket(i - j), h], one table shared by all layers. arXiv:1910.10683
    section 2.1. T5 itself leaves out 1/sqrt(K); posbench keeps it, so that every scheme starts
    from the same scores; `unscaled=true` gives T5's logits and query initialisation. `shared=false`
    gives every layer a table of its own.
    """

    family = "relative bias"
    paper = "arXiv:1910.10683"
    learnable = True

    @dataclass
    class Config:
        buckets: int = 32
        #: distance at which the last bucket begins to saturate; auto = half the training length
        max_distance: int | str = "auto"
        unscaled: bool = False
        #: one table for all layers
        shared: bool = True

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        auto = config.max_distance == "auto"
        self.max_distance = furthest(config.max_distance, geometry.train_length // 2)
        if config.buckets < 2:
            raise ConfigError(f"posenc.buckets={config.buckets}: must be at least 2")
        if self.max_distance <= config.buckets // 2:
            raise ConfigError(
                f"posenc.max_distance={self.max_distance}: must be above posenc.buckets / 2 = "
                f"{config.buckets // 2}" + (" (auto = train.seq_len / 2)" if auto else "")
            )
        self.per_layer, self.needs_train_length = not config.shared, auto
        size = config.buckets, geometry.n_heads
        tables = size if config.shared else (geometry.n_layers, *size)
        self.bias = nn.Parameter(torch.empty(tables))

    def tied(self) -> list[Tied]:
        return [Tied("posenc.max_distance", "128", str(self.max_distance))]

    @property
    def query_init_scale(self) -> float:
        return self.geometry.head_dim**-0.5 if self.config.unscaled else 1.0

    def init_parameter(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        parameter.normal_(std=self.geometry.d_model**-0.5, generator=generator)

    def distance_bias(self, distance_N: Tensor, ctx: Context) -> Tensor:
        table = self.bias[ctx.layer] if self.per_layer else self.bias
        return table[bucket(distance_N, self.config.buckets, self.max_distance)].T

    def own_tables(self, distances: Tensor) -> dict[str, Any]:
        found = bucket(distances, self.config.buckets, self.max_distance)
        return {"buckets": found.tolist()}

    def logit_scale(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> float | None:
        return self.geometry.head_dim**0.5 if self.config.unscaled else None
