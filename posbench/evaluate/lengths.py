"""The sweep of one run: every rescaling, protocol and test length becomes a row.

A cell is what a forward sweep over the windows of (rescaling, protocol, length) gives. Rescalings
that make the same encoding at a length share one sweep, and all lengths of `prefix` do. Finished
cells are kept (posbench.evaluate.kept), so that an interrupted sweep goes on and another sweep of
the run does not compute its references again; rows are computed from cells alone, so a length that
is added leaves the other rows as they were (for `prefix`: one that is not the longest).
"""

import traceback
from collections.abc import Callable, Hashable
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

import torch

from posbench import devices, grid, registry, runs
from posbench import model as models
from posbench.data.grids import GridDataset
from posbench.encodings.base import PositionalEncoding
from posbench.errors import RunError, UnsupportedRescale
from posbench.evaluate import attention, kept, pictures, protocols, rows, score, tuning
from posbench.evaluate.plan import LONG, PLAIN, VALIDATION, Cell, Key, Plan
from posbench.evaluate.positions import Losses
from posbench.evaluate.score import Block
from posbench.evaluate.signature import signature
from posbench.files import altered, hashes, read_json, write_atomic, write_json
from posbench.grid import Shape
from posbench.rescale.base import Rescale

#: finished cells of an evaluation that is interrupted, or that lacked memory and may be tried again
CELLS = "cells.jsonl"


def evaluate(todo: Plan, report: Callable[[str], None] = lambda item: None) -> Path:
    """Compute what is missing of an evaluation; returns its folder, complete."""
    folder = todo.folder
    if is_finished(folder) and not (folder / CELLS).exists():
        return folder
    with runs.locked(folder):
        devices.use_threads(todo.eval.threads)
        manifest = {
            "status": "running",
            "started": runs.now(),
            "finished": None,
            "run_id": todo.run.manifest["run_id"],
            "weights_sha256": todo.run.manifest["weights_sha256"],
            "lengths": [grid.count(shape) for shape in todo.shapes],
            "shapes": [grid.text(shape) for shape in todo.shapes],
            "rescalings": {name: asdict(rule.config) for name, rule in todo.rules().items()},
            "plugins": todo.plugins(),
            "long": todo.long.manifest["run_id"] if todo.long else None,
            "eval": asdict(todo.eval),
            "tuning": tuning.documents(todo),
            "code": runs.code_version(),
            "environment": runs.environment(),
        }
        write_json(folder / runs.MANIFEST, manifest)
        try:
            cells = _cells(todo, folder, report)
            made = rows.build(todo, cells)
            rows.write(made, folder)
            if isinstance(todo.data, GridDataset):
                scorer = _Scorer(todo, {})
                shown = pictures.make(todo, cells, scorer.model, scorer.encoding)
                pictures.write(shown, folder / pictures.FILE)
            if attention.keys(todo):
                scorer = _Scorer(todo, {})
                sharp = attention.table(todo, cells, scorer.model, scorer.encoding)
                write_atomic(folder / attention.FILE, sharp.to_csv(index=False))
            if todo.eval.tune:
                write_atomic(folder / tuning.FILE, tuning.table(todo, cells).to_csv(index=False))
        except Exception as error:
            failure = {"status": "failed", "finished": runs.now()}
            failure |= {"error": f"{type(error).__name__}: {error}"}
            failure |= {"traceback": traceback.format_exc()}
            write_json(folder / runs.MANIFEST, manifest | failure)
            raise
        if all(cell.status != kept.OUT_OF_MEMORY for cell in cells.values()):
            (folder / CELLS).unlink()
        manifest |= {"status": "finished", "finished": runs.now()}
        manifest |= {"gate": made.gate, "interval_over": made.interval_over}
        manifest["sha256"] = hashes([*folder.glob("*.csv"), *folder.glob("*.npz")])
        write_json(folder / runs.MANIFEST, manifest)
    return folder


def is_finished(folder: Path) -> bool:
    """Whether an evaluation folder is complete and its files are as they were written."""
    try:
        manifest = read_json(folder / runs.MANIFEST)
    except RunError:
        return False
    known = manifest.get("status") == "finished" and not altered(folder, manifest)
    return known and all((folder / name).is_file() for name in (rows.LENGTHS, rows.BLOCKS))


def by_other_code(folder: Path) -> bool:
    """Whether a complete evaluation was made by another version of the package's sources."""
    if not is_finished(folder):
        return False
    manifest = read_json(folder / runs.MANIFEST)
    return bool(manifest.get("code", {}).get("sources") != runs.code_version()["sources"])


def _cells(todo: Plan, folder: Path, report: Callable[[str], None]) -> dict[Key, Cell]:
    """Every cell of the plan, computed or read back."""
    keys = todo.keys()
    cells = {key: cell for key, cell in kept.read(folder / CELLS).items() if key in keys}
    scorer: _Scorer | None = None
    with (folder / CELLS).open("a", encoding="utf-8") as log:
        for key, cell in kept.plain(todo, (key for key in keys if key not in cells)).items():
            cells[key] = cell
            log.write(kept.line(key, cell))
        for key in keys:
            report(
                f"{todo.run.manifest['preset']} {key.rule} {key.protocol} {grid.text(key.shape)}"
            )
            if key in cells:
                continue
            scorer = scorer or _Scorer(todo, cells)
            for made, cell in scorer(key).items():
                if made in keys and made not in cells:
                    cells[made] = cell
                    log.write(kept.line(made, cell))
            log.flush()
    kept.keep_plain(todo, cells)
    return cells


class _Scorer:
    """The run's model, loaded once, and what every cell needs of it."""

    def __init__(self, todo: Plan, cells: dict[Key, Cell]):
        self.todo = todo
        self.config = config = todo.eval
        self.rules = {PLAIN: registry.get("rescale", PLAIN)(None), **todo.rules()}
        self.model = models.build(todo.run.config, todo.data.tokenizer.vocab_size)
        models.load_weights(self.model, todo.run.weights)
        device = devices.pick(config.device, "eval.device")
        self.model.to(device).eval()
        self.limit = score.memory_limit(config.memory_limit, device)
        self.token_bytes = todo.data.tokenizer.token_bytes()
        #: what is known already: (key without its rule, signature of the encoding) -> its cell
        self.known: dict[Hashable, Cell] = {}
        #: test length -> the same run on validation documents, if any holds it
        self.validation: dict[Shape, _Scorer | None] = {}
        for key, cell in cells.items():
            if key.rule != LONG:
                self._remember({key: cell}, self.encoding(key))

    def __call__(self, key: Key) -> dict[Key, Cell]:
        """A missing cell, and others that its forward passes gave.

        What cannot be scored is a status, never an exception.
        """
        if key.rule == LONG:
            found = self.long(replace(key, rule=PLAIN))
            return {replace(k, rule=LONG): cell for k, cell in found.items()}
        encoding = self.encoding(key)
        if isinstance(encoding, str):
            return {key: Cell(encoding)}
        if key.protocol == VALIDATION:
            return self._validated(key)
        same = self.known.get((replace(key, rule=PLAIN), signature(encoding)))
        if same is not None:
            return {key: same}
        made = self._sweep(key, encoding)
        self._remember(made, encoding)
        return made

    def _validated(self, key: Key) -> dict[Key, Cell]:
        """A cell of the choice of options, where the validation documents allow its length."""
        if key.shape not in self.validation:
            todo = tuning.validation(self.todo, key.shape)
            self.validation[key.shape] = _Scorer(todo, {}) if todo else None
        own = self.validation[key.shape]
        if own is None:
            return {key: Cell("unsupported_length")}
        found = own(replace(key, protocol=protocols.SAME_TARGETS))
        return {replace(k, protocol=VALIDATION): cell for k, cell in found.items()}

    @cached_property
    def long(self) -> "_Scorer":
        """The run that was trained longer."""
        return _Scorer(self.todo.of_long(), {})

    def _remember(self, made: dict[Key, Cell], encoding: PositionalEncoding | str) -> None:
        """Keep what an encoding gave, for cells that would measure the same."""
        known = None if isinstance(encoding, str) else signature(encoding)
        if known is not None:
            for key, cell in made.items():
                self.known.setdefault((replace(key, rule=PLAIN), known), cell)

    def encoding(self, key: Key) -> PositionalEncoding | str:
        """The encoding of a cell, or the status that says why there is none."""
        rule = self.rules[key.rule]
        shape = max(protocols.together(key.protocol, key.shape, self.todo.shapes))
        trained = self.model.posenc.measured_at(shape)
        try:
            encoding = rule.applied(trained, self.todo.train_length, grid.count(shape)).eval()
        except UnsupportedRescale:
            return "unsupported_rescale"
        if key.protocol == protocols.PREFIX and self._depends_on_the_end(rule, encoding):
            return "unsupported_protocol"
        if not self.model.has_positions(key.shape, encoding):
            return "unsupported_length"
        return encoding

    def _sweep(self, key: Key, encoding: PositionalEncoding) -> dict[Key, Cell]:
        """The cells that come off the forward passes of one; a length that needs too much has none.

        Of lengths that share passes the longest is left out until the others fit.
        """
        shared = protocols.together(key.protocol, key.shape, self.todo.shapes)
        shapes = [n for n in shared if self.model.has_positions(n, encoding)]
        found: dict[Shape, Cell] = {}
        while shapes:
            try:
                scored, losses = self._score(key, encoding, shapes)
            except score.OutOfMemory:
                found[shapes.pop()] = Cell(kept.OUT_OF_MEMORY)
                continue
            for shape, blocks in zip(shapes, scored, strict=True):
                ok = score.finite(blocks)
                found[shape] = Cell("ok", blocks) if ok else Cell("nonfinite")
            if found[shape].blocks and key.protocol != protocols.STRIDE1:
                found[shape].positions = losses.buckets(self.todo.train_length)
            break
        return {replace(key, shape=n): cell for n, cell in found.items()}

    def _score(
        self, key: Key, encoding: PositionalEncoding, shapes: list[Shape]
    ) -> tuple[list[list[Block]], Losses]:
        """Blocks of every shape, off the same forward passes, and the loss by position."""
        config, losses = self.config, Losses()
        how = self.token_bytes, config.batch_tokens, self.limit
        if key.protocol == protocols.PREFIX:
            readings = protocols.readings(self.todo.data, [n for (n,) in shapes], config)
            return score.score_together(self.model, encoding, readings, *how, losses.add)[
                1:
            ], losses
        windows = protocols.read(key.protocol, self.todo.data, key.shape, config, key.distance)
        blocks = score.score(self.model, encoding, windows, *how, config.draws, losses.add)
        return [blocks], losses

    def _depends_on_the_end(self, rule: Rescale, encoding: PositionalEncoding) -> bool:
        """Whether the first tokens of a longer sequence are not what they are on their own."""
        acting = [encoding, *(encoding.for_layer(i)[0] for i in range(len(self.model.blocks)))]
        if rule.depends_on_total_length or any(e.depends_on_total_length for e in acting):
            return True
        sampler, lengths = self.model.sampler, [grid.count(n) for n in self.todo.shapes]
        known = [n for n in lengths if sampler.max_length is None or n <= sampler.max_length]
        if sampler.random_test or not known:
            return sampler.random_test
        longest = sampler.testing(known[-1])
        return any(not torch.equal(sampler.testing(n), longest[:, :n]) for n in known)
