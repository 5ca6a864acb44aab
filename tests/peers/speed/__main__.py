"""Makes the environments, measures, and writes `runs/reference/speed.md` and its numbers."""

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

from peers.environments import PEERS, ROOT, NotInstalled, ready
from peers.speed import report
from peers.speed.bench import QUICK, Bench, Size
from peers.speed.measure import everything
from peers.speed.workers import WorkerError
from posbench import machine

OUT = ROOT / "runs" / "reference" / "speed.md"


def pythons(folder: Path, say: Any) -> tuple[dict[str, Path], dict[str, str]]:
    """Python of every contestant, and why others have none.

    posbench is in every environment; what needs no library but torch uses the first.
    """
    found: dict[str, Path] = {}
    absent: dict[str, str] = {}
    for peer in PEERS:
        if peer.module in ("transformers", "x_transformers"):
            say(f"{peer} ...")
            try:
                found[peer.module] = ready(peer, folder)
            except NotInstalled as error:
                absent[peer.module] = f"not installed: {error}"
    if not found:
        raise SystemExit(f"peers.speed: no peer can be installed: {absent}")
    shared = next(iter(found.values()))
    return found | dict.fromkeys(("ours", "nanogpt", "product"), shared), absent


def rounded(value: Any) -> Any:
    """Floats at six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return value


def main(arguments: Iterable[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="peers.speed", description=__doc__)
    options.add_argument("--rounds", type=int, help=f"default {Size().rounds}")
    options.add_argument("--nanogpt", metavar="FOLDER", help="a checkout, with its model.py")
    options.add_argument("--quick", action="store_true", help="a toy shape, short lengths")
    options.add_argument("--environments", type=Path, default=ROOT / ".peers")
    options.add_argument("--out", type=Path, help="Markdown; the numbers go beside it as JSON")
    given = options.parse_args(None if arguments is None else list(arguments))
    size = QUICK if given.quick else Size()
    if given.rounds is not None:
        size = dataclasses.replace(size, rounds=given.rounds)
    if size.rounds < 2:
        options.error("--rounds: at least 2, one in each order")
    checkout = str(Path(given.nanogpt).resolve()) if given.nanogpt else ""
    if checkout and not (Path(checkout) / "model.py").is_file():
        options.error(f"--nanogpt {given.nanogpt}: there is no model.py")

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    own, absent = pythons(given.environments, say)
    if not checkout:
        del own["nanogpt"]
        absent["nanogpt"] = "not given (NANOGPT= names a local checkout)"
    began, load = time.perf_counter(), os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    with tempfile.TemporaryDirectory(prefix="posbench-speed-") as folder:
        bench = Bench(own, absent, Path(folder), machine.cores(), size, checkout, say)
        try:
            record = everything(bench)
        except (WorkerError, SubprocessError) as error:
            raise SystemExit(f"peers.speed: {error}") from None
    record["machine"] = {
        "processor": machine.processor(),
        "threads": bench.threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load": load,
        "minutes": (time.perf_counter() - began) / 60,
    }
    record["rounds"] = size.rounds
    text = report.markdown(record)
    print(text)
    out = given.out or (None if given.quick else OUT)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
        numbers = json.dumps(rounded(record), indent=1)
        out.with_suffix(".json").write_text(f"{numbers}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
