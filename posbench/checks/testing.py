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
        pytest.param(given, one, id="-".join((f"{group}={name}", one.name, *_axes(given))))
        for group, name in pairs
        for given in subject(group, name).variants
        for one in base.applicable(given)
    ]

    @pytest.mark.parametrize(("given", "one"), cases)
    def test(given: Any, one: Any) -> None:
        found = base.run(given, one)
        bound = f"{found.value:g}, must be {found.relation} {found.bound:g}"
        assert found.passed, f"{found.shows}: {bound}. {found.note}"

    return test


def _axes(given: Any) -> list[str]:
    """What tells a test on a grid from others."""
    on_text = given.broken or given.axes == 1
    return [] if on_text else [f"{given.axes}axes"]
