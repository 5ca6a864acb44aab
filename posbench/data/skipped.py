"""Training batches of text, some of which is skipped where the position sampler says so."""

from typing import TYPE_CHECKING, Any

import numpy as np

from posbench import grid
from posbench.data.dataset import Dataset
from posbench.data.windows import Tokens
from posbench.errors import ConfigError, DataError
from posbench.grid import Shape

if TYPE_CHECKING:
    from posbench.positions.base import PositionSampler


def training_batch(
    data: Any, sampler: "PositionSampler", shape: Shape, batch_size: int, seed: int, step: int
) -> tuple[Tokens, Tokens]:
    """Inputs and next tokens [B, L] of a batch; a pure function of (seed, step).

    Skipped text: the tokens at the sampler's places in windows of as many more tokens. ConfigError
    where no document holds those, or where the data are no text.
    """
    if not sampler.skipped:
        found: tuple[Tokens, Tokens] = data.training_batch(shape, batch_size, seed, step)
        return found
    name, length = f"positions={sampler.name}", grid.count(shape)
    if not isinstance(data, Dataset):
        raise ConfigError(f"{name}: text is skipped on texts only, not on data={data.name}")
    try:
        inputs, labels = data.training_batch((length + sampler.skipped,), batch_size, seed, step)
    except DataError:
        raise ConfigError(
            f"{name}: no training document of data={data.name} holds the "
            f"{length + sampler.skipped + 1} tokens that its text is cut from"
        ) from None
    text = np.concatenate([inputs[:, :1], labels], axis=1)
    own = np.take_along_axis(text, sampler.places(batch_size, length, seed, step).numpy(), axis=1)
    return own[:, :-1], own[:, 1:]
