"""The command `posbench show` in this process, as the object that it prints."""

import json
from collections.abc import Callable
from typing import Any

import pytest

import posbench


def strict(text: str) -> Any:
    """JSON without NaN or infinity."""

    def never(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=never)


@pytest.fixture
def shown(anywhere: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """The object that `posbench show ... --json` prints."""

    def show(*words: str) -> dict[str, Any]:
        done = anywhere("show", *words, "--json")
        assert done.code == 0 and not done.err, done.err
        found: dict[str, Any] = strict(done.out)
        return found

    return show


@pytest.fixture(params=["command", "python"])
def tables(request: pytest.FixtureRequest, anywhere: Callable[..., Any]) -> Callable[..., Any]:
    """`posbench show NAME ... --json`, and `posbench.tables(NAME, ...)`."""

    def typed(name: str, **keys: Any) -> dict[str, Any]:
        words = [
            f"{k}={json.dumps(v)}" if isinstance(v, bool) else f"{k}={v}" for k, v in keys.items()
        ]
        done = anywhere("show", name, *words, "--json")
        assert done.code == 0 and not done.err, done.err
        return json.loads(done.out)["tables"]

    return typed if request.param == "command" else posbench.tables
