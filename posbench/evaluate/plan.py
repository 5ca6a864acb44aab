"""What an evaluation of a run will do, checked before anything is written."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posbench import devices, plugins, registry, runs, settings
from posbench import model as models
from posbench.data.dataset import Dataset
from posbench.data.targets import SHORTEST
from posbench.errors import ConfigError, DataError, UnsupportedRescale
from posbench.evaluate import protocols
from posbench.evaluate.score import Block
from posbench.rescale.base import Rescale
from posbench.settings import EvalConfig, SweepConfig

#: the rescaling `none`: the trained model as it is
PLAIN = "none"
#: blocks of a document unless eval.blocks says otherwise
BLOCKS = 4


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
    #: (rescaling, protocol) of the rows, in the order given
    rows: list[tuple[Rescale, str]]
    #: with lengths and blocks filled in
    eval: EvalConfig

    @property
    def train_length(self) -> int:
        return self.run.config.train.seq_len

    @property
    def lengths(self) -> list[int]:
        assert self.eval.lengths is not None
        return self.eval.lengths

    def targets_hash(self, protocol: str, length: int) -> str:
        """Hash of the tokens that are scored: rows compare only where it is the same."""
        before = max(self.lengths) - length if protocol == protocols.PREFIX else 0
        documents = self.data.targets.documents[: self.eval.docs]
        if protocol == protocols.NONOVERLAPPING:
            chosen = [[d.id, self.data.targets.longest] for d in documents]
        else:
            chosen = [[d.id, *(e - before for e in d.ends[: self.eval.blocks])] for d in documents]
        return self._hash(chosen)

    def windows_hash(self, protocol: str) -> str:
        """Hash of the windows that all lengths are read off; empty where each has its own."""
        if protocol != protocols.PREFIX:
            return ""
        longest = max(self.lengths)
        return self._hash([longest, self.targets_hash(protocol, longest)])

    def _hash(self, chosen: list[Any]) -> str:
        return settings.digest([self.data.content_sha256, self.data.tokenizer.sha256, chosen], 12)

    def rules(self) -> dict[str, Rescale]:
        """Rescalings by their row name, in the order given."""
        return {row_name(rule): rule for rule, _ in self.rows}

    def wanted(self) -> list[Key]:
        """The rows' cells: ascending lengths within a rescaling and protocol."""
        return [Key(row_name(r), protocol, n) for r, protocol in self.rows for n in self.lengths]

    def needed(self) -> list[Key]:
        """The cells of the references: contexts of the gate, crop, and T = L of each protocol.

        T = L of `prefix` belongs to the windows of the longest length: only if it is asked for.
        """
        L, longest = self.train_length, self.data.targets.longest
        if longest < L:
            return []
        keys = [Key(PLAIN, protocols.by_context(c), c) for c in gate_contexts(L)]
        keys.append(Key(PLAIN, protocols.STRIDE1, L))
        if L >= SHORTEST:
            asked = sorted({protocol for _, protocol in self.rows})
            keys += [Key(PLAIN, p, L) for p in asked if p != protocols.PREFIX or L in self.lengths]
        return keys

    def keys(self) -> list[Key]:
        """Every cell, in the order in which they are computed."""
        return list(dict.fromkeys([*self.needed(), *self.wanted()]))

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
            rule.applied(encoding, L, L)
        rows.append((rule, sweep.eval.protocol))
    return Plan(run, data, rows, _filled(sweeps[0].eval, run, data))


def _filled(config: EvalConfig, run: runs.Run, data: Dataset) -> EvalConfig:
    """Evaluation settings with nothing left open, checked against the run's targets."""
    devices.pick(config.device, "eval.device")
    targets = data.targets
    lengths = config.lengths or protocols.default_lengths(run.config.train.seq_len, targets.longest)
    if not lengths:
        raise DataError(f"eval.lengths: {run.path} has only {targets.longest} held-out tokens")
    if max(lengths) > targets.longest:
        raise DataError(
            f"eval.lengths={max(lengths)}: the held-out documents of data={data.name} allow at "
            f"most {targets.longest} tokens"
        )
    available = len(targets.documents)
    if config.docs is not None and config.docs > available:
        raise ConfigError(f"eval.docs={config.docs}: the targets hold {available} documents")
    if config.blocks is not None and config.blocks > targets.blocks:
        raise ConfigError(
            f"eval.blocks={config.blocks}: the targets hold {targets.blocks} blocks a document"
        )
    blocks = config.blocks or min(BLOCKS, targets.blocks)
    return replace(config, lengths=lengths, blocks=blocks)
