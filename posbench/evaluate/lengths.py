"""The sweep of one run: every rescaling, protocol and test length becomes a row.

A cell is one forward sweep over the windows of (rescaling, protocol, length). Finished cells are
kept in `cells.jsonl`, so that an interrupted sweep goes on; rows are computed from cells alone, so
a length that is added leaves the other rows as they were.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from posbench import model as models
from posbench import registry, runs, settings, train
from posbench.data.dataset import Dataset
from posbench.encodings.base import UnsupportedRescale
from posbench.errors import ConfigError, DataError
from posbench.evaluate import protocols, score
from posbench.evaluate.score import Block
from posbench.files import write_atomic, write_json
from posbench.rescale.base import Rescale
from posbench.settings import SweepConfig

CELLS, LENGTHS, BLOCKS = "cells.jsonl", "lengths.csv", "blocks.csv"
PLAIN = "none"


@dataclass
class Cell:
    """Outcome of one (rescaling, protocol, length): blocks, or the reason why there are none."""

    status: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Key:
    """What a cell is a function of, within one evaluation folder."""

    rule: str
    protocol: str
    length: int


@dataclass
class Plan:
    """An evaluation of one run that was checked and can start."""

    run: runs.Run
    data: Dataset
    sweeps: list[SweepConfig]
    lengths: list[int]

    @property
    def train_length(self) -> int:
        return self.run.config.train.seq_len

    def rules(self) -> dict[str, Rescale]:
        """Rescalings by their row name, in the order given."""
        found = {}
        for sweep in self.sweeps:
            rule = registry.get("rescale", sweep.rescale.name)(sweep.rescale)
            found[row_name(rule)] = rule
        return found

    def wanted(self) -> list[Key]:
        """The rows' cells: ascending lengths within a rescaling and protocol."""
        keys = []
        for sweep in self.sweeps:
            rule = row_name(registry.get("rescale", sweep.rescale.name)(sweep.rescale))
            keys += [Key(rule, sweep.eval.protocol, length) for length in self.lengths]
        return keys

    def needed(self) -> list[Key]:
        """The cells of the references: contexts of the gate, crop, and T = L of each protocol."""
        L, longest = self.train_length, self.data.targets.longest
        if longest < L:
            return []
        keys = [Key(PLAIN, protocols.by_context(c), c) for c in gate_contexts(L)]
        keys.append(Key(PLAIN, protocols.STRIDE1, L))
        keys += [Key(PLAIN, p, L) for p in {s.eval.protocol for s in self.sweeps} if L >= 64]
        return keys

    @property
    def folder(self) -> Path:
        """Evaluation folder: named by what decides its rows."""
        identity = {
            "schema": settings.SCHEMA,
            "weights": self.run.manifest["weights_sha256"],
            "targets": self.data.targets.sha256,
            "lengths": self.lengths,
            "sweeps": [settings.changed(s) for s in self.sweeps],
        }
        return self.run.path / "evals" / settings.digest(identity)


def gate_contexts(train_length: int) -> list[int]:
    """L/8, L/4, L/2 and L."""
    return [max(1, train_length // n) for n in (8, 4, 2, 1)]


def row_name(rule: Rescale) -> str:
    """`yarn@8`, `yarn@auto beta=auto`, `none`: the rescaling with its factor and other options."""
    name = rule.name + (f"@{rule.factor}" if rule.factor else "")
    return " ".join([name, *rule_options(rule)])


def rule_options(rule: Rescale) -> list[str]:
    """Options of a rescaling that are not at their default, the factor aside."""
    changed = settings.changed(rule.config)
    return [f"{k}={v}" for k, v in sorted(changed.items()) if k not in ("name", "factor")]


def plan(run: runs.Run, sweeps: Sequence[SweepConfig]) -> Plan:
    """Check a run, its data and the lengths; nothing is written."""
    run.require_finished()
    _ = run.weights
    data = runs.load_dataset(run)
    config = sweeps[0].eval
    train.device(config.device, "eval.device")
    longest, available = data.targets.longest, len(data.targets.documents)
    lengths = config.lengths or protocols.default_lengths(run.config.train.seq_len, longest)
    if not lengths:
        raise DataError(
            f"eval.lengths: the held-out text of {run.path} holds {longest} tokens only"
        )
    if max(lengths) > longest:
        raise DataError(
            f"eval.lengths={max(lengths)}: the held-out documents of data={data.name} allow at "
            f"most {longest} tokens"
        )
    if config.docs is not None and config.docs > available:
        raise ConfigError(f"eval.docs={config.docs}: the targets hold {available} documents")
    if config.blocks > data.targets.blocks:
        raise ConfigError(
            f"eval.blocks={config.blocks}: the targets hold {data.targets.blocks} blocks a document"
        )
    return Plan(run, data, list(sweeps), lengths)


def evaluate(todo: Plan, report: Callable[[str], None] = lambda item: None) -> Path:
    """Compute what is missing of an evaluation; returns its folder, complete."""
    from posbench.evaluate import rows

    folder = todo.folder
    if is_finished(folder):
        return folder
    with runs.locked(folder):
        manifest = {
            "status": "running",
            "started": runs.now(),
            "finished": None,
            "run_id": todo.run.manifest["run_id"],
            "lengths": todo.lengths,
            "rescalings": list(todo.rules()),
            "eval": asdict(todo.sweeps[0].eval),
            "code": runs.code_version(),
            "environment": runs.environment(),
        }
        write_json(folder / runs.MANIFEST, manifest)
        cells = _cells(todo, folder, report)
        made = rows.build(todo, cells)
        rows.write(made, folder)
        (folder / CELLS).unlink(missing_ok=True)
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
    return bool(manifest.get("status") == "finished" and (folder / LENGTHS).is_file())


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
            cells[Key(**stored["key"])] = Cell(stored["cell"]["status"], blocks)
        except (ValueError, KeyError, TypeError):
            break
        good.append(f"{line}\n")
    write_atomic(path, "".join(good))
    return cells


class _Scorer:
    """The run's model, loaded once, and what every cell needs of it."""

    def __init__(self, todo: Plan):
        self.todo = todo
        self.config = config = todo.sweeps[0].eval
        if config.threads:
            import torch

            torch.set_num_threads(config.threads)
        self.rules = {PLAIN: registry.get("rescale", PLAIN)(None), **todo.rules()}
        self.model = models.build(todo.run.config, todo.data.tokenizer.vocab_size)
        models.load_weights(self.model, todo.run.weights)
        device = train.device(config.device, "eval.device")
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
        if encoding.max_length is not None and key.length > encoding.max_length:
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
            )
        except score.OutOfMemory:
            return Cell("out_of_memory")
        return Cell("ok", blocks) if score.finite(blocks) else Cell("nonfinite")


def folders(run: runs.Run) -> Iterable[Path]:
    """Complete evaluation folders of a run."""
    return (p for p in sorted((run.path / "evals").glob("*")) if is_finished(p))
