"""Finished cells on disk, as JSON lines.

Of an evaluation that is interrupted, `cells.jsonl` in its folder; of the model as it was trained,
`references/<hash>.jsonl` in the run's folder: its evaluations all need the same references.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from posbench import devices, runs, settings
from posbench.evaluate import protocols
from posbench.evaluate.plan import PLAIN, Cell, Key, Plan
from posbench.evaluate.score import Block
from posbench.files import write_atomic
from posbench.settings import EvalConfig

#: status of a cell that may be tried again when there is more memory
OUT_OF_MEMORY = "out_of_memory"
#: what cells of the trained model are shared; those of other protocols depend on more settings
SHARED = (protocols.STRIDE1, protocols.SAME_TARGETS)


def line(key: Key, cell: Cell) -> str:
    """A cell as it is kept."""
    return json.dumps({"key": asdict(key), "cell": asdict(cell)}) + "\n"


def read(path: Path) -> dict[Key, Cell]:
    """The cells of a file, none if it is not there; from a torn line on they leave the file."""
    cells: dict[Key, Cell] = {}
    if not path.is_file():
        return cells
    good, found = [], path.read_text(encoding="utf-8", errors="replace")
    for text in found.splitlines():
        try:
            stored = json.loads(text)
            blocks = [Block(**b) for b in stored["cell"]["blocks"]]
            cell = Cell(stored["cell"]["status"], blocks, stored["cell"]["positions"])
            if cell.status == OUT_OF_MEMORY:  # there may be more now
                continue
            key = stored["key"]
            shape = key.get("shape") or [key["length"]]  # of texts, as it was written before
            place = key["rule"], key["protocol"], tuple(shape), key.get("distance")
            cells[Key(*place)] = cell
        except (ValueError, KeyError, TypeError):
            break
        good.append(f"{text}\n")
    if found != "".join(good):
        write_atomic(path, "".join(good))
    return cells


def plain(todo: Plan, keys: Iterable[Key]) -> dict[Key, Cell]:
    """Of these keys the cells of the trained model that another evaluation of the run left."""
    known = read(_plain_file(todo))
    return {key: known[key] for key in keys if key in known}


def keep_plain(todo: Plan, cells: Mapping[Key, Cell]) -> None:
    """Leave the cells of the trained model to the run's other evaluations."""
    own = {
        key: cell
        for key, cell in cells.items()
        if (key.rule, cell.status, key.distance) == (PLAIN, "ok", None) and key.protocol in SHARED
    }
    path = _plain_file(todo)
    known = read(path)
    if own.keys() - known.keys():
        write_atomic(path, "".join(line(*item) for item in (known | own).items()))


def _plain_file(todo: Plan) -> Path:
    """Named by all that such a cell depends on, how it is computed included, but for its key."""
    asked = ("lengths", "shapes", "protocol", "window", "stride", "distances", "tune")
    defaults = {name: getattr(EvalConfig(), name) for name in asked}
    identity = {
        "weights": todo.run.manifest["weights_sha256"],
        "targets": todo.data.targets.sha256,
        "eval": settings.changed(replace(todo.eval, **defaults)),
        "how": [
            todo.eval.batch_tokens,
            str(devices.pick(todo.eval.device, "eval.device")),
            runs.environment(),
        ],
        "code": runs.code_version()["sources"],
    }
    return todo.run.path / "references" / f"{settings.digest(identity)}.jsonl"
