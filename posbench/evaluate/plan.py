"""What an evaluation of a run will do, checked before anything is written."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posbench import devices, grid, plugins, registry, runs, settings
from posbench import model as models
from posbench.data.dataset import Dataset
from posbench.data.grids import GridDataset
from posbench.data.targets import SHORTEST
from posbench.data.tasks import TaskDataset
from posbench.errors import ConfigError, DataError, UnsupportedRescale
from posbench.evaluate import protocols, references, refusals
from posbench.evaluate.score import Block
from posbench.grid import Shape
from posbench.rescale.base import Rescale
from posbench.settings import EvalConfig, SweepConfig

#: the rescaling `none`: the trained model as it is
PLAIN = "none"
#: in the place of a rescaling: another run, trained at longer lengths, as it is
LONG = "trained_long"
#: in the place of a protocol: same_targets, on targets of the validation documents
VALIDATION = "validation"
#: tokens of context from which the unit b is counted
CONTEXT = 16


@dataclass
class Cell:
    """Outcome of one (rescaling, protocol, length): blocks, or the reason why there are none."""

    status: str
    blocks: list[Block] = field(default_factory=list)
    #: see posbench.evaluate.positions.Losses.buckets
    positions: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class Key:
    """What a cell is a function of, within one evaluation folder."""

    rule: str
    protocol: str
    shape: Shape
    #: of `repeat`: how far back the earlier copy lies; None = at the start of the window
    distance: int | None = None

    @property
    def length(self) -> int:
        """Tokens of the shape."""
        return grid.count(self.shape)


@dataclass
class Plan:
    """An evaluation of one run that was checked and can start."""

    run: runs.Run
    data: Dataset | GridDataset | TaskDataset
    #: (rescaling, protocol) of the rows, in the order given
    rows: list[tuple[Rescale, str]]
    #: with lengths and blocks filled in
    eval: EvalConfig
    #: test shapes, ascending; (T,) for text
    shapes: list[Shape]
    #: the scheme is given coordinates
    on_a_grid: bool
    #: the run that was trained longer, for the headroom
    long: runs.Run | None = None

    @property
    def train_length(self) -> int:
        return self.run.config.train.seq_len

    @property
    def train_shape(self) -> Shape:
        return self.run.config.shape

    def targets_hash(self, protocol: str, length: int) -> str:
        """Hash of the tokens that are scored: rows compare only where it is the same."""
        before = grid.count(self.shapes[-1]) - length if protocol == protocols.PREFIX else 0
        documents = self.data.targets.documents[: self.eval.docs]
        if protocol in (protocols.NONOVERLAPPING, protocols.SLIDING):
            chosen = [[d.id, self.data.targets.longest] for d in documents]
        else:
            chosen = [[d.id, *(e - before for e in d.ends[: self.eval.blocks])] for d in documents]
        return self._hash([length, chosen] if protocol == protocols.GENERATED else chosen)

    def windows_hash(self, protocol: str) -> str:
        """What stands for the targets where each length has others; empty where all have the same.

        Of `prefix` the windows that all lengths are read off, of `generated` the task.
        """
        if protocol == protocols.GENERATED:
            return self._hash([self.data.name, self.eval.docs])
        if protocol != protocols.PREFIX:
            return ""
        longest = grid.count(self.shapes[-1])
        return self._hash([longest, self.targets_hash(protocol, longest)])

    def _hash(self, chosen: list[Any]) -> str:
        return settings.digest([self.data.content_sha256, self.data.tokenizer.sha256, chosen], 12)

    def fits(self, shape: Shape) -> bool:
        """Whether the frozen targets have that much before them."""
        return self.data.reaches(shape)

    def rules(self) -> dict[str, Rescale]:
        """Rescalings by their row name, in the order given."""
        return {row_name(rule): rule for rule, _ in self.rows}

    def tested(self, protocol: str) -> list[Shape]:
        """Test shapes of a protocol, ascending."""
        own = self.eval.window if protocol == protocols.SLIDING else None
        return [(own,)] if own else self.shapes

    def wanted(self) -> list[Key]:
        """The rows' cells: ascending lengths within a rescaling and protocol."""
        return [
            Key(row_name(rule), p, n, d)
            for rule, p in self.rows
            for n in self.tested(p)
            for d in self.distances(p, n)
        ]

    def distances(self, protocol: str, shape: Shape) -> Sequence[int | None]:
        """How far back the copies of a cell lie, ascending; [None] but for `eval.distances`."""
        given = self.eval.distances
        if protocol != protocols.REPEAT or given is None:
            return [None]
        least, most = self.reach_of_copies(grid.count(shape))
        return [d for d in given if least <= d <= most]

    def reach_of_copies(self, length: int) -> tuple[int, int]:
        """Least and largest distance of an earlier copy that a window of `repeat` has room for."""
        scored, start = self.data.targets.scored, int(self.data.tokenizer.start is not None)
        return scored, length - scored + 1 - start

    def needed(self) -> list[Key]:
        """The cells of the references: contexts of the gate, crop, and T = L of each protocol.

        T = L of `prefix` belongs to the windows of the longest length: only if it is asked for.
        Pictures and clips have T = L alone, tasks none.
        """
        L, shape = self.train_length, self.train_shape
        if not self.fits(shape):
            return []
        if isinstance(self.data, TaskDataset):
            return []
        if isinstance(self.data, GridDataset):
            return [Key(PLAIN, protocols.SAME_TARGETS, shape)]
        keys = [Key(PLAIN, protocols.by_context(c), (c,)) for c in gate_contexts(L)]
        keys += [Key(PLAIN, protocols.STRIDE1, n) for n in ((CONTEXT,), shape)]
        if L >= SHORTEST:
            asked = sorted({protocol for _, protocol in self.rows})
            keys += [Key(PLAIN, p, shape) for p in asked if self._has_base(p)]
        return keys

    def _has_base(self, protocol: str) -> bool:
        """Whether a protocol is measured at T = L although no row may ask for it."""
        if protocol == protocols.PREFIX:
            return self.train_shape in self.shapes
        return protocol != protocols.SLIDING or (self.eval.stride or 0) <= self.train_length

    def keys(self) -> list[Key]:
        """Every cell, in the order in which they are computed."""
        return list(
            dict.fromkeys(
                [
                    *self.needed(),
                    *self.long_keys(),
                    *self.controls(),
                    *self.tuning_keys(),
                    *self.wanted(),
                ]
            )
        )

    def long_keys(self) -> list[Key]:
        """Cells of the headroom: past L, as far as the longer run was trained."""
        last = self.long.config.train.seq_len if self.long else 0
        shapes = {key.shape for key in self.wanted() if self.train_length < key.length <= last}
        return [Key(LONG, protocols.SAME_TARGETS, shape) for shape in sorted(shapes)]

    def of_long(self) -> "Plan":
        """The longer run on the same targets, without rows."""
        assert self.long is not None
        return replace(self, run=self.long, rows=[], long=None)

    def controls(self) -> list[Key]:
        """What rows of `repeat` are compared with: the same windows without the earlier copy."""
        rows = [key for key in self.wanted() if key.protocol == protocols.REPEAT]
        plain = [replace(key, protocol=protocols.SAME_TARGETS, distance=None) for key in rows]
        return list(dict.fromkeys(plain))

    def choices(self) -> dict[str, list[str]]:
        """Rescaling -> the rows of its option sets, where `eval.tune` has several of them."""
        found: dict[str, list[str]] = {}
        for rule, protocol in self.rows if self.eval.tune else []:
            if protocol == protocols.SAME_TARGETS:
                found.setdefault(rule.name, []).append(row_name(rule))
        return {name: rows for name, rows in found.items() if len(rows) > 1}

    def tuning_keys(self) -> list[Key]:
        """Cells of the track `val_tuned`: every option set on the validation documents."""
        rows = [row for several in self.choices().values() for row in several]
        return [Key(row, VALIDATION, shape) for row in rows for shape in self.shapes]

    def plugins(self) -> list[dict[str, str]]:
        """The plug-in files of the rescalings."""
        found = [p for rule, _ in self.rows for p in plugins.named("rescale", rule.config)]
        return [p for i, p in enumerate(found) if p not in found[:i]]

    @property
    def folder(self) -> Path:
        """Evaluation folder: named by what decides its rows."""
        identity = {
            "schema": settings.SCHEMA,
            "weights": self.run.manifest["weights_sha256"],
            "targets": self.data.targets.sha256,
            "eval": settings.changed(replace(self.eval, protocol=protocols.SAME_TARGETS)),
            "rows": [[settings.changed(rule.config), protocol] for rule, protocol in self.rows],
        }
        if self.long is not None:
            identity["long"] = self.long.manifest["weights_sha256"]
        if self.plugins():
            identity["plugins"] = self.plugins()
        return self.run.path / "evals" / settings.digest(identity)


def gate_contexts(train_length: int) -> list[int]:
    """L/8, L/4, L/2 and L."""
    return [max(1, train_length // n) for n in (8, 4, 2, 1)]


def row_name(rule: Rescale) -> str:
    """`yarn@8`, `yarn@auto beta=auto`, `none`: the rescaling with its factor and other options."""
    return " ".join([rule.label, *rule.options])


def plan(run: runs.Run, sweeps: Sequence[SweepConfig]) -> Plan:
    """Check a run, its data and the lengths; nothing is written."""
    run.require_finished()
    _ = run.weights
    data = runs.load_dataset(run, sweeps[0].data.path)
    L = run.config.train.seq_len
    encoding = models.checked(run.config, run.weights, data.tokenizer.vocab_size)
    rows = []
    for sweep in sweeps:
        rule = registry.get("rescale", sweep.rescale.name)(sweep.rescale)
        with contextlib.suppress(UnsupportedRescale):
            rule.applied(encoding.measured_at(run.config.shape), L, L)
        rows.append((rule, sweep.eval.protocol))
    only = data.protocol if isinstance(data, TaskDataset) else protocols.SAME_TARGETS
    for protocol in sorted({sweep.eval.protocol for sweep in sweeps}):
        if not isinstance(data, Dataset) and protocol != protocols.SAME_TARGETS:
            raise ConfigError(f"eval.protocol={protocol}: data={data.name} has {only} only")
    if isinstance(data, TaskDataset):
        rows = [(rule, only) for rule, _ in rows]
    config, shapes = _filled(sweeps[0].eval, run, data)
    long = references.trained_long(run, config.long) if config.long else None
    made = Plan(run, data, rows, config, shapes, encoding.on_a_grid, long)
    refusals.check(made)
    return made


def _filled(
    config: EvalConfig, run: runs.Run, data: Dataset | GridDataset | TaskDataset
) -> tuple[EvalConfig, list[Shape]]:
    """Evaluation settings with nothing left open, and the test shapes, checked against the data."""
    devices.pick(config.device, "eval.device")
    targets = data.targets
    shapes = data.test_shapes(config.shapes, config.lengths)
    if not isinstance(data, GridDataset):
        L = run.config.train.seq_len
        default = protocols.default_lengths(L, targets.longest, data.shortest)
        shapes = shapes or [(n,) for n in default]
        if not shapes:
            raise DataError(f"eval.lengths: {run.path} has only {targets.longest} held-out tokens")
        if max(shapes) > (targets.longest,):
            raise DataError(
                f"eval.lengths={max(shapes)[0]}: the held-out documents of data={data.name} allow "
                f"at most {targets.longest} tokens"
            )
    available = len(targets.documents)
    if config.docs is not None and config.docs > available:
        raise ConfigError(f"eval.docs={config.docs}: the targets hold {available} documents")
    if config.blocks is not None and config.blocks > targets.blocks:
        raise ConfigError(
            f"eval.blocks={config.blocks}: the targets hold {targets.blocks} blocks a document"
        )
    config = replace(config, blocks=config.blocks or data.blocks)
    if not isinstance(data, GridDataset):
        return replace(config, lengths=[n for (n,) in shapes]), shapes
    return replace(config, shapes=[grid.text(shape) for shape in shapes]), shapes
