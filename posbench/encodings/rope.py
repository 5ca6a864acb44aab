"""Rotary position embedding."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posbench.encodings.base import Context, PositionalEncoding, Tied, wide
from posbench.errors import ConfigError
from posbench.registry import register
from posbench.rescale.base import Ladder, Rescale
from posbench.settings import Geometry

#: Llama-2: training length and base, the model that `base=matched` takes its geometry from
LLAMA2 = (4096, 10000.0)


def matched_base(train_length: int) -> float:
    """Base at which the share of pairs that turn once within L is Llama-2's (about 70 %)."""
    length, base = LLAMA2
    turns, reference = train_length / (2 * math.pi), length / (2 * math.pi)
    return float(math.floor(base ** (math.log(turns) / math.log(reference))))


def powers(base: float, dim: int) -> Tensor:
    """Frequencies base^(-2p/dim), p = 0 .. dim/2 - 1, float64."""
    return base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def rotate_half_split(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (p, p + r/2) of the last axis by angles whose cos and sin are [..., r/2].

    Channels from r on stay as they are. Computed in the tables' type, cast back once.
    """
    half = cos.shape[-1]
    a, b, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1).to(x.dtype)


@register
class Rope(PositionalEncoding):
    """Queries and keys are rotated by their position (Su et al. 2021).

    Pair p turns by +m * theta_p at position m, theta_p = base^(-2p/d), d the head size, half-split
    pairs (p, p + d/2) as in GPT-NeoX and Llama on transformers. arXiv:2104.09864 section 3.
    Angles are computed in float64 and cast once.
    """

    family = "rotary"
    paper = "arXiv:2104.09864"

    @dataclass
    class Config:
        #: a number, or `matched`: Llama-2's share of pairs that turn once within L
        base: int | float | str = 10000.0

    def __init__(self, config: Config, geometry: Geometry):
        super().__init__(config, geometry)
        if geometry.head_dim % 2:
            raise ConfigError(
                f"model.d_model={geometry.d_model} / model.n_heads={geometry.n_heads} gives heads "
                f"of {geometry.head_dim}: posenc={self.name} needs an even head size"
            )
        if isinstance(config.base, str) and config.base != "matched":
            raise ConfigError(f"posenc.base={config.base}: a number above 1, or matched")
        length = geometry.train_length
        self.base = matched_base(length) if isinstance(config.base, str) else float(config.base)
        if not 1 < self.base < math.inf:
            raise ConfigError(
                f"posenc.base={config.base}: must be above 1"
                + (f", and is {self.base:g} at train.seq_len={length}" if length < 16 else "")
            )
        self.needs_train_length = config.base == "matched"
        #: [r/2] float64; a plain attribute, so that a cast of the module cannot round it
        self.inv_freq = self.ladder()
        #: factor on q . k, and what of it released code puts on cos and sin instead
        self.logit_multiplier, self.rotation_scale = 1.0, 1.0

    @property
    def partial(self) -> bool:
        """Whether some channels of a head carry no position."""
        return 2 * len(self.inv_freq) < self.geometry.head_dim

    def ladder(self) -> Tensor:
        """Frequencies [r/2] of the pairs among the first r channels; r = d unless overridden."""
        return powers(self.base, self.geometry.head_dim)

    def tied(self) -> list[Tied]:
        if self.config.base == "matched":
            return [Tied("posenc.base", "10000", f"{self.base:g}")]
        return []

    def angles(self, pos_BTA: Tensor) -> Tensor:
        """Angle [B or 1, T, r/2] of every pair, in float64 (float32 where a device has none)."""
        kind = wide(pos_BTA.device)
        return pos_BTA[..., 0].to(kind)[..., None] * self.inv_freq.to(pos_BTA.device, kind)

    def cos_sin(self, pos: Tensor, dtype: torch.dtype, ctx: Context) -> tuple[Tensor, Tensor]:
        """cos and sin [B or 1, 1, T, r/2], once per pass; never below float32."""
        dtype = torch.promote_types(dtype, torch.float32)
        size = self.rotation_scale if self.partial else 1.0

        def build() -> tuple[Tensor, Tensor, Any]:
            angle = self.angles(pos)[:, None]
            cos, sin = (size * angle.cos()).to(dtype), (size * angle.sin()).to(dtype)
            # kept with the tables, so that no other object can get these ids
            return cos, sin, (self, pos)

        cos, sin, _ = ctx.once(("rope", id(self), id(pos), dtype), build)
        return cos, sin

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, q_pos: Tensor, k_pos: Tensor, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        q = rotate_half_split(q_BHTK, *self.cos_sin(q_pos, q_BHTK.dtype, ctx))
        k = rotate_half_split(k_BHTK, *self.cos_sin(k_pos, k_BHTK.dtype, ctx))
        return q, k

    def own_tables(self, distances: Tensor) -> dict[str, Any]:
        return {"inv_freq": self.inv_freq.tolist(), "rotation_scale": self.rotation_scale}

    def logit_scale(self, q_pos: Tensor, k_pos: Tensor, ctx: Context) -> float | None:
        # a temperature is on the channels that turn alone, as in released code
        turned = self.rotation_scale**2 if self.partial else 1.0
        factor = self.logit_multiplier / turned
        return None if factor == 1.0 else factor

    def rescaled(self, rule: Rescale, train_length: int, test_length: int) -> PositionalEncoding:
        ladder = Ladder(self.inv_freq, self.base, 2 * len(self.inv_freq), train_length)
        scale = rule.scale(train_length, test_length)
        return self.retuned(rule.frequencies(ladder, scale), rule, scale)

    def retuned(self, inv_freq: Tensor, rule: Rescale, scale: float) -> PositionalEncoding:
        """A copy with other frequencies, and with a rule's temperature at a scale."""
        rotation_scale = self.rotation_scale * rule.rotation_scale(scale)
        return self.replace(
            inv_freq=inv_freq,
            logit_multiplier=self.logit_multiplier * rule.logit_multiplier(scale),
            rotation_scale=rotation_scale,
            norm_preserving=self.norm_preserving and not (self.partial and rotation_scale != 1.0),
        )
