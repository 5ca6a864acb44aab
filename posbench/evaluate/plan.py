"""What an evaluation of a run will do, checked before anything is written."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from posbench import model as models
from posbench import registry, runs, settings, train
from posbench.data.dataset import Dataset
from posbench.encodings.base import UnsupportedRescale
from posbench.errors import ConfigError, DataError
from posbench.evaluate import protocols
from posbench.evaluate.score import Block
from posbench.rescale.base import Rescale
from posbench.settings import SweepConfig

#: the rescaling `none`: the trained model as it is
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
    encoding = models.checked(run.config, run.weights, data.tokenizer.vocab_size)
    for sweep in sweeps:
        rule = registry.get("rescale", sweep.rescale.name)(sweep.rescale)
        with contextlib.suppress(UnsupportedRescale):
            rule.applied(encoding, run.config.train.seq_len, run.config.train.seq_len)
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
