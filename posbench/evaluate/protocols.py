"""What a test length means: which windows are read and which of their tokens are scored.

T is a test length, `longest` the longest of a sweep, K the scored tokens of a block (32).

same_targets     the frozen targets, each block read once with T tokens: the same tokens at every T.
                 The only one of pictures and clips (see posbench.data.grids)
nonoverlapping   every target of the documents once, in disjoint windows of T tokens
sliding          the same tokens as nonoverlapping, in windows of T tokens that overlap: each goes
                 on by `eval.stride` tokens (T/2) and scores only what the ones before it have not,
                 as the rolling windows of lm-evaluation-harness (posbench.data.windows.rolling).
                 `eval.window` is a window of its own, beside the lengths of other protocols
prefix           each block of the frozen targets is read once, with `longest` tokens, and every T
                 is read off that pass: its K predictions after T-K+1 .. T tokens. A length costs
                 next to nothing. At T = `longest` the tokens are those of same_targets; at any
                 other T they are others, so that rows of two lengths differ by their tokens too,
                 and `targets_hash` says which. A length that is not the longest changes no other
                 row. Refused where the first T tokens of a longer sequence are not what they are
                 on their own: encodings or rescalings that depend on the total length, test
                 positions that are drawn at random or follow the length
repeat           as same_targets, but what is scored has stood once before: at the start of the
                 window, or `eval.distances` tokens back, a row for each that it holds (see
                 posbench.data.repeat); the same_targets row is its control
generated        of tasks alone: the instances of exactly T tokens (see posbench.data.tasks), whose
                 answers are scored, other ones at every T
stride1          the frozen targets, each token read with exactly T tokens before it; at the
                 training length this is the reference `crop`
"""

from collections.abc import Iterator, Sequence

import numpy as np

from posbench import grid
from posbench.data import repeat, windows
from posbench.data.dataset import Dataset
from posbench.data.grids import GridDataset
from posbench.data.targets import SHORTEST
from posbench.data.tasks import TaskDataset
from posbench.data.windows import Window
from posbench.grid import Shape
from posbench.settings import EvalConfig

SAME_TARGETS, NONOVERLAPPING = "same_targets", "nonoverlapping"
SLIDING, PREFIX = "sliding", "prefix"
REPEAT, GENERATED = "repeat", TaskDataset.protocol
STRIDE1 = "stride1"


def stride(config: EvalConfig, window: int) -> int:
    """Tokens that windows of `sliding` go on by: as given, or half the window."""
    return config.stride or window // 2


def together(protocol: str, shape: Shape, shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes of a sweep that share the forward passes of this one, ascending."""
    return sorted(shapes) if protocol == PREFIX else [shape]


def read(
    protocol: str,
    data: Dataset | GridDataset | TaskDataset,
    shape: Shape,
    config: EvalConfig,
    distance: int | None = None,
) -> Iterator[Window]:
    """Windows of a protocol at a test length; `config` as a Plan holds it, nothing left open.

    `distance` is that of an earlier copy, of `repeat` alone.
    """
    if protocol in (SAME_TARGETS, GENERATED):
        return data.target_windows(shape, config.docs, config.blocks)
    if protocol == REPEAT:
        plain = data.target_windows(shape, config.docs, config.blocks)
        return repeat.repeated(plain, distance, kept=int(data.tokenizer.start is not None))
    assert isinstance(data, Dataset)
    length = grid.count(shape)
    if protocol == NONOVERLAPPING:
        return windows.disjoint_windows(data, length, config.docs)
    if protocol == SLIDING:
        return windows.sliding_windows(data, length, stride(config, length), config.docs)
    if protocol == STRIDE1:
        return windows.stride1_windows(data, length, config.docs, config.blocks)
    return readings(data, [length], config)[-1]


def readings(
    data: Dataset | GridDataset | TaskDataset, lengths: Sequence[int], config: EvalConfig
) -> list[Iterator[Window]]:
    """Windows of `prefix`: equal inputs, other scored positions.

    The first reading scores every position, for the loss by position; then there is one for each
    length. The inputs are as many tokens of the whole window as the longest of `lengths` needs.
    """
    assert config.lengths is not None and isinstance(data, Dataset)
    whole, reach = max(config.lengths), max(lengths)

    def one(length: int, n: int) -> Iterator[Window]:
        for window in windows.target_windows(data, whole, config.docs, config.blocks):
            yield _prefix(window, length, reach, n)

    return [one(reach, reach), *(one(length, data.targets.scored) for length in lengths)]


def _prefix(window: Window, length: int, reach: int, n: int) -> Window:
    """The first `reach` tokens of a window; scored are the last `n` of its first `length`."""
    following = np.append(window.inputs, window.labels[-1:])
    scored = np.arange(length - n, length)
    end = window.end - len(window.inputs) + length
    inputs = window.inputs[:reach]
    return Window(window.document, window.block, end, inputs, following[scored + 1], scored)


def mean_context(
    protocol: str, data: Dataset | GridDataset | TaskDataset, shape: Shape, config: EvalConfig
) -> float:
    """Mean number of tokens that a scored token is predicted from."""
    length = grid.count(shape)
    if protocol == STRIDE1:
        return float(length)
    if protocol in (SAME_TARGETS, PREFIX, REPEAT, GENERATED):
        return data.mean_context(shape)
    assert isinstance(data, Dataset)
    longest = data.targets.longest
    if protocol == SLIDING:
        places = list(windows.rolling(longest, length, stride(config, length)))
    else:
        places = [(n, n + 1, min(n + length, longest)) for n in range(0, longest, length)]
    # the tokens first .. end stand after first - start .. end - start tokens of their window
    contexts = [(end - first + 1) * (first + end - 2 * start) / 2 for start, first, end in places]
    return sum(contexts) / longest


def by_context(context: int) -> str:
    """Protocol that measures a context on the frozen targets: below 64 tokens it is stride 1."""
    return SAME_TARGETS if context >= SHORTEST else STRIDE1


def default_lengths(train_length: int, longest: int, shortest: int = SHORTEST) -> list[int]:
    """1/2, 1, 2, 4, 8 and 16 times the training length, as far as the targets allow."""
    wanted = [train_length // 2, *(train_length * 2**k for k in range(5))]
    return [t for t in wanted if shortest <= t <= longest]
