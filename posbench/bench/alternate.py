"""Take turns: what is compared is measured in every round, so that a machine's mood is shared."""

from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def alternate(
    subjects: Mapping[str, Callable[[], T]],
    rounds: int,
    failed: Callable[[str, Exception], None] | None = None,
    done: Callable[[int], None] = lambda round: None,
) -> dict[str, list[T]]:
    """One sample of every subject in every round, in the given order and then in reverse.

    Element i of a subject's list is of round i. A subject that raises is left out, samples and all,
    once `failed` was told; without `failed` it raises. `done` is told the number of each finished
    round.
    """
    samples: dict[str, list[T]] = {name: [] for name in subjects}
    for turn in range(rounds):
        order = list(samples)
        for name in reversed(order) if turn % 2 else order:
            try:
                samples[name].append(subjects[name]())
            except Exception as error:
                if failed is None:
                    raise
                del samples[name]
                failed(name, error)
        done(turn + 1)
    return samples
