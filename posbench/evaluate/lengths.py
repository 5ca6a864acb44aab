"""The sweep of one run: every rescaling, protocol and test length becomes a row.

A cell is one forward sweep over the windows of (rescaling, protocol, length). Finished cells are
kept in `cells.jsonl`, so that an interrupted sweep goes on; rows are computed from cells alone, so
a length that is added leaves the other rows as they were.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from posbench import devices, registry, runs
from posbench import model as models
from posbench.encodings.base import PositionalEncoding
from posbench.errors import UnsupportedRescale
from posbench.evaluate import protocols, rows, score
from posbench.evaluate.plan import PLAIN, Cell, Key, Plan
from posbench.evaluate.score import Block
from posbench.files import write_atomic, write_json

#: finished cells of an evaluation that is interrupted, or that lacked memory and may be tried again
CELLS = "cells.jsonl"
OUT_OF_MEMORY = "out_of_memory"


def evaluate(todo: Plan, report: Callable[[str], None] = lambda item: None) -> Path:
    """Compute what is missing of an evaluation; returns its folder, complete."""
    folder = todo.folder
    if is_finished(folder) and not (folder / CELLS).exists():
        return folder
    with runs.locked(folder):
        manifest = {
            "status": "running",
            "started": runs.now(),
            "finished": None,
            "run_id": todo.run.manifest["run_id"],
            "weights_sha256": todo.run.manifest["weights_sha256"],
            "lengths": todo.lengths,
            "rescalings": {name: asdict(rule.config) for name, rule in todo.rules().items()},
            "plugins": todo.plugins(),
            "eval": asdict(todo.eval),
            "code": runs.code_version(),
            "environment": runs.environment(),
        }
        write_json(folder / runs.MANIFEST, manifest)
        cells = _cells(todo, folder, report)
        made = rows.build(todo, cells)
        rows.write(made, folder)
        if all(cell.status != OUT_OF_MEMORY for cell in cells.values()):
            (folder / CELLS).unlink()
        manifest |= {"status": "finished", "finished": runs.now()}
        manifest |= {"gate": made.gate, "interval_over": made.interval_over}
        write_json(folder / runs.MANIFEST, manifest)
    return folder


def is_finished(folder: Path) -> bool:
    """Whether an evaluation folder is complete."""
    try:
        manifest = json.loads((folder / runs.MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(manifest.get("status") == "finished" and (folder / rows.LENGTHS).is_file())


def by_other_code(folder: Path) -> bool:
    """Whether a complete evaluation was made by another version of the package's sources."""
    if not is_finished(folder):
        return False
    manifest = json.loads((folder / runs.MANIFEST).read_text(encoding="utf-8"))
    return bool(manifest.get("code", {}).get("sources") != runs.code_version()["sources"])


def _cells(todo: Plan, folder: Path, report: Callable[[str], None]) -> dict[Key, Cell]:
    """Every cell of the plan, computed or read back."""
    cells = _kept(folder / CELLS)
    scorer: _Scorer | None = None
    with (folder / CELLS).open("a", encoding="utf-8") as log:
        for key in dict.fromkeys([*todo.needed(), *todo.wanted()]):
            report(f"{todo.run.manifest['preset']} {key.rule} {key.protocol} {key.length}")
            if key in cells:
                continue
            scorer = scorer or _Scorer(todo)
            cells[key] = cell = scorer(key)
            log.write(json.dumps({"key": asdict(key), "cell": asdict(cell)}) + "\n")
            log.flush()
    return cells


def _kept(path: Path) -> dict[Key, Cell]:
    """Cells of an interrupted sweep; a torn last line is dropped from the file."""
    cells: dict[Key, Cell] = {}
    if not path.is_file():
        return cells
    good = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            stored = json.loads(line)
            blocks = [Block(**b) for b in stored["cell"]["blocks"]]
            cell = Cell(stored["cell"]["status"], blocks)
            if cell.status == OUT_OF_MEMORY:  # there may be more now
                continue
            cells[Key(**stored["key"])] = cell
        except (ValueError, KeyError, TypeError):
            break
        good.append(f"{line}\n")
    write_atomic(path, "".join(good))
    return cells


class _Scorer:
    """The run's model, loaded once, and what every cell needs of it."""

    def __init__(self, todo: Plan):
        self.todo = todo
        self.config = config = todo.eval
        if config.threads:
            import torch

            torch.set_num_threads(config.threads)
        self.rules = {PLAIN: registry.get("rescale", PLAIN)(None), **todo.rules()}
        self.model = models.build(todo.run.config, todo.data.tokenizer.vocab_size)
        models.load_weights(self.model, todo.run.weights)
        device = devices.pick(config.device, "eval.device")
        self.model.to(device).eval()
        self.limit = score.memory_limit(config.memory_limit, device)
        self.token_bytes = todo.data.tokenizer.token_bytes()

    def __call__(self, key: Key) -> Cell:
        """Score one cell; what cannot be scored is a status, never an exception."""
        encoding, L = self.model.posenc, self.todo.train_length
        try:
            encoding = self.rules[key.rule].applied(encoding, L, key.length)
        except UnsupportedRescale:
            return Cell("unsupported_rescale")
        if not self._has_positions(encoding, key.length):
            return Cell("unsupported_length")
        windows = protocols.read(key.protocol, self.todo.data, key.length, self.config)
        try:
            blocks = score.score(
                self.model,
                encoding,
                windows,
                self.token_bytes,
                self.config.batch_tokens,
                self.limit,
                self.config.draws,
            )
        except score.OutOfMemory:
            return Cell(OUT_OF_MEMORY)
        return Cell("ok", blocks) if score.finite(blocks) else Cell("nonfinite")

    def _has_positions(self, encoding: PositionalEncoding, length: int) -> bool:
        """Whether sampler and encoding are defined for sequences of this length."""
        sampler = self.model.sampler
        if sampler.max_length is not None and length > sampler.max_length:
            return False
        return encoding.max_length is None or sampler.span(length) <= encoding.max_length
