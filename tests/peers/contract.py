"""posbench's own checks over peers' code: one file in `schemes/` wraps one thing as a scheme."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.environments import Peer, plain

SCHEMES = Path(__file__).parent / "schemes"
#: the checks run in float64; what fails by no more than this may be rounding in float32
ROUNDING = 1e-5


@dataclass(frozen=True)
class Checked:
    """One check of one scheme, as `posbench check --json` prints it."""

    name: str
    check: str
    shows: str
    value: float
    relation: str
    bound: float
    passed: bool
    note: str

    @property
    def verdict(self) -> str:
        """pass, float32 or fail."""
        if self.passed:
            return "pass"
        return "float32" if self.relation == "<=" and self.value <= ROUNDING else "fail"


def files(peer: Peer) -> list[Path]:
    """The schemes that wrap a peer."""
    return sorted(SCHEMES.glob(f"{peer.module}_*.py"))


def arguments(peer: Peer) -> list[str]:
    """Of `python`, to check them all."""
    plugins = [part for file in files(peer) for part in ("--plugin", str(file))]
    return ["-m", "posbench", "check", *plugins, "--json"]


def read(printed: list[dict[str, Any]]) -> list[Checked]:
    """The printed list; a number that is none is null there."""
    found = []
    for result in printed:
        kept = {key: result[key] for key in Checked.__dataclass_fields__}
        kept["value"] = math.nan if kept["value"] is None else kept["value"]
        found.append(Checked(**{**kept, "note": plain(kept["note"])}))
    return found
