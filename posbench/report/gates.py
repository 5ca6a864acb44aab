"""Whether a run passes its gate, from all of its evaluations, and rows that say so."""

import contextlib
from pathlib import Path
from typing import Any

import pandas as pd

from posbench.errors import RunError
from posbench.evaluate import verdicts
from posbench.evaluate.references import MARGIN, STAMP
from posbench.files import read_json
from posbench.report.sections import records, stamp_parts


def gate_of(run_dir: Path) -> dict[str, Any]:
    """The gate of a run: that of the finished evaluation which scored most; {} without any.

    An evaluation of fewer blocks measures the same with less certainty; a run passes or does not.
    Whether longer windows are of use is what a fine-tuning at a longer L is asked, so its loss need
    fall up to the first L alone, in the run that it goes on from, which passes then; that it beats
    the n-gram model is asked of itself.
    """
    manifest = read_json(run_dir / "manifest.json")
    own, base = _measured_gate(run_dir, manifest.get("weights_sha256")), manifest.get("base")
    if not base or base["train_length"] >= manifest["config"]["train"]["seq_len"]:
        return own
    if own.get("passed") or own.get("margin", -1.0) < MARGIN:
        return own
    for place in (run_dir.parent / base["run_id"], Path(base.get("path", ""))):
        if (place / "manifest.json").is_file():
            return {**own, "passed": bool(gate_of(place).get("passed"))}
    return own


def _measured_gate(run_dir: Path, weights: str | None) -> dict[str, Any]:
    """The gate of the evaluation of these weights which scored most."""
    known = []
    for path in run_dir.glob("evals/*/manifest.json"):
        with contextlib.suppress(RunError):
            evaluation = read_json(path)
            if evaluation.get("weights_sha256") == weights and evaluation.get("gate"):
                asked, finished = evaluation.get("eval") or {}, str(evaluation.get("finished"))
                known.append((evaluation["gate"], asked, finished))
    # how many documents there are: earlier versions did not say
    whole = max((g.get("n_docs", 0) for g, asked, _ in known if not asked.get("docs")), default=0)

    def order(one: tuple[dict[str, Any], dict[str, Any], str]) -> tuple[bool, float, str]:
        gate, asked, finished = one
        scored = (asked.get("docs") or whole or 1e6) * (asked.get("blocks") or 0)
        return "margin" in gate, scored, finished  # without a margin it could not be measured

    return max(known, key=order)[0] if known else {}


def as_gated(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of an evaluation whose own gate says other than the run's: stamps and verdicts."""
    stamps, words = [], []
    for row in records(rows):
        parts = [part for part in stamp_parts([row["stamp"]]) if part != STAMP]
        stamps.append("; ".join(parts if row["passed"] else [*parts, STAMP]))
        may = row["status"] == "ok" and verdicts.may_have_one(row, row["passed"])
        words.append(verdicts.verdict(row) if may else "")
    return rows.assign(stamp=stamps, verdict=words)
