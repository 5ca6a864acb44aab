"""What an evaluation is refused for, before anything is written."""

from typing import TYPE_CHECKING

from posbench import grid
from posbench.data.dataset import Dataset
from posbench.errors import ConfigError, DataError
from posbench.evaluate import protocols

if TYPE_CHECKING:
    from posbench.evaluate.plan import Plan


def check(todo: "Plan") -> None:
    """Refuse options that contradict each other, the protocols or the data."""
    _check_sliding(todo)
    _check_distances(todo)
    _check_tuning(todo)


def _check_sliding(todo: "Plan") -> None:
    """Refuse a window or stride that does not fit, or that no protocol takes."""
    given = {"window": todo.eval.window, "stride": todo.eval.stride}
    if protocols.SLIDING not in {protocol for _, protocol in todo.rows}:
        for name, value in given.items():
            if value is not None:
                raise ConfigError(
                    f"eval.{name}={value}: an option of eval.protocol={protocols.SLIDING}"
                )
        return
    longest = todo.data.targets.longest
    windows = [grid.count(shape) for shape in todo.tested(protocols.SLIDING)]
    if windows[-1] > longest:
        raise DataError(
            f"eval.window={windows[-1]}: the held-out documents of data={todo.data.name} allow at "
            f"most {longest} tokens"
        )
    if (todo.eval.stride or 0) > windows[0]:
        raise ConfigError(
            f"eval.stride={todo.eval.stride}: must be from 1 to {windows[0]}, the shortest window"
        )


def _check_distances(todo: "Plan") -> None:
    """Refuse distances that no protocol takes, and those that fit into no window."""
    given = todo.eval.distances
    if given is None:
        return
    if protocols.REPEAT not in {protocol for _, protocol in todo.rows}:
        raise ConfigError(f"eval.distances={given}: an option of eval.protocol={protocols.REPEAT}")
    longest = grid.count(todo.shapes[-1])
    least, most = todo.reach_of_copies(longest)
    if given[0] < least or given[-1] > most:
        raise ConfigError(
            f"eval.distances={given}: from {least} to {most} with windows of {longest} tokens"
        )


def _check_tuning(todo: "Plan") -> None:
    """ConfigError where `eval.tune` has nothing to choose, or nothing to choose on."""
    if not todo.eval.tune:
        return
    if not isinstance(todo.data, Dataset):
        raise ConfigError(f"eval.tune=true: of texts only, not data={todo.data.name}")
    if not todo.choices():
        raise ConfigError(
            "eval.tune=true: nothing to choose from; give a rescaling several values, as "
            f"rescale.factor=[4,8], and eval.protocol={protocols.SAME_TARGETS}"
        )
