"""What a test length means: which windows are read and which of their tokens are scored."""

from collections.abc import Iterator

from posbench.data import windows
from posbench.data.dataset import Dataset
from posbench.data.targets import SHORTEST
from posbench.data.windows import Window
from posbench.settings import EvalConfig

SAME_TARGETS, NONOVERLAPPING, STRIDE1 = "same_targets", "nonoverlapping", "stride1"


def read(protocol: str, data: Dataset, length: int, config: EvalConfig) -> Iterator[Window]:
    """Windows of a protocol at a test length; `config` as a Plan holds it, nothing left open.

    same_targets     the frozen targets, each block read once with `length` tokens
    nonoverlapping   every target of the documents once, in disjoint windows of `length` tokens
    stride1          the frozen targets, each token read with exactly `length` tokens before it;
                     at the training length this is the reference `crop`
    """
    if protocol == NONOVERLAPPING:
        return windows.disjoint_windows(data, length, config.docs)
    if protocol == STRIDE1:
        return windows.stride1_windows(data, length, config.docs, config.blocks)
    return windows.target_windows(data, length, config.docs, config.blocks)


def mean_context(protocol: str, data: Dataset, length: int) -> float:
    """Mean number of tokens that a scored token is predicted from."""
    if protocol == STRIDE1:
        return float(length)
    if protocol == SAME_TARGETS:
        return length - (data.targets.scored - 1) / 2
    full, rest = divmod(data.targets.longest, length)
    contexts = full * length * (length + 1) / 2 + rest * (rest + 1) / 2
    return contexts / data.targets.longest


def by_context(context: int) -> str:
    """Protocol that measures a context on the frozen targets: below 64 tokens it is stride 1."""
    return SAME_TARGETS if context >= SHORTEST else STRIDE1


def default_lengths(train_length: int, longest: int) -> list[int]:
    """1/2, 1, 2, 4, 8 and 16 times the training length, as far as the targets allow."""
    wanted = [train_length // 2, *(train_length * 2**k for k in range(5))]
    return [t for t in wanted if SHORTEST <= t <= longest]
