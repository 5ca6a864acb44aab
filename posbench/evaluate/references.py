"""References on the frozen targets, and the gate that decides whether a run is stamped."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posbench import runs
from posbench.data import cache
from posbench.data.dataset import Dataset
from posbench.errors import ConfigError, RunError
from posbench.evaluate import statistics
from posbench.evaluate.ngram import ALGORITHM, Ngram
from posbench.settings import EvalConfig, TrainConfig, changed

STAMP = "demo: below n-gram"
#: the stamp of pictures and clips
NO_REFERENCE = "no n-gram reference, so no verdict"
#: nats per byte by which a run must beat the n-gram model
MARGIN = 0.05


@dataclass(frozen=True)
class NgramReference:
    """The n-gram model on the chosen blocks."""

    order: int
    train_bytes: int
    nats_per_token: float
    nats_per_byte: float


def ngram(data: Dataset, config: EvalConfig) -> NgramReference:
    """The best interpolated n-gram model (n <= 8, over bytes) on the frozen targets; cached."""
    chosen = {d.id: d.ends[: config.blocks] for d in data.targets.documents[: config.docs]}
    entry = "ngram-" + cache.key(
        ALGORITHM, data.content_sha256, data.split["sha256"], data.targets.sha256
    )
    kept = cache.read(f"{entry}.json")
    found: dict[str, Any] | None = None
    if kept is not None:
        try:
            found = json.loads(kept)
        except ValueError:
            found = None
    if found is None:
        found = _count(data)
        cache.write(f"{entry}.json", json.dumps(found).encode())
    blocks = [found["blocks"][d][str(e)] for d, ends in chosen.items() for e in ends]
    nats, size = sum(b[0] for b in blocks), sum(b[1] for b in blocks)
    tokens = len(blocks) * data.targets.scored
    return NgramReference(found["order"], found["train_bytes"], nats / tokens, nats / size)


def trained_long(run: runs.Run, path: str) -> runs.Run:
    """The run of the headroom; ConfigError unless it fits `run` in all but its length.

    Scheme and seed may be others: one reference serves all schemes.
    """
    try:
        long = runs.Run.open(Path(path))
        long.require_finished()
        _ = long.weights
    except RunError as error:
        raise ConfigError(f"eval.long={path}: {error}") from None

    def tokens(train: TrainConfig) -> int:
        return train.steps * train.batch_size * train.seq_len

    def data(one: runs.Run) -> list[Any]:
        facts = one.manifest.get("data", {})
        hashes = [facts.get(f"{what}_sha256") for what in ("content", "tokenizer", "targets")]
        return [*hashes, changed(one.config.data)]

    mine, other = run.config, long.config
    reason = ""
    if data(run) != data(long):
        reason = "its data, tokenizer or targets are others"
    elif changed(mine.model) != changed(other.model):
        reason = "its model options are others"
    elif other.train.seq_len <= mine.train.seq_len:
        reason = f"its train.seq_len={other.train.seq_len} is not above {mine.train.seq_len}"
    elif tokens(mine.train) != tokens(other.train):
        reason = f"it saw {tokens(other.train):,} tokens, not {tokens(mine.train):,}"
    if reason:
        raise ConfigError(f"eval.long={path} is no reference for {run.path}: {reason}")
    return long


def _count(data: Dataset) -> dict[str, Any]:
    """Nats and bytes of every frozen block under the n-gram model."""
    model = Ngram.choose(data.train_text, data.validation_text)
    sizes = data.tokenizer.token_bytes()
    queries, places = [], []
    for document in data.targets.documents:
        tokens = data.test[document.id]
        for end in document.ends:
            first = end - data.targets.scored + 1
            text = data.tokenizer.decode(tokens[max(0, first - 16) : end + 1])
            queries.append((text, int(sizes[tokens[first : end + 1]].sum())))
            places.append((document.id, end))
    blocks: dict[str, dict[str, list[float]]] = {}
    for (name, end), nats, (_, size) in zip(places, model.nats(queries), queries, strict=True):
        blocks.setdefault(name, {})[str(end)] = [nats, size]
    return {"order": model.order, "train_bytes": model.train_bytes, "blocks": blocks}


def gate(
    contexts: dict[int, np.ndarray], per_byte: float, reference: NgramReference
) -> dict[str, Any]:
    """Whether a run may get a verdict.

    `contexts` maps L/8, L/4, L/2 and L to the losses of the units (documents, or blocks of a text
    cut in parts) in nats per token [n]; `per_byte` is the loss at L in nats per byte. (a) the loss
    falls at every step, and the 95 % interval of the last step's fall lies above 0; (b) it is at
    least 0.05 nats per byte below the n-gram model's.
    """
    lengths = sorted(contexts)
    means = [float(contexts[n].mean()) for n in lengths]
    _, low, _ = statistics.interval(contexts[lengths[-2]] - contexts[lengths[-1]])
    falls = all(a > b for a, b in zip(means, means[1:], strict=False)) and low > 0
    margin = reference.nats_per_byte - per_byte
    return {
        "contexts": dict(zip(map(str, lengths), means, strict=True)),
        "falls": bool(falls),
        "last_step_lo": None if np.isnan(low) else low,
        "nats_per_byte": per_byte,
        "ngram_nats_per_byte": reference.nats_per_byte,
        "ngram_order": reference.order,
        "ngram_train_bytes": reference.train_bytes,
        "margin": margin,
        "passed": bool(falls and margin >= MARGIN),
    }
