"""What a piece of the plan will take, in floating-point operations and in seconds.

Counted as in posbench.flops, so that what a positional scheme adds does not enter; the rate does
know of it, since it is measured on finished cells, preset by preset where there are any. Passes
that rescalings turn out to share, or refuse, are counted all the same: evaluations are quicker.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Any

from posbench import flops, launch
from posbench.data import tasks
from posbench.data.targets import SCORED
from posbench.evaluate import protocols
from posbench.evaluate.plan import CONTEXT, gate_contexts
from posbench.report.spent import training_flops
from posbench.settings import RunConfig, SweepConfig

#: operations a second of one process on one thread, where no cell tells
RATE = 2.5e10
#: frozen targets of a built-in corpus: documents, blocks of each that are scored, longest length
DOCUMENTS, BLOCKS, LONGEST = 24, 4, 16_384


def training(config: RunConfig) -> float:
    """Operations of a training."""
    train = config.train
    vocabulary = flops.vocabulary(_tokenizer(config))
    return flops.training(config.model, vocabulary, train.seq_len, train.steps * train.batch_size)


def evaluation(overrides: Sequence[str], config: RunConfig) -> float:
    """Operations of one `posbench eval-lengths` of a run, references included."""
    L, model, vocabulary = config.train.seq_len, config.model, flops.vocabulary(_tokenizer(config))

    def passes(windows: float, length: int) -> float:
        return windows * flops.forward(model, vocabulary, length)

    text = hasattr(config.data, "tokenizer")
    total = 0.0
    for own in (sweep.eval for sweep in sweeps(tuple(overrides))):
        documents = own.docs or DOCUMENTS
        blocks = documents * (own.blocks or BLOCKS) if text else tasks.WINDOWS
        lengths = own.lengths or protocols.default_lengths(L, LONGEST)
        protocol, stride = own.protocol, own.stride
        if protocol == protocols.PREFIX:
            total += passes(blocks, max(lengths))
        elif protocol == protocols.NONOVERLAPPING:
            total += sum(passes(documents * LONGEST / n, n) for n in lengths)
        elif protocol == protocols.SLIDING:
            total += sum(passes(documents * LONGEST / (stride or n // 2), n) for n in lengths)
        else:
            # a copy is compared with none, options are chosen on validation documents
            each = 2 if protocol == protocols.REPEAT or own.tune else 1
            total += each * sum(passes(blocks, n) for n in lengths)
    if text:
        short = [n for n in (*gate_contexts(L), CONTEXT, L) if n < 64 or n == L]
        total += sum(passes(blocks * SCORED, n) for n in set(short))
    return total


@lru_cache(maxsize=256)
def sweeps(overrides: tuple[str, ...]) -> list[SweepConfig]:
    """The settings of every row of an evaluation."""
    return launch.sweeps(overrides)


def _tokenizer(config: RunConfig) -> str:
    return str(getattr(config.data, "tokenizer", "bpe64"))


class Rates:
    """Operations a second, from the manifests of finished runs."""

    def __init__(self, manifests: Sequence[Mapping[str, Any]]):
        found: dict[str, list[float]] = {}
        for manifest in manifests:
            if manifest["status"] == "finished" and manifest.get("seconds"):
                rate = training_flops(manifest) / manifest["seconds"]
                found.setdefault(str(manifest["preset"]).split("+")[0], []).append(rate)
        self._found = {preset: median(rates) for preset, rates in found.items()}

    @property
    def measured(self) -> bool:
        """Whether any run tells."""
        return bool(self._found)

    def of(self, preset: str | None = None) -> float:
        """The rate of a preset's runs, else of all runs, else RATE."""
        if preset in self._found:
            return self._found[str(preset)]
        return median(self._found.values()) if self._found else RATE
