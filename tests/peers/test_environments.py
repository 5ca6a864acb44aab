"""Environments without a network: installations are made up, or fail at once."""

import sys
from pathlib import Path

import pytest

from peers import environments
from peers.environments import NotInstalled, Peer, constraints, plain, ready, reason

ABSENT = Peer("made-up", "1.0")


@pytest.fixture
def installs(monkeypatch):
    """Steps of installations, recorded instead of run; the environment's python is this one."""
    steps = []

    def record(*command):
        steps.append(command)
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.unlink(missing_ok=True)
            python.symlink_to(sys.executable)

    monkeypatch.setattr(environments, "step", record)
    return steps


def test_an_environment_is_made_once(installs, tmp_path):
    python = ready(ABSENT, tmp_path)
    assert python == tmp_path / "made-up" / "bin" / "python"
    # torch alone before posbench, the peer last and pinned
    assert [step[-1] for step in installs[-2:]] == [str(environments.ROOT), "made-up==1.0"]
    assert [step[-1] for step in installs].index("torch") == 2
    assert all("-c" in step for step in installs[1:])
    made = len(installs)
    assert ready(ABSENT, tmp_path) == python and len(installs) == made
    ready(Peer("made-up", "1.1"), tmp_path)
    assert len(installs) == 2 * made


def test_a_failed_installation_is_tried_again(installs, tmp_path, monkeypatch):
    def fail(*command):
        installs.append(command)
        if command[-1] == "made-up==1.0":
            raise NotInstalled("no matching distribution")

    monkeypatch.setattr(environments, "step", fail)
    for folder in (tmp_path / "made-up",):
        folder.mkdir()
    for _ in range(2):
        with pytest.raises(NotInstalled):
            ready(ABSENT, tmp_path)
    assert sum("venv" in step for step in installs) == 2


def test_a_peer_lifts_only_its_own_pins():
    whole, lifted = constraints(ABSENT), constraints(Peer("x", "1", lifted=("huggingface_hub",)))
    assert "torch==" in lifted and "huggingface_hub" not in lifted
    assert len(whole.splitlines()) == len(lifted.splitlines()) + 1


def test_a_step_that_fails_gives_one_plain_line():
    script = "import sys; sys.exit('noise\\nERROR: No match for x in /some/where/at/all\\nnoise')"
    with pytest.raises(NotInstalled, match=r"^No match for x in \(path\)$"):
        environments.step(sys.executable, "-c", script)
    with pytest.raises(NotInstalled, match="exit code 3"):
        environments.step(sys.executable, "-c", "import os; os._exit(3)")
    with pytest.raises(NotInstalled):
        environments.step("/no/such/program")


def test_reasons_hold_no_address_and_no_path():
    assert (
        plain("see https://example.org/x and /a/b.py,\n twice") == "see (address) and (path), twice"
    )
    assert plain("1/2 and/or a/b") == "1/2 and/or a/b"
    assert reason("a\nE: b\n\n") == "E: b" and reason("") == ""
