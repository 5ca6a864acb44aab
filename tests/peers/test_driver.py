"""The command, with environments that are made up."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from peers import __main__ as driver
from peers import contract
from peers.environments import PEERS, NotInstalled, Peer

ABSENT, GOOD = Peer("made-up", "1.0"), Peer("good", "2.0")
FINDING = {"scheme": "rope", "part": "x", "rule": "x", "inputs": 1, "tolerance": 1e-5}
FINDING |= {"result": "agrees", "smallest": None}
CHECK = {"name": "good_rope", "check": "shift", "shows": "Shifts change nothing", "value": 0.25}
CHECK |= {"relation": "<=", "bound": 1e-9, "passed": False, "note": "at /a/b/c", "seconds": 1.0}


@pytest.fixture
def peers(monkeypatch):
    """One peer that cannot be installed and one that can; what its two commands print."""

    def make(peer, folder):
        if peer is not GOOD:
            raise NotInstalled("No matching distribution found for made-up==1.0")
        return Path(sys.executable)

    given = {"probe": {"version": "2.0", "findings": [FINDING]}, "check": [CHECK]}

    def printed(python, *arguments):
        found = given["probe" if "peers.probe" in arguments else "check"]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(driver, "PEERS", (ABSENT, GOOD))
    monkeypatch.setattr(driver, "ready", make)
    monkeypatch.setattr(driver, "printed", printed)
    return given


def test_it_goes_on_after_a_peer_that_cannot_be_installed(peers, tmp_path, capsys):
    out = tmp_path / "new" / "peers.md"
    assert driver.main(["--out", str(out)]) == 0
    for shown in (out.read_text(encoding="utf-8"), capsys.readouterr().out):
        assert "made-up 1.0" in shown and "No matching distribution" in shown
        assert "good 2.0" in shown and "agrees" in shown and "good_rope" in shown


def test_posbench_off_the_oracle_is_the_one_failure(peers, tmp_path):
    peers["probe"]["findings"] = [{**FINDING, "posbench_off": 1.0}]
    assert driver.main(["good", "--out", str(tmp_path / "x.md")]) == 1


def test_probes_and_checks_fail_apart(peers, tmp_path):
    peers["check"] = ValueError("posbench: error: broken at /a/b/c")
    found = driver.run(GOOD, tmp_path)
    assert len(found.findings) == 1 and found.checks == []
    assert found.unchecked == "posbench: error: broken at (path)"
    peers |= {"check": [CHECK], "probe": subprocess.TimeoutExpired("python", 1)}
    found = driver.run(GOOD, tmp_path)
    assert found.findings == [] and "timed out" in found.reason and len(found.checks) == 1


def test_some_peers_leave_the_table_alone(peers, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "TABLE", tmp_path / "peers.md")
    assert driver.main(["good"]) == 0 and not driver.TABLE.exists()
    assert driver.main([]) == 0 and driver.TABLE.is_file()


def test_checks_are_read():
    one, nothing = contract.read([CHECK, {**CHECK, "value": None}])
    assert (one.value, one.note, one.verdict) == (0.25, "at (path)", "fail")
    assert math.isnan(nothing.value) and nothing.verdict == "fail"
    small, good = contract.read([{**CHECK, "value": 1e-7}, {**CHECK, "passed": True}])
    assert (small.verdict, good.verdict) == ("float32", "pass")
    floor = {**CHECK, "relation": ">=", "bound": 1e-6, "value": 0.0}
    assert contract.read([floor])[0].verdict == "fail"


def test_an_unknown_name_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        driver.main(["torchtitan", "--out", str(tmp_path / "x.md")])
    assert "unknown: torchtitan" in capsys.readouterr().err


def test_a_library_that_crashes_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "ready", lambda *_: Path(sys.executable))
    found = driver.run(Peer("no-such-adapter", "1.0"), tmp_path)
    assert found.findings == found.checks == []
    assert found.reason == "ModuleNotFoundError: No module named 'peers.no_such_adapter'"


def test_probes_print_one_json_line_whatever_libraries_print(tmp_path):
    (tmp_path / "peers").mkdir()
    here = Path(driver.__file__).parent
    for name in ("__init__", "compare", "probe"):
        source = (here / f"{name}.py").read_text(encoding="utf-8")
        (tmp_path / "peers" / f"{name}.py").write_text(source, encoding="utf-8")
    (tmp_path / "peers" / "pip_.py").write_text(
        "print('hello')\n"
        "from peers.compare import Probe\n"
        "def say(n):\n    print('noise')\n    return {'value': float(n)}\n"
        "PROBES = [Probe('rope', 'say', [{'n': 1}], say, say, say, 'x')]\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "peers.probe", "pip_", "pip"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["findings"][0]["result"] == "agrees" and found["version"]
    assert done.stderr.splitlines() == ["hello", *["noise"] * 3]


@pytest.mark.parametrize("peer", PEERS, ids=str)
def test_every_peer_has_its_files(peer):
    assert (Path(driver.__file__).parent / f"{peer.module}.py").is_file()
    assert contract.files(peer)


def test_every_scheme_belongs_to_one_peer():
    assert sorted(f for peer in PEERS for f in contract.files(peer)) == sorted(
        contract.SCHEMES.glob("*.py")
    )
