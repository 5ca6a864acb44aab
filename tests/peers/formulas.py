"""The formulas of the papers and released codes, written out with `math` alone.

They use neither posbench nor a peer. Frequencies are lists over pairs, slowest last.
"""

import math
from collections.abc import Callable

from peers.compare import Inputs, Values, at_distances, at_position, named


def rope(head_dim: int, base: float = 10000.0) -> list[float]:
    """base^(-2p/d), arXiv:2104.09864 section 3.2."""
    return [math.exp(-2 * p / head_dim * math.log(base)) for p in range(head_dim // 2)]


def pi(head_dim: int, factor: float, base: float = 10000.0) -> list[float]:
    """Every frequency divided by s, arXiv:2306.15595."""
    return [f / factor for f in rope(head_dim, base)]


def ntk(head_dim: int, factor: float, base: float = 10000.0) -> list[float]:
    """The base times s^(d/(d-2)), arXiv:2309.00071 section 3.1."""
    return rope(head_dim, base * factor ** (head_dim / (head_dim - 2)))


def dynamic_ntk(
    head_dim: int, train_length: int, length: int, alpha: float = 1.0, base: float = 10000.0
) -> list[float]:
    """NTK with s = alpha T/L - (alpha - 1) past L; plain RoPE up to L."""
    scale = alpha * length / train_length - (alpha - 1) if length > train_length else 1.0
    return ntk(head_dim, scale, base)


def by_turns(
    head_dim: int, train_length: int, factor: float, low: float, high: float, base: float
) -> list[float]:
    """Llama 3: kept above `high` turns within L, divided by s below `low`, linear between."""
    out = []
    for f in rope(head_dim, base):
        turns = train_length * f / (2 * math.pi)
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        out.append(keep * f + (1 - keep) * f / factor)
    return out


def yarn(
    head_dim: int, train_length: int, factor: float, base: float = 10000.0, truncate: bool = True
) -> list[float]:
    """The released ramp: linear in the pair index between the pairs of 32 turns and of 1 turn."""
    ends: list[float] = []
    for turns, rounded in ((32, math.floor), (1, math.ceil)):
        # the pair p whose wavelength 2 pi base^(2p/d) is L / turns
        pair = head_dim / 2 * math.log(train_length / (turns * 2 * math.pi)) / math.log(base)
        ends.append(rounded(pair) if truncate else pair)
    low, high = max(ends[0], 0), min(ends[1], head_dim - 1)
    out = []
    for p, f in enumerate(rope(head_dim, base)):
        divided = float(p > low) if low == high else min(1.0, max(0.0, (p - low) / (high - low)))
        out.append(f * (1 - divided) + f / factor * divided)
    return out


def yarn_scale(factor: float) -> float:
    """What is put on cos and on sin: 0.1 ln s + 1, arXiv:2309.00071 section 3.4."""
    return 0.1 * math.log(factor) + 1


def longrope_scale(factor: float, train_length: int) -> float:
    """sqrt(1 + ln s / ln L), arXiv:2402.13753."""
    return math.sqrt(1 + math.log(factor) / math.log(train_length))


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8h/c), h = 1..c, c the largest power of two <= heads; then 2^(-4h/c), h = 1, 3, 5 ..."""
    c = 1
    while 2 * c <= heads:
        c *= 2
    first = [2 ** (-8 * h / c) for h in range(1, c + 1)]
    return first + [2 ** (-4 * h / c) for h in range(1, 2 * (heads - c), 2)]


def t5_bucket(distance: int, buckets: int, max_distance: int) -> int:
    """Causal bucket in whole numbers: n/e >= (M/e)^(k/(b-e)) without a logarithm."""
    exact = buckets // 2
    if distance < exact:
        return max(distance, 0)
    far, k = buckets - exact, 0
    while exact + k + 1 < buckets and (
        distance**far * exact ** (k + 1) >= max_distance ** (k + 1) * exact**far
    ):
        k += 1
    return exact + k


#: inputs of T5's buckets: every distance to twice the largest
BUCKETS: list[Inputs] = [
    {"buckets": b, "max_distance": m, "distances": list(range(2 * m + 1))}
    for b in (8, 16, 32, 64)
    for m in (64, 128, 256, 1000)
]


def t5_buckets(buckets: int, max_distance: int, distances: list[int]) -> Values:
    """`t5_bucket` of every distance."""
    found = [t5_bucket(n, buckets, max_distance) for n in distances]
    return at_distances("bucket", distances, found)


def cosines(head_dim: int, length: int) -> Values:
    """cos of every pair at the last position."""
    return at_position("cos", length - 1, [math.cos((length - 1) * f) for f in rope(head_dim)])


def axial_cosines(head_dim: int, rows: int, columns: int) -> Values:
    """cos of every pair at the last pixel: half of the pairs by row, half by column."""
    rates, last = rope(head_dim // 2), (rows - 1, columns - 1)
    return at_position("cos", rows * columns - 1, [math.cos(m * f) for m in last for f in rates])


def sandwich(distance: int, width: int = 128) -> float:
    """sum_p cos(distance * 10000^(-2p/width)), arXiv:2212.10356 section 5."""
    return math.fsum(math.cos(distance * f) for f in rope(width))


def frequencies(rule: Callable[..., list[float]]) -> Callable[..., Values]:
    """A formula as labelled values."""
    return lambda **inputs: named("frequency of pair", rule(**inputs))
