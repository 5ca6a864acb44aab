"""Checks of rescalings: tables at scale 1 and at both ends of the ladder, and at every length."""

import math
from typing import Any

import torch
from torch import Tensor

from posbench.checks.base import TINY, Measured, at_most, check, faults
from posbench.checks.inputs import difference, tokens
from posbench.checks.small import HEAD
from posbench.checks.subjects import Rule
from posbench.encodings.base import PositionalEncoding
from posbench.errors import UnsupportedRescale
from posbench.rescale.base import Ladder, Rescale, TurnsConfig

#: (rotary size, training length, base): short and long ladders, more and fewer turns within L
LADDERS = ((HEAD, 16, 10000.0), (8, 2048, 10000.0), (64, 128, 72.0), (128, 8192, 500000.0))
SCALES = (1.5, 4.0, 64.0)
#: rounding of a ratio of frequencies
ROUNDING = 1e-12


def ladder(dim: int, length: int, base: float) -> Ladder:
    """A trained ladder theta_p = base^(-2p/d)."""
    exponent = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    return Ladder(base**-exponent, base, dim, length)


def ratios(rule: Rescale, one: Ladder, scale: float) -> Tensor:
    """New frequencies as shares of the trained ones."""
    return rule.frequencies(one, scale) / one.inv_freq


@check("rescale", when=lambda s: s.scales)
def scale_1(subject: Rule) -> Measured:
    """Scale 1 is the trained table, exactly"""
    worst = 0.0
    for dim, length, base in LADDERS:
        rule, one = subject.make(dim), ladder(dim, length, base)
        worst = max(worst, difference(rule.frequencies(one, 1.0), one.inv_freq))
        worst = max(worst, abs(rule.logit_multiplier(1.0) - 1))
    return at_most(worst, 0)


@check("rescale", when=lambda s: s.scales)
def up_to_l(subject: Rule) -> Measured:
    """Factor auto: no change up to length L"""
    options: dict[str, Any] = {"factor": "auto"} if subject.takes("factor") else {}
    model, worst = subject.model(), 0.0
    for length in (3, subject.length // 2, subject.length):
        rule, ids = subject.make(**options), tokens(length)
        encoding = rule.applied(model.posenc, subject.length, length)
        plain = subject.hidden(model, ids, encoding=model.posenc)
        worst = max(worst, difference(subject.hidden(model, ids, encoding=encoding), plain))
    return at_most(worst, 0)


@check("rescale", when=lambda s: s.scales)
def bounds(subject: Rule) -> Measured:
    """Frequencies stay within 1/s and 1 of old"""
    worst = 0.0
    for dim, length, base in LADDERS:
        for scale in SCALES:
            found = ratios(subject.make(dim), ladder(dim, length, base), scale)
            worst = max(worst, float(found.max()) - 1, 1 / scale - float(found.min()))
    return at_most(worst, ROUNDING)


@check("rescale", when=lambda s: s.scales)
def ramp(subject: Rule) -> Measured:
    """The slower a pair, the more it is slowed"""
    worst, note = 0.0, ""
    for dim, length, base in LADDERS:
        for scale in SCALES:
            rise = float(ratios(subject.make(dim), ladder(dim, length, base), scale).diff().max())
            if rise > worst:
                worst, note = rise, f"at d = {dim}, L = {length}, base {base:g}, s = {scale:g}"
    return at_most(worst, ROUNDING, note if worst > ROUNDING else "")


@check("rescale", when=lambda s: s.scales and issubclass(s.cls.Config, TurnsConfig))
def ends(subject: Rule) -> Measured:
    """Fast pairs are kept, slow ones over s"""
    worst = 0.0
    for dim, length, base in LADDERS:
        rule, one = subject.make(dim), ladder(dim, length, base)
        alpha, beta = rule.config.cut_offs(length)
        turns = [length * base ** (-2 * p / dim) / (2 * math.pi) for p in range(dim // 2)]
        for scale in SCALES:
            for own, ratio in zip(turns, ratios(rule, one, scale).tolist(), strict=True):
                if own > beta:
                    worst = max(worst, abs(ratio - 1))
                elif own < alpha:
                    worst = max(worst, abs(ratio * scale - 1))
    return at_most(worst, 1e-9)


@check("rescale")
def sane(subject: Rule) -> Measured:
    """Tables are finite at any length"""
    found = []
    for times in (0.25, 1, 1.1, 3, 64, 1000):
        model = subject.model()
        length = max(1, int(times * subject.length))
        try:
            encoding = subject.make().applied(model.posenc, subject.length, length)
        except UnsupportedRescale:
            continue
        for own in [m for m in encoding.modules() if isinstance(m, PositionalEncoding)]:
            table = own.own_tables(torch.arange(2))
            theta = torch.tensor(table.get("inv_freq", [0.0]))
            if not (theta.isfinite().all() and (theta >= 0).all()):
                found.append(f"frequencies at {length} tokens")
            size = table.get("rotation_scale", 1.0)
            if not 0 < size < math.inf:
                found.append(f"factor {size} on cos and sin at {length} tokens")
    return faults(found)


@check("rescale", when=lambda s: s.takes("factor"))
def factor(subject: Rule) -> Measured:
    """A factor acts at all lengths; is >= 1"""
    model, ids = subject.model(), tokens(24)
    rule, found = subject.make(factor=4.0), []
    both = [rule.applied(model.posenc, subject.length, n) for n in (25, 60)]
    change = difference(*(subject.hidden(model, ids, encoding=e) for e in both))
    for wrong in (0.5, -1.0, math.nan, "big"):
        try:
            subject.make(factor=wrong)
        except ValueError:
            continue
        except Exception as error:
            if "factor" in str(error):
                continue
        found.append(f"takes factor={wrong}")
    return faults(found) if found else at_most(change, TINY)


@check("rescale")
def reused(subject: Rule) -> Measured:
    """One rule serves any order of lengths"""
    model, ids = subject.model(), tokens(subject.test_length)
    rule = subject.make()
    first = subject.hidden(model, ids, encoding=rule.applied(model.posenc, subject.length, 48))
    rule.applied(model.posenc, subject.length, 60)
    rule.applied(model.posenc, subject.length, 5)
    again = subject.hidden(model, ids, encoding=rule.applied(model.posenc, subject.length, 48))
    return at_most(difference(first, again), 0)
