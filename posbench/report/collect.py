"""Gather the evaluations of many runs into tidy rows and the blocks behind them."""

import contextlib
import dataclasses
import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from posbench import finetune, registry
from posbench.errors import ConfigError, RunError
from posbench.files import altered, read_json
from posbench.report.columns import (
    BLOCK_COLUMNS,
    BLOCK_COUNTS,
    COUNTS,
    FLOATS,
    IDENTITY,
    INTERNAL,
    LATER,
    LATER_BLOCKS,
    LENGTHS,
    REFERENCES,
    RULE,
    SOURCE,
    TEXT,
)
from posbench.report.gates import as_gated, gate_of
from posbench.report.pooling import Losses, pool
from posbench.report.sections import sorted_rows, stamp_parts
from posbench.report.spent import with_spent
from posbench.settings import (
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TrainConfig,
    default_of,
    digest,
    flat,
)


@dataclass
class Collected:
    """What a report is made of.

    `rows`: one per run, rescaling, protocol and test length: the tidy columns, and `model` (hash of
    the configuration without its seed), `settings` (that configuration, as JSON), `eval_id`
    (folder), `interval_over`, `tied` (options that follow L: the value used and the paper's),
    `passed` (the gate of its run) and `base` (of a fine-tuning: what tables call the run that it
    goes on from).
    `blocks`: the scored blocks behind them and their references, with `run_id` and `eval_id`; as
    means of documents they are `losses`.
    `pooled`: as `rows`, one per configuration, seeds and run ids joined by `+`; see `pooling.pool`.
    `columns`: those on disk.
    `skipped`: run or evaluation that gave no rows -> why.
    """

    rows: pd.DataFrame
    blocks: pd.DataFrame
    pooled: pd.DataFrame
    columns: list[str]
    losses: Losses
    skipped: dict[str, str] = field(default_factory=dict)


def read_table(path: Path, needed: Sequence[str]) -> pd.DataFrame:
    """Every column as text, exactly as written."""
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, EOFError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if missing := [name for name in needed if name not in frame]:
        raise RunError(f"{path} is damaged: no column {', '.join(missing)}")
    return frame


def _floats(column: pd.Series) -> pd.Series:
    """Text -> float64 with Python's exact parser; empty is nan."""
    return pd.Series([float(v) if v else math.nan for v in column], column.index, dtype="float64")


def factor_text(text: str) -> str:
    """`8.0` and `8` are one factor."""
    try:
        return f"{float(text):.12g}"
    except ValueError:
        return text


def _typed(
    frame: pd.DataFrame, path: Path, floats: Sequence[str], counts: Sequence[str]
) -> pd.DataFrame:
    try:
        for name in floats:
            frame[name] = _floats(frame[name])
        for name in counts:
            frame[name] = _floats(frame[name]).astype("Int64")
        for name in LENGTHS:
            if name in frame:
                frame[name] = _floats(frame[name]).astype("int64")
    except (ValueError, TypeError) as error:
        raise RunError(f"{path} is damaged: column {name}: {error}") from error
    frame["factor"] = [factor_text(text) for text in frame["factor"]]
    return frame


def _add_later(frame: pd.DataFrame, later: dict[str, str]) -> None:
    """Fill in columns that came later, for files of texts that were written before."""
    for name, value in later.items():
        if name not in frame and (not value or value in frame):
            frame[name] = frame[value] if value else ""


def read_rows(path: Path) -> pd.DataFrame:
    """A tidy CSV (of an evaluation or of a report) with its types; RunError if damaged."""
    frame = read_table(
        path, [name for name in (*TEXT, *COUNTS, *LENGTHS, *FLOATS) if name not in LATER]
    )
    _add_later(frame, LATER)
    return _typed(frame, path, FLOATS, COUNTS)


def _first(*paths: Path) -> Path:
    """The first of some files that is there, or the first."""
    return next((path for path in paths if path.is_file()), paths[0])


def read_blocks(path: Path) -> pd.DataFrame:
    """`blocks.csv` of an evaluation, compressed or not, with its types; RunError if damaged."""
    frame = read_table(path, BLOCK_COLUMNS)
    _add_later(frame, LATER_BLOCKS)
    return _typed(frame, path, ["nats"], [name for name in BLOCK_COUNTS if name != "test_len"])


def model_hash(config: dict[str, Any], plugins: Any = None) -> str:
    """Names a configuration apart from its seed; see `identity_of`."""
    return digest(identity_of(config, plugins))


def identity_of(config: dict[str, Any], plugins: Any = None) -> dict[str, Any]:
    """Stored settings without the seed and what changes no result (paths, device).

    An option at its default counts as not given, so that runs from before there was that option are
    of the same configuration.
    """

    def own(values: Any, owner: type) -> Any:
        if not isinstance(values, dict):
            return values
        fields = {f.name: f for f in dataclasses.fields(owner)}
        aside = {name for name, f in fields.items() if not f.metadata.get("identity", True)}
        return {
            key: value
            for key, value in values.items()
            if key not in aside
            and (key == "name" or key not in fields or value != default_of(fields[key]))
        }

    identity = own(config, RunConfig)
    identity.pop("seed", None)
    parts: dict[str, type] = {
        "train": TrainConfig,
        "model": ModelConfig,
        "optimizer": OptimizerConfig,
    }
    for group in registry.PACKAGES:
        name = str((identity.get(group) or {}).get("name"))
        with contextlib.suppress(ConfigError):  # of a plug-in that is not there
            parts[group] = registry.get(group, name).Config
    identity |= {part: own(identity[part], cls) for part, cls in parts.items() if part in identity}
    if isinstance(base := identity.get("base"), dict):  # its weights go by the seed
        identity["base"] = {k: v for k, v in base.items() if k not in ("weights_sha256", "run_id")}
    if plugins:
        identity["plugins"] = plugins
    return identity


def collect(run_dirs: Sequence[Path], only: Collection[Path] | None = None) -> Collected:
    """Read every finished evaluation of the runs; the latest row wins over an older twin.

    `only` keeps these evaluation folders and passes over the others.

    RunError when a folder is not a run or nothing was evaluated; an evaluation with a damaged table
    is passed over and named.
    """
    found: list[tuple[str, str, pd.DataFrame, pd.DataFrame]] = []
    skipped: dict[str, str] = {}
    diverged = Counter[str]()
    chosen = {path.resolve() for path in only or ()}
    for run_dir in dict.fromkeys(Path(path).resolve() for path in run_dirs):
        if not (run_dir / "manifest.json").is_file():
            raise RunError(f"{run_dir} is not a run: it has no manifest.json")
        manifest = read_json(run_dir / "manifest.json")
        run_id = str(manifest.get("run_id", run_dir.name))
        before = len(found)
        gate = gate_of(run_dir)
        for folder in sorted(path.parent for path in run_dir.glob("evals/*/manifest.json")):
            if only is not None and folder not in chosen:
                continue
            try:
                evaluation = read_json(folder / "manifest.json")
            except RunError as error:
                skipped[f"{run_id}/{folder.name}"] = str(error)
                continue
            if evaluation.get("weights_sha256") != manifest.get("weights_sha256"):
                skipped[f"{run_id}/{folder.name}"] = "made with other weights than the run has now"
                continue
            if evaluation.get("status") != "finished":
                skipped[f"{run_id}/{folder.name}"] = "evaluation not finished"
                continue
            if names := altered(folder, evaluation):
                skipped[f"{run_id}/{folder.name}"] = (
                    f"{folder / names[0]} is damaged: not as it was written"
                )
                continue
            try:
                rows = read_rows(folder / "lengths.csv")
                blocks = read_blocks(_first(folder / "blocks.csv", folder / "blocks.csv.gz"))
            except RunError as error:
                skipped[f"{run_id}/{folder.name}"] = str(error)
                continue
            identity = identity_of(manifest.get("config", {}), manifest.get("plugins"))
            rows["model"], rows["settings"] = digest(identity), json.dumps(flat(identity))
            rows["eval_id"] = folder.name
            rows["base"] = finetune.names(manifest)[0] if "base" in manifest else ""
            rows["tied"] = "; ".join(
                f"{t['option']} = {t['used']} (paper: {t['paper']})"
                for t in manifest.get("tied", [])
            )
            rows = with_spent(rows, manifest)
            rows["passed"] = bool(gate.get("passed"))
            if bool((evaluation.get("gate") or {}).get("passed")) != bool(gate.get("passed")):
                rows = as_gated(rows)
            if "interval_over" not in rows:
                rows["interval_over"] = str(evaluation.get("interval_over", "documents"))
            blocks.insert(0, "run_id", run_id)
            blocks.insert(1, "eval_id", folder.name)
            finished = str(evaluation.get("finished"))
            found.append((finished, folder.name, rows, blocks))
        status = manifest.get("status", "unknown")
        if len(found) == before:
            skipped[run_id] = f"not evaluated, status {status}"
        if status == "diverged":
            diverged[model_hash(manifest["config"], manifest.get("plugins"))] += 1
    if not any(len(rows) for _, _, rows, _ in found):
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items()) or "no run given"
        raise RunError(
            f"nothing to report ({reasons}); `posbench eval-lengths RUN` evaluates a run"
        )
    found.sort(key=lambda item: item[:2])
    rows = pd.concat([item[2] for item in found], ignore_index=True)
    rows = sorted_rows(rows.drop_duplicates(IDENTITY, keep="last"))
    for model, n in diverged.items():  # the means of the others would hide it
        own, word = rows["model"] == model, f"{n} seed{'' if n == 1 else 's'} diverged"
        rows.loc[own, "stamp"] = [
            "; ".join(stamp_parts([stamp, word])) for stamp in rows["stamp"][own]
        ]
    blocks = _blocks_of(rows, pd.concat([item[3] for item in found], ignore_index=True))
    columns = [name for name in rows.columns if name not in INTERNAL]
    losses = Losses(rows, blocks)
    return Collected(rows, blocks, pool(rows, losses), columns, losses, skipped)


def _blocks_of(rows: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """The blocks behind the rows that were kept, and the references of their evaluations."""
    exact = [*SOURCE, *RULE, "test_len", "test_shape", "protocol"]
    kept = set(rows[exact].itertuples(index=False, name=None))
    evaluations = set(rows[SOURCE].itertuples(index=False, name=None))
    keep = [
        tuple(row) in kept or (row[-1] in REFERENCES and tuple(row[:2]) in evaluations)
        for row in blocks[exact].itertuples(index=False, name=None)
    ]
    twins = [*exact, "distance", "document", "block"]
    return blocks.loc[keep].drop_duplicates(twins).reset_index(drop=True)
