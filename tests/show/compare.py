"""Numbers in nested lists, compared."""

from typing import Any

import pytest

#: the golden files have nine digits
DIGITS = {"rel": 1e-8, "abs": 1e-9}


def flat(values: Any) -> list[Any]:
    return [x for v in values for x in flat(v)] if isinstance(values, list) else [values]


def close(found: Any, wanted: Any, **tolerance: float) -> None:
    """The same numbers in the same places."""
    found, wanted = flat(found), flat(wanted)
    assert len(found) == len(wanted)
    assert found == pytest.approx(wanted, **(tolerance or DIGITS))
