"""The log of a training run: one JSON line per logged step."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posbench.errors import RunError
from posbench.files import write_atomic

if TYPE_CHECKING:
    import pandas as pd


class JsonLines:
    """train.jsonl: lines up to the resumed step are kept, later ones are written anew."""

    def __init__(self, path: Path, keep: int, active: bool):
        self.path, self.active = path, active
        if not active:
            return
        old = path.read_text(encoding="utf-8").splitlines() if keep and path.is_file() else []
        kept = [line for line in old if _step_of(line) <= keep]
        write_atomic(path, "".join(f"{line}\n" for line in kept))

    def __enter__(self) -> Callable[[dict[str, Any]], None]:
        self.file = self.path.open("a", encoding="utf-8") if self.active else None
        return self.write

    def write(self, line: dict[str, Any]) -> None:
        if self.file:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()

    def __exit__(self, *error: object) -> None:
        if self.file:
            self.file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a finished run's log; RunError where it is missing or damaged."""
    try:
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not all(isinstance(line, dict) for line in found):
        raise RunError(f"{path} is damaged: a line is not a JSON object")
    return found


def reached(log: "pd.DataFrame") -> int | None:
    """The first logged step of a fine-tuning with a loss at the target at most the aim."""
    there = log[log["target_loss"].astype("float64") <= log["aim"].astype("float64")]
    return None if there.empty else int(there["step"].min())


def _step_of(line: str) -> float:
    """Step of a logged line; infinite for a torn one."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
