"""Runs one library's probes in this environment: `python -m peers.probe FILE DISTRIBUTION`.

Prints one JSON object; what libraries print goes to stderr.
"""

import contextlib
import dataclasses
import importlib
import importlib.metadata
import json
import sys

from peers import compare


def main(module: str, distribution: str) -> None:
    with contextlib.redirect_stdout(sys.stderr):
        probes = importlib.import_module(f"peers.{module}").PROBES
        findings = [dataclasses.asdict(compare.run(probe)) for probe in probes]
    version = importlib.metadata.version(distribution)
    print(json.dumps({"version": version, "findings": findings}))


if __name__ == "__main__":
    main(*sys.argv[1:])
