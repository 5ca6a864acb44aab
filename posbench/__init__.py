"""posbench: an experiment harness for length extrapolation of positional encodings."""

from typing import Any

__version__ = "0.1.0"


def tables(name: str, /, **keys: Any) -> dict[str, Any]:
    """The numeric tables of a scheme, rescaling or sampler, as `posbench show --json` prints them.

    E.g. tables("yarn", head_dim=8, train_length=2048, factor=4)["inv_freq"]. Numbers are float64
    unless dtype="float32", "bfloat16" or "float16" asks for those that such a model uses.
    """
    from posbench.show.tables import tables

    return tables(name, **keys)
