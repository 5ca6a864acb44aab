"""Runs of several seeds whose losses are given document by document."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from posbench.evaluate import verdicts

from .conftest import COLUMNS, K, L, Runs

Losses = dict[int, np.ndarray]
PLAIN = {"rescale": "none", "factor": "", "options": ""}


def drawn(seed: int, mean: float, sd: tuple[float, float, float], docs: int, seeds: int) -> Any:
    """[documents, seeds] with document, seed and joint effects of these sizes."""
    rng = np.random.default_rng(seed)
    parts = ((docs, 1), (1, seeds), (docs, seeds))
    return mean + sum(s * rng.normal(size=shape) for s, shape in zip(sd, parts, strict=True))


def add(
    runs: Runs,
    preset: str,
    own: Losses,
    crop: np.ndarray,
    short: np.ndarray,
    long: Losses | None = None,
    passed: tuple[bool, ...] = (),
    seeds: tuple[int, ...] = (),
    rule: dict[str, str] = PLAIN,
    more: dict[str, Losses] | None = None,
    **columns: Any,
) -> list[Path]:
    """A run for each seed: losses in nats per token [documents, seeds] by test length.

    `crop` and `short` are the references with L and 16 tokens of context, `long` the run that was
    trained longer; `more` are losses of rescalings by name.
    """
    made = []
    for s in range(crop.shape[1]):
        seed = seeds[s] if seeds else s
        run = runs.add(preset, {}, seed=seed)
        (folder,) = run.glob("evals/*")
        gate = {"passed": passed[s] if passed else True}
        manifest = {"status": "finished", "gate": gate, "interval_over": "documents"}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        blocks = _blocks(PLAIN, "crop", {L: crop}, s) + _blocks(PLAIN, "context16", {16: short}, s)
        blocks += _blocks(PLAIN, "trained_long", long or {}, s)
        rows = []
        rules = {"": own} | (more or {})
        for name, curve in rules.items():
            which = rule if not name else {"rescale": name, "factor": "8", "options": ""}
            blocks += _blocks(which, "same_targets", curve, s)
            for length, losses in curve.items():
                fixed = {
                    "run_id": run.name, "name": "x", "posenc": preset, "preset": preset,
                    "positions": "standard", "data": "sotu", "tokenizer": "bpe1024",
                    "tier": "evidence", "track": "strict", "seed": seed,
                    "protocol": "same_targets", "train_len": L, "test_len": length,
                    "n_docs": len(crop), "n_eff": len(crop), "targets_hash": "aa",
                    "nll": losses[:, s].mean(), "crop_nll": crop[:, s].mean(), "ngram_nll": 9.0,
                    "gain": (crop - losses)[:, s].mean(), "b": (short - crop)[:, s].mean(),
                    "status": "ok", "dtype": "float32", "train_shape": L, "test_shape": length,
                    "base_nll": crop[:, s].mean(), "bpb": 1.0,
                }  # fmt: skip
                rows.append(fixed | which | columns)
        names = [*COLUMNS, *verdicts.COLUMNS]
        pd.DataFrame(rows, columns=names).to_csv(folder / "lengths.csv", index=False)
        pd.DataFrame(blocks).to_csv(folder / "blocks.csv", index=False)
        made.append(run)
    return made


def _blocks(rule: dict[str, str], protocol: str, losses: Losses, s: int) -> list[dict[str, Any]]:
    """Two blocks a document that differ and have its loss as their mean."""
    return [
        rule
        | {"protocol": protocol, "test_len": length, "test_shape": length, "document": f"d{d:02d}"}
        | {"block": block, "end": 99 + block, "nats": K * (loss + apart), "tokens": K, "bytes": 94}
        for length, table in losses.items()
        for d, loss in enumerate(table[:, s])
        for block, apart in enumerate((-0.3, 0.3))
    ]
