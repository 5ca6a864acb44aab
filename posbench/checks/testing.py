"""The same checks as tests of pytest."""

from collections.abc import Callable
from typing import Any

from posbench import registry
from posbench.checks import base, names
from posbench.checks.subjects import subject


def contract(*which: str) -> Callable[..., None]:
    """A test with one case a check, of files (`mine.py`) or names; none given: of everything.

    One line makes a whole test file for a scheme of one's own::

        from posbench.checks import contract

        test_mine = contract("path/to/mine.py")
    """
    import pytest

    pairs = [] if which else names.every()
    for one in which:
        pairs += [registry.load_plugin(one)] if one.endswith(".py") else names.named([one])
    cases = [
        pytest.param(group, name, one, id=f"{group}={name}-{one.name}")
        for group, name in pairs
        for one in base.applicable(subject(group, name))
    ]

    @pytest.mark.parametrize(("group", "name", "one"), cases)
    def test(group: str, name: str, one: Any) -> None:
        found = base.run(subject(group, name), one)
        bound = f"{found.value:g}, must be {found.relation} {found.bound:g}"
        assert found.passed, f"{found.shows}: {bound}. {found.note}"

    return test
