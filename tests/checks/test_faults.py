"""Every check can fail: on a class with the fault that it is for."""

import inspect
import textwrap

import pytest
from faults import FAULTS, GUARDS, HEAD

from posbench import registry
from posbench.checks import base
from posbench.checks.subjects import SUBJECTS, subject


@pytest.mark.parametrize(("check", "group"), FAULTS)
def test_a_fault_is_found_by_the_check_that_is_meant_for_it(check, group, tmp_path, monkeypatch):
    copied, body = FAULTS[check, group]
    name = f"faulty_{group}_{check}"
    source = f'@register\nclass Faulty({copied}):\n    """Is copied from {copied}."""\n\n'
    text = HEAD + source + textwrap.indent(body.strip(), "    ") + "\n"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(registry.PLUGINS, str(tmp_path / f"{name}.py"))
    faulty = subject(group, name)
    (one,) = [c for c in base.CHECKS if c.name == check and group in c.groups]
    assert one in base.applicable(faulty)
    result = base.run(faulty, one)
    assert not result.passed
    assert not result.note.startswith(("NameError", "SyntaxError", "AttributeError")), result.note


def test_no_check_is_without_a_fault():
    """A check for schemes and rescalings is one function: a fault of either shows it."""
    for one in base.CHECKS:
        wanted = [(one.name, group) for group in one.groups]
        assert any(key in FAULTS or key in GUARDS for key in wanted), one.name


def test_names_are_unique_and_say_in_a_line_what_they_show():
    for group in SUBJECTS:
        own = [c.name for c in base.CHECKS if group in c.groups]
        assert len(own) == len(set(own)) >= 15
    for one in base.CHECKS:
        assert 10 < len(one.shows) <= 41, one.name
        assert inspect.isfunction(one.measure)
