"""Evidence with invented losses, and slow oracles for what is computed from them."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

#: training length of everything here, and scored tokens of a document
L, TOKENS = 128, 128
ROW = ("rescale", "factor", "options", "protocol")


class Invented:
    """Runs by experiment; `truth` has the losses of every row, [documents, seeds].

    Documents differ by 0.2 nats, the same for all rows; seeds and what is left by `noise`.
    """

    def __init__(self, docs: int = 22, seeds: int = 3, noise: float = 0.003) -> None:
        self.docs, self.seeds, self.noise = docs, seeds, noise
        self.draw = np.random.default_rng(5)
        self.by_doc = self.draw.normal(0, 0.2, (docs, 1))
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.blocks: dict[str, list[dict[str, Any]]] = {}
        self.found: dict[str, dict[str, dict[str, Any]]] = {}
        self.logs: dict[str, list[dict[str, Any]]] = {}
        self.truth: dict[tuple[Any, ...], np.ndarray] = {}
        self.late = set[str]()

    def add(
        self,
        experiment: str,
        preset: str,
        losses: dict[float, Any],
        *,
        data: str = "code",
        tier: str = "evidence",
        stamp: str = "",
        b: float = 0.5,
        config: dict[str, Any] | None = None,
        model: str = "",
        correct: bool = False,
        **rule: str,
    ) -> None:
        """One curve under one rule in every seed: ratio -> mean loss, or why it was refused.

        The protocol `crop` gives blocks alone. `correct`: the numbers are accuracies.
        """
        own = {"rescale": "none", "factor": "", "options": "", "protocol": "same_targets"} | rule
        for ratio, mean in losses.items():
            spread = self.draw.normal(0, self.noise, (1, self.seeds))
            spread = spread + self.draw.normal(0, self.noise, (self.docs, self.seeds))
            values = spread + (0 if isinstance(mean, str) else mean)
            if not correct:
                values = values + self.by_doc
            if not isinstance(mean, str):
                self.truth[(experiment, preset, *own.values(), data, ratio)] = values
            for seed in range(self.seeds):
                run = f"{experiment}-{preset}-{data}{model}-s{seed}"
                facts = {"preset": preset, "seed": seed, "tier": tier}
                self.found.setdefault(experiment, {}).setdefault(
                    run,
                    {"run_id": run, **facts, "status": "finished", "config": config or {}},
                )
                place = {"run_id": run, "eval_id": "e0", **own, "test_len": round(ratio * L)}
                if own["protocol"] != "crop":
                    row = {**place, **facts, "data": data, "ratio": ratio, "stamp": stamp, "b": b}
                    row["model"] = f"{experiment}-{preset}-{data}{model}"
                    row["status"] = mean if isinstance(mean, str) else "ok"
                    row["accuracy"] = values[:, seed].mean() if correct else math.nan
                    self.rows.setdefault(experiment, []).append(row)
                for d in range(0 if isinstance(mean, str) else self.docs):
                    total = values[d, seed] * TOKENS
                    nats, right = (0.0, total) if correct else (total, 0)
                    block = {**place, "document": f"d{d:02d}", "block": 0, "nats": nats}
                    block |= {"tokens": TOKENS, "correct": str(right)}
                    self.blocks.setdefault(experiment, []).append(block)

    def tuned(self, experiment: str, preset: str, seed: int, base: float, curve: Any) -> None:
        """A fine-tuning: what the base run has, and step -> loss at the target."""
        run = f"{experiment}-{preset}-s{seed}"
        extension = {"aim": base}
        facts = {"run_id": run, "preset": preset, "seed": seed, "status": "finished"}
        manifest = {**facts, "tier": "evidence", "config": {}, "extension": extension}
        self.found.setdefault(experiment, {})[run] = manifest
        lines = [{**facts, "step": n, "target_loss": loss} for n, loss in curve.items()]
        lines += [{**facts, "step": 7, "target_loss": math.nan}]
        self.logs.setdefault(experiment, []).extend(lines)

    def of(
        self, experiment: str, preset: str, ratio: float, data: str = "code", **rule: str
    ) -> Any:
        """The losses of a row, [documents, seeds]."""
        own = {"rescale": "none", "factor": "", "options": "", "protocol": "same_targets"} | rule
        return self.truth[(experiment, preset, *own.values(), data, ratio)]

    # ---- what checks read

    def runs(self, name: str) -> list[str]:
        return list(self.found.get(name, {}))

    def evaluated(self, name: str) -> list[str]:
        return [row["run_id"] for row in self.rows.get(name, [])]

    def manifests(self, name: str) -> list[dict[str, Any]]:
        return list(self.found.get(name, {}).values())

    def untuned(self, name: str) -> set[str]:
        return self.late

    def collected(self, name: str) -> Any:
        return SimpleNamespace(
            rows=pd.DataFrame(self.rows[name]), blocks=pd.DataFrame(self.blocks.get(name, []))
        )

    def log(self, name: str) -> pd.DataFrame:
        return pd.DataFrame(self.logs[name])


def loops(x: Any, level: float = 0.95) -> tuple[float, float, float]:
    """(mean, low, high) of documents crossed with seeds, by the textbook's sums of squares."""
    docs, seeds = len(x), len(x[0])
    mean = math.fsum(float(v) for row in x for v in row) / docs / seeds
    by_doc = [math.fsum(map(float, row)) / seeds for row in x]
    by_seed = [math.fsum(float(row[s]) for row in x) / docs for s in range(seeds)]
    a = seeds * sum((m - mean) ** 2 for m in by_doc) / (docs - 1)
    b = docs * sum((m - mean) ** 2 for m in by_seed) / (seeds - 1)
    rest = sum(
        (float(x[d][s]) - by_doc[d] - by_seed[s] + mean) ** 2
        for d in range(docs)
        for s in range(seeds)
    )
    rest /= (docs - 1) * (seeds - 1)
    if a + b - rest <= rest:
        variance, df = rest, float((docs - 1) * (seeds - 1))
    else:
        variance = a + b - rest
        parts = a**2 / (docs - 1) + b**2 / (seeds - 1) + rest**2 / (docs - 1) / (seeds - 1)
        df = max(variance**2 / parts, min(docs, seeds) - 1)
    if level > 0.95 and seeds > 1:
        df = min(df, seeds - 1)
    half = float(stats.t.ppf(0.5 + level / 2, df)) * math.sqrt(variance / docs / seeds)
    return mean, mean - half, mean + half


def t_interval(values: Any, level: float = 0.95) -> tuple[float, float, float]:
    """(mean, low, high) of one number a seed."""
    mean, error = float(np.mean(values)), float(stats.sem(values))
    low, high = stats.t.interval(level, len(values) - 1, mean, error)
    return mean, float(low), float(high)
