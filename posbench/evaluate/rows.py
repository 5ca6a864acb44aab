"""From cells to the tidy table: one row per rescaling, protocol and test length."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from posbench import grid
from posbench.data.dataset import Dataset
from posbench.data.tasks import TaskDataset
from posbench.evaluate import (
    distances,
    positions,
    protocols,
    references,
    statistics,
    tuning,
    verdicts,
)
from posbench.evaluate.plan import CONTEXT, LONG, PLAIN, Cell, Key, Plan, gate_contexts
from posbench.evaluate.score import Block
from posbench.files import write_atomic
from posbench.rescale.base import Rescale

LENGTHS, BLOCKS = "lengths.csv", "blocks.csv"
COLUMNS = [
    "run_id", "name", "posenc", "preset", "positions", "rescale", "factor", "scale", "data",
    "tokenizer", "tier", "track", "seed", "protocol", "train_len", "test_len", "ratio", "n_docs",
    "n_eff", "n_blocks", "n_targets", "targets_hash", "mean_context", "nll", "nll_lo", "nll_hi",
    "ppl", "bpb", "crop_nll", "gain", "gain_lo", "gain_hi", "verdict", "status", "dtype",
    "options", "base_nll", "ngram_nll", "stamp", "windows_hash", "train_shape", "test_shape",
    "stride", "accuracy", "exact", "control_nll", "repeat_gain", "repeat_lo", "repeat_hi",
    "distance", "chance", *verdicts.COLUMNS, "chosen",
]  # fmt: skip
BLOCK_COLUMNS = [
    "rescale", "factor", "options", "protocol", "test_len", "document", "block", "end", "nats",
    "tokens", "bytes", "test_shape", "correct", "distance",
]  # fmt: skip
#: what intervals run over where samples are few: parts of one file, regions of a picture
BLOCKWISE = ("blocks", "regions")


@dataclass
class Table:
    """What an evaluation folder holds."""

    lengths: pd.DataFrame
    blocks: pd.DataFrame
    positions: pd.DataFrame
    distances: pd.DataFrame
    gate: dict[str, Any]
    interval_over: str


def build(todo: Plan, cells: dict[Key, Cell]) -> Table:
    """Rows, blocks and the gate of an evaluation."""
    over = todo.data.interval_over
    ngram = references.ngram(todo.data, todo.eval) if isinstance(todo.data, Dataset) else None
    gate = _gate(todo, cells, ngram, over)
    stamp = _stamp(todo, gate)
    rules = todo.rules()
    made = []
    for key in todo.wanted():
        rule, cell = rules[key.rule], cells[key]
        scale = _scale(todo, rule, key)
        row = (
            _facts(todo, key)
            | rule.columns()
            | {
                "scale": scale if math.isfinite(scale) else None,
                "status": cell.status,
                "stamp": stamp,
                "ngram_nll": ngram.nats_per_token if ngram and _frozen(todo, key) else None,
            }
            | (_measured(todo, cells, key, over) if cell.status == "ok" else {})
        )
        if cell.status == "ok" and verdicts.may_have_one(row, gate["passed"]):
            row["verdict"] = verdicts.verdict(row)
        made.append(row)
    known = dict(zip(todo.wanted(), made, strict=True))
    made += tuning.rows(
        todo,
        cells,
        known,
        lambda key: _facts(todo, key) | {"rescale": rules[key.rule].name, "stamp": stamp},
    )
    # as objects: a refusal, which has no counts, must not make 3 documents 3.0 in other rows
    table = pd.DataFrame(made, columns=COLUMNS, dtype=object)
    by_place = positions.table(todo, cells), distances.table(todo, cells)
    return Table(table, _block_table(todo, cells), *by_place, gate, over)


def units(blocks: list[Block], over: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean loss in nats per token of every document (or block), and its scored tokens."""
    sums: dict[Any, list[float]] = {}
    for b in blocks:
        unit = (b.document, b.block) if over in BLOCKWISE else b.document
        total = sums.setdefault(unit, [0.0, 0])
        total[0] += b.nats
        total[1] += b.tokens
    nats, tokens = np.array(list(sums.values())).T
    return nats / tokens, tokens


def _measured(todo: Plan, cells: dict[Key, Cell], key: Key, over: str) -> dict[str, Any]:
    """Loss, intervals and gain of a cell that was scored."""
    blocks = cells[key].blocks
    nats, tokens = [b.nats for b in blocks], [b.tokens for b in blocks]
    nll = statistics.summed(nats, tokens)
    means, weights = units(blocks, over)
    _, low, high = statistics.interval(means)
    crop = cells.get(Key(PLAIN, protocols.STRIDE1, todo.train_shape))
    same = _frozen(todo, key)
    at_length = (Key(PLAIN, p, todo.train_shape) for p in (key.protocol, protocols.SAME_TARGETS))
    usable = (cells[k] for k in at_length if k in cells and _hash(todo, k) == _hash(todo, key))
    moves = key.protocol == protocols.GENERATED  # other tokens at every length
    base = None if moves else next(usable, crop if same else None)
    row: dict[str, Any] = {
        "n_docs": len({b.document for b in blocks}),
        "n_eff": statistics.n_effective(weights),
        "n_blocks": len(blocks),
        "n_targets": sum(tokens),
        "nll": nll,
        "nll_lo": low,
        "nll_hi": high,
        "ppl": perplexity(nll),
        "bpb": sum(nats) / sum(b.bytes for b in blocks) / math.log(2),
        "accuracy": math.fsum(b.correct for b in blocks) / sum(tokens),
        "exact": sum(b.correct == b.tokens for b in blocks) / len(blocks),
    }
    if base is not None and base.status == "ok":
        row["base_nll"] = statistics.summed(
            [b.nats for b in base.blocks], [b.tokens for b in base.blocks]
        )
    if crop is not None and crop.status == "ok" and same:
        reference, _ = units(crop.blocks, over)
        row["crop_nll"] = statistics.summed(
            [b.nats for b in crop.blocks], [b.tokens for b in crop.blocks]
        )
        row["gain"] = row["crop_nll"] - nll
        _, row["gain_lo"], row["gain_hi"] = statistics.interval(reference - means)
        row |= _judged(cells, key, means, reference, over)
    control = cells.get(Key(key.rule, protocols.SAME_TARGETS, key.shape))
    if key.protocol == protocols.REPEAT and control is not None and control.status == "ok":
        reference, _ = units(control.blocks, over)
        row["control_nll"] = statistics.summed(
            [b.nats for b in control.blocks], [b.tokens for b in control.blocks]
        )
        row["repeat_gain"] = row["control_nll"] - nll
        _, row["repeat_lo"], row["repeat_hi"] = statistics.interval(reference - means)
    return row


def _judged(
    cells: dict[Key, Cell], key: Key, means: np.ndarray, crop: np.ndarray, over: str
) -> dict[str, Any]:
    """Gain in units of b, headroom and share; not of `repeat`, whose tokens stand there twice."""
    short = cells.get(Key(PLAIN, protocols.STRIDE1, (CONTEXT,)))
    if key.protocol == protocols.REPEAT or short is None or short.status != "ok":
        return {}
    b = float((units(short.blocks, over)[0] - crop).mean())
    cell = cells.get(Key(LONG, protocols.SAME_TARGETS, key.shape))
    long = units(cell.blocks, over)[0] if cell is not None and cell.status == "ok" else None
    return verdicts.measured(means, crop, b, long)


def _scale(todo: Plan, rule: Rescale, key: Key) -> float:
    """The number s in use: of all tokens, or the largest of an axis where there are several."""
    if not todo.on_a_grid:
        return rule.scale(todo.train_length, key.length)
    return max(rule.scale(L, T) for L, T in zip(todo.train_shape, key.shape, strict=True))


def _hash(todo: Plan, key: Key) -> str:
    """Names the tokens that a cell scores."""
    return todo.targets_hash(key.protocol, key.length)


def _frozen(todo: Plan, key: Key) -> bool:
    """Whether a cell scores the frozen targets, on which crop and n-gram stand."""
    return _hash(todo, key) == todo.targets_hash(protocols.SAME_TARGETS, key.length)


def perplexity(nll: float) -> float:
    """exp(nll), infinite where a float cannot hold it."""
    return math.exp(nll) if nll < 709 else math.inf


def _facts(todo: Plan, key: Key) -> dict[str, Any]:
    """Columns that do not depend on the outcome."""
    config, sliding = todo.run.config, key.protocol == protocols.SLIDING
    return {
        "run_id": todo.run.manifest["run_id"],
        "name": config.name,
        "posenc": config.posenc.name,
        "preset": config.preset,
        "positions": config.positions.name,
        "data": config.data.name,
        "tokenizer": todo.data.alphabet,
        "tier": config.tier,
        "track": "strict",
        "seed": config.seed,
        "protocol": key.protocol,
        "train_len": todo.train_length,
        "test_len": key.length,
        "ratio": key.length / todo.train_length,
        "targets_hash": _hash(todo, key),
        "windows_hash": todo.windows_hash(key.protocol),
        "mean_context": protocols.mean_context(key.protocol, todo.data, key.shape, todo.eval),
        "verdict": "",
        "dtype": "float32",
        "train_shape": grid.text(todo.train_shape),
        "test_shape": grid.text(key.shape),
        "stride": protocols.stride(todo.eval, key.length) if sliding else None,
        "distance": key.distance,
        "chance": todo.data.chance if isinstance(todo.data, TaskDataset) else None,
    }


def _gate(
    todo: Plan, cells: dict[Key, Cell], ngram: references.NgramReference | None, over: str
) -> dict[str, Any]:
    """The gate on the unscaled model; not passed where it cannot be measured."""
    if ngram is None:
        return {"passed": False, "reason": references.NO_REFERENCE}
    contexts = gate_contexts(todo.train_length)
    found = {c: cells.get(Key(PLAIN, protocols.by_context(c), (c,))) for c in contexts}
    cells_at = {c: cell for c, cell in found.items() if cell is not None and cell.status == "ok"}
    if len(cells_at) < len(contexts):
        return {"passed": False, "reason": "the loss at L/8 to L could not be measured"}
    last = cells_at[contexts[-1]].blocks
    per_byte = sum(b.nats for b in last) / sum(b.bytes for b in last)
    losses = {c: units(cell.blocks, over)[0] for c, cell in cells_at.items()}
    return references.gate(losses, per_byte, ngram) | {"n_docs": len({b.document for b in last})}


def _stamp(todo: Plan, gate: dict[str, Any]) -> str:
    """What every table and figure with this run must say."""
    parts = ["smoke run"] if todo.run.config.tier == "smoke" else []
    stamp = references.STAMP if isinstance(todo.data, Dataset) else references.NO_REFERENCE
    return "; ".join(parts + ([] if gate["passed"] else [stamp]))


def _block_table(todo: Plan, cells: dict[Key, Cell]) -> pd.DataFrame:
    """Nats and counts of every scored block.

    The crop reference has protocol `crop`, that with 16 tokens of context `context16`, the run
    that was trained longer `trained_long`, what rows of `repeat` are compared with `control`.
    """
    rules = todo.rules()
    crop = Key(PLAIN, protocols.STRIDE1, todo.train_shape)
    shown = [(key, key.protocol) for key in todo.wanted()] + (
        [(crop, "crop")] if crop in cells else []
    )
    short = Key(PLAIN, protocols.STRIDE1, (CONTEXT,))
    shown += [(short, f"context{CONTEXT}")] if short in cells else []
    shown += [(key, LONG) for key in todo.long_keys()]
    shown += [(key, "control") for key in todo.controls()]
    named = [(key, protocol, _rule_of(rules.get(key.rule))) for key, protocol in shown]
    for (name, _), key in tuning.chosen(todo, cells).items():
        if key is not None:
            test = tuning.on_test(key)
            tuned = {"rescale": name, "factor": tuning.TUNED, "options": ""}
            named.append((test, test.protocol, tuned))
    found = []
    for key, protocol, rule in named:
        what = rule | {
            "protocol": protocol,
            "test_len": key.length,
            "test_shape": grid.text(key.shape),
        }
        found += [what | vars(block) for block in cells[key].blocks]
    return pd.DataFrame(found, columns=BLOCK_COLUMNS).astype({"distance": "Int64"})


def _rule_of(rule: Rescale | None) -> dict[str, str]:
    """The columns `rescale`, `factor` and `options`."""
    return rule.columns() if rule else {"rescale": PLAIN, "factor": "", "options": ""}


def write(table: Table, folder: Path) -> None:
    """lengths.csv, blocks.csv, positions.csv and distances.csv, floats at full precision."""
    if len(table.distances):
        write_atomic(folder / distances.FILE, table.distances.to_csv(index=False))
    write_atomic(folder / positions.FILE, table.positions.to_csv(index=False))
    write_atomic(folder / BLOCKS, table.blocks.to_csv(index=False))
    write_atomic(folder / LENGTHS, table.lengths.to_csv(index=False))
