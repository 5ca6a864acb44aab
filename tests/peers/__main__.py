"""Makes the environments, runs every library's probes in its own, writes and prints the table."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peers import contract, report
from peers.compare import Finding, Shown
from peers.environments import PEERS, ROOT, NotInstalled, Peer, plain, ready, reason
from peers.report import Outcome

#: seconds for one library's probes, and for its checks
PATIENCE = 900
#: where the table of all peers is kept
TABLE = ROOT / "runs" / "reference" / "peers.md"


def run(peer: Peer, folder: Path) -> Outcome:
    """What a peer's probes and checks found; why there is nothing, if it cannot be installed."""
    try:
        python = ready(peer, folder)
    except NotInstalled as error:
        return Outcome(peer.name, peer.version, reason=f"not installed: {error}")
    found: dict[str, Any] = {"name": peer.name, "version": peer.version}
    try:
        probed = printed(python, "-m", "peers.probe", peer.module, peer.name)
        found |= {"version": probed["version"], "findings": findings(probed["findings"])}
    except (subprocess.SubprocessError, ValueError) as error:
        found["reason"] = plain(str(error))
    try:
        found["checks"] = contract.read(printed(python, *contract.arguments(peer)))
    except (subprocess.SubprocessError, ValueError) as error:
        found["unchecked"] = plain(str(error))
    return Outcome(**found)


def printed(python: Path, *arguments: str) -> Any:
    """The JSON that a command of the peer's environment prints; ValueError if there is none."""
    own = {"PYTHONPATH": str(Path(__file__).parents[1]), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(python), *arguments],
        cwd=ROOT,
        env=os.environ | own | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    # a check that fails is exit code 1, and prints its list all the same
    if not done.stdout.strip():
        raise ValueError(reason(done.stderr) or f"exit code {done.returncode}")
    return json.loads(done.stdout)


def findings(found: list[dict[str, Any]]) -> list[Finding]:
    """The printed objects."""
    return [
        Finding(**{**f, "smallest": Shown(**f["smallest"]) if f["smallest"] else None})
        for f in found
    ]


def main(arguments: Iterable[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="peers", description=__doc__)
    options.add_argument("names", nargs="*", help="only these peers; the table is then not kept")
    options.add_argument("--environments", type=Path, default=ROOT / ".peers")
    options.add_argument("--out", type=Path)
    given = options.parse_args(None if arguments is None else list(arguments))
    unknown = set(given.names) - {peer.name for peer in PEERS}
    if unknown:
        options.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(map(str, PEERS))}")
    outcomes = []
    for peer in PEERS:
        if not given.names or peer.name in given.names:
            print(f"{peer} ...", file=sys.stderr, flush=True)
            outcomes.append(run(peer, given.environments))
    out = given.out or (None if given.names else TABLE)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(report.markdown(outcomes), encoding="utf-8")
    print(report.terminal(outcomes))
    return 1 if report.wrong(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
