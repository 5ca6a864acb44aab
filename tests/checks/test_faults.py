"""Every check can fail: on a class with the fault that it is for."""

import inspect
import textwrap

import pytest
from faults import FAULTS, GUARDS, HEAD
from grid_faults import GRID_FAULTS
from grid_faults import HEAD as GRID_HEAD

from posbench import registry
from posbench.checks import base
from posbench.checks.subjects import SUBJECTS, subject


@pytest.fixture
def fails(tmp_path, monkeypatch):
    """Whether a check fails on a class with a fault, and not because that cannot be run."""

    def tried(group, name, check, head, copied, body):
        source = f'@register\nclass Faulty({copied}):\n    """Is copied from {copied}."""\n\n'
        text = head + source + textwrap.indent(body.strip(), "    ") + "\n"
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv(registry.PLUGINS, str(tmp_path / f"{name}.py"))
        faulty = subject(group, name)
        (one,) = [c for c in base.CHECKS if c.name == check and group in c.groups]
        assert one in base.applicable(faulty)
        result = base.run(faulty, one)
        errors = ("NameError", "SyntaxError", "AttributeError")
        assert not result.note.startswith(errors), result.note
        return not result.passed

    return tried


@pytest.mark.parametrize(("check", "group"), FAULTS)
def test_a_fault_is_found_by_the_check_that_is_meant_for_it(check, group, fails):
    assert fails(group, f"faulty_{group}_{check}", check, HEAD, *FAULTS[check, group])


@pytest.mark.parametrize(("check", "fault"), GRID_FAULTS)
def test_a_fault_on_pictures_is_found_by_the_check_that_is_meant_for_it(check, fault, fails):
    name = f"faulty_{check}_{list(GRID_FAULTS).index((check, fault))}"
    assert fails("posenc", name, check, GRID_HEAD, *GRID_FAULTS[check, fault])


def test_no_check_is_without_a_fault():
    """A check for schemes and rescalings is one function: a fault of either shows it."""
    known = {*FAULTS, *GUARDS, *((check, "posenc") for check, _ in GRID_FAULTS)}
    for one in base.CHECKS:
        assert any((one.name, group) in known for group in one.groups), one.name


def test_names_are_unique_and_say_in_a_line_what_they_show():
    for group in SUBJECTS:
        own = [c.name for c in base.CHECKS if group in c.groups]
        assert len(own) == len(set(own)) >= 15
    for one in base.CHECKS:
        assert 10 < len(one.shows) <= 41, one.name
        assert inspect.isfunction(one.measure)
