"""Run folders with invented numbers, laid out as training and evaluation leave them."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from posbench.report.collect import collect

COLUMNS = [
    "run_id", "name", "posenc", "preset", "positions", "rescale", "factor", "scale", "data",
    "tokenizer", "tier", "track", "seed", "protocol", "train_len", "test_len", "ratio",
    "n_docs", "n_eff", "n_blocks", "n_targets", "targets_hash", "mean_context", "nll", "nll_lo",
    "nll_hi", "ppl", "bpb", "crop_nll", "gain", "gain_lo", "gain_hi", "verdict", "status",
    "dtype", "options", "base_nll", "ngram_nll", "stamp", "windows_hash", "train_shape",
    "test_shape", "stride", "accuracy", "exact", "control_nll", "repeat_gain", "repeat_lo",
    "repeat_hi",
]  # fmt: skip
BLOCK_COLUMNS = [
    "rescale", "factor", "options", "protocol", "test_len", "document", "block", "end", "nats",
    "tokens", "bytes", "test_shape",
]  # fmt: skip
L = 128
K = 32
LENGTHS = (64, 128, 256, 512, 1024, 2048)
BYTES = 94  # of a block

Rule = tuple[str, str, str]
PLAIN: Rule = ("none", "", "")


class Runs:
    """Makes run folders below `root`; every number follows from the perplexities it is given."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(
        self,
        preset: str,
        curves: dict[Rule, list[float | str]],
        *,
        seed: int = 0,
        docs: int = 22,
        blocks: int = 2,
        lengths: tuple[int, ...] = LENGTHS,
        stamp: str = "",
        crop: float = 24.8,
        ngram: float = 23.9,
        evaluation: str = "e0000000",
        status: str = "finished",
        **changes: Any,
    ) -> Path:
        """One run. A curve holds a perplexity or a refusal for each length."""
        train_len = changes.get("train_len", L)
        run_id = f"{preset}-L{train_len}-s{seed}-{abs(hash_of(preset)):08x}"
        run_dir = self.root / run_id
        folder = run_dir / "evals" / evaluation
        folder.mkdir(parents=True)
        config = {"seed": seed, "posenc": {"name": preset}, "train": {"seq_len": train_len}}
        manifest = {
            "run_id": run_id,
            "name": "demo",
            "preset": preset,
            "tier": "demo",
            "seed": seed,
            "status": "finished",
            "config": config,
        }
        (run_dir / "manifest.json").write_text(json.dumps(manifest))
        (folder / "manifest.json").write_text(
            json.dumps({"status": status, "gate": {}, "interval_over": "documents"})
        )
        rng = np.random.default_rng(hash_of(preset) + 1000 * seed)
        offsets = rng.normal(0, 0.05, (docs, 1)) + rng.normal(0, 0.01, (docs, blocks))
        offsets -= offsets.mean()
        means = offsets.mean(axis=1)
        half = 2.08 * means.std(ddof=1) / math.sqrt(docs) if docs > 1 else None
        rows, block_rows = [], []

        def score(rule: Rule, protocol: str, length: int, nll: float) -> None:
            for d in range(docs):
                for b in range(blocks):
                    nats = (nll + offsets[d, b]) * K
                    values = (*rule, protocol, length, f"doc{d:02d}", b, 4096 + 99 * b)
                    block_rows.append(
                        dict(zip(BLOCK_COLUMNS, (*values, nats, K, BYTES, length), strict=True))
                    )

        score(PLAIN, "crop", train_len, math.log(crop))
        plain = curves.get(PLAIN, [])
        base = plain[lengths.index(train_len)] if plain else 25.0
        for rule, curve in curves.items():
            for length, value in zip(lengths, curve, strict=True):
                row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
                row.update(
                    run_id=run_id, name="demo", posenc=preset, preset=preset,
                    positions="standard", rescale=rule[0], factor=rule[1], options=rule[2],
                    data="sotu", tokenizer="bpe1024", tier="demo", track="strict", seed=seed,
                    protocol="same_targets", train_len=train_len, test_len=length,
                    ratio=length / train_len, targets_hash="aa11bb22", dtype="float32",
                    n_docs=docs, n_eff=docs, n_blocks=docs * blocks, n_targets=docs * blocks * K,
                    mean_context=length - K / 2, crop_nll=math.log(crop), stamp=stamp,
                    base_nll=math.log(base) if isinstance(base, float) else "",
                    ngram_nll=math.log(ngram), status="ok", train_shape=train_len,
                    test_shape=length,
                )  # fmt: skip
                row.update(changes)
                if isinstance(value, str):
                    row.update(status=value)
                else:
                    nll = math.log(value)
                    row.update(
                        nll=nll, ppl=value, bpb=nll * K / BYTES / math.log(2), verdict="undecided",
                        gain=math.log(crop) - nll, scale=float(rule[1]) if rule[1] == "8" else 1.0,
                    )  # fmt: skip
                    if half:
                        row.update(nll_lo=nll - half, nll_hi=nll + half)
                        row.update(gain_lo=row["gain"] - 0.01, gain_hi=row["gain"] + 0.01)
                    score(rule, row["protocol"], length, nll)
                rows.append(row)
        for name, columns, content in (
            ("lengths.csv", [*COLUMNS, *(key for key in changes if key not in COLUMNS)], rows),
            ("blocks.csv", BLOCK_COLUMNS, block_rows),
        ):
            with (folder / name).open("w", newline="") as stream:
                writer = csv.DictWriter(stream, columns, lineterminator="\n")
                writer.writeheader()
                writer.writerows(content)
        return run_dir


def hash_of(name: str) -> int:
    """A number that does not change between processes."""
    return sum((i + 1) * ord(c) for i, c in enumerate(name))


def demo_curves(shift: float = 1.0) -> dict[str, dict[Rule, list[float | str]]]:
    """Seven runs, two of them rescaled: about what a small model does."""

    def rule(name: str, factor: str, *values: float) -> dict[Rule, list[float | str]]:
        return {(name, factor, ""): [v * shift for v in values]}

    def rescaled(k: float) -> dict[Rule, list[float | str]]:
        return {
            **rule("none", "", 27.0, 24.5 * k, 26.3, 29.8 * k, 38.3 * k, 46.9),
            **rule("pi", "8", 33.0, 31.0, 31.5, 34.0 * k, 51.3, 60.0),
            **rule("pi", "auto", 27.0, 24.5 * k, 28.0, 35.2, 43.7 * k, 51.3),
            **rule("ntk", "8", 27.9, 25.4 * k, 25.9, 28.6, 35.0, 43.0 * k),
            **rule("ntk", "auto", 27.0, 24.5 * k, 25.5, 29.1, 38.3, 43.4),
            **rule("ntk_by_parts", "8", 28.6, 26.3, 26.2 * k, 28.3, 33.1, 41.0),
            **rule("ntk_by_parts", "auto", 27.0, 24.5 * k, 25.7, 29.2 * k, 33.1, 38.1),
            **rule("dynamic_ntk", "", 27.0, 24.5 * k, 25.5, 29.1, 38.3, 43.4),
            **rule("yarn", "8", 28.0, 25.9 * k, 25.8, 27.9, 31.0, 37.0),
            **rule("yarn", "auto", 27.0, 24.5 * k, 25.6, 28.5, 31.0, 33.8 * k),
            **rule("yarn_paper", "8", 28.4, 26.1, 26.0, 28.2 * k, 31.8, 38.2),
            **rule("yarn_paper", "auto", 27.0, 24.5 * k, 25.7, 28.8, 31.8 * k, 35.0),
        }

    refused: list[float | str] = ["unsupported_rescale"] * 6
    return {
        "none": {PLAIN: [28.4, 26.2, 33.0, 71.0, 260.0, 900.0], ("pi", "8", ""): refused},
        "sinusoidal": {PLAIN: [29.5, 27.6, 150.0, 900.0, 2500.0, 4000.0]},
        "learned": {PLAIN: [29.9, 27.9, *["unsupported_length"] * 4]},
        "t5": {PLAIN: [27.1, 24.7, 24.4, 24.9, 26.8, 29.9], ("pi", "8", ""): refused},
        "alibi": {PLAIN: [27.3, 25.0, 24.6, 24.5, 24.5, 24.5]},
        "rope": rescaled(1.0),
        "rope_matched": rescaled(1.02),
    }


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The seven runs, in an order that is not the order of the report. Not to be changed."""
    made = Runs(tmp_path_factory.mktemp("demo"))
    return [made.add(preset, curves) for preset, curves in reversed(demo_curves().items())]


@pytest.fixture(scope="session")
def demo_rows(demo: list[Path]) -> pd.DataFrame:
    return collect(demo).pooled
