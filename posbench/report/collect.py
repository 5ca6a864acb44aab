"""Gather the evaluations of many runs into tidy rows, and pool the seeds of one configuration."""

import dataclasses
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from posbench.errors import RunError
from posbench.evaluate.rows import BLOCKWISE
from posbench.evaluate.statistics import two_way_interval
from posbench.report.sections import records, sorted_rows, stamp_parts
from posbench.settings import RunConfig, TrainConfig, digest

TEXT = [
    "run_id", "name", "posenc", "preset", "positions", "rescale", "factor", "data", "tokenizer",
    "tier", "track", "protocol", "targets_hash", "verdict", "status", "dtype", "options",
    "stamp", "windows_hash", "train_shape", "test_shape",
]  # fmt: skip
COUNTS = ["seed", "n_docs", "n_blocks", "n_targets"]
LENGTHS = ["train_len", "test_len"]
FLOATS = [
    "scale", "ratio", "n_eff", "mean_context", "nll", "nll_lo", "nll_hi", "ppl", "bpb",
    "crop_nll", "gain", "gain_lo", "gain_hi", "base_nll", "ngram_nll",
    "accuracy", "exact", "control_nll", "repeat_gain", "repeat_lo", "repeat_hi",
]  # fmt: skip
#: columns that older files lack -> the column that says the same there
LATER = {"windows_hash": "", "stride": "", "train_shape": "train_len", "test_shape": "test_len"}
LATER |= dict.fromkeys(FLOATS[-6:], "")
#: protocols of blocks that rows are compared with
REFERENCES = ("crop", "control")
RULE = ["rescale", "factor", "options"]
IDENTITY = [
    "run_id", *RULE, "protocol", "stride", "test_len", "test_shape", "targets_hash", "dtype"
]  # fmt: skip
INTERNAL = [
    "model",
    "eval_id",
    "interval_over",
    "tied",
]  # what `collect` adds to the columns on disk
BLOCK_COUNTS = ["test_len", "block", "end", "tokens", "bytes"]
BLOCK_COLUMNS = [*RULE, "protocol", "document", "nats", *BLOCK_COUNTS]


@dataclass
class Collected:
    """What a report is made of.

    `rows`: one per run, rescaling, protocol and test length: the tidy columns, and `model` (hash of
    the configuration without its seed), `eval_id` (folder), `interval_over` and `tied` (options
    that follow L: the value used and the paper's).
    `blocks`: the scored blocks behind them, with `run_id` and `eval_id`; protocol `crop` included.
    `pooled`: as `rows`, one per configuration: `n_seeds` more, seeds and run ids joined by `+`.
    `skipped`: run or evaluation that gave no rows -> why.
    """

    rows: pd.DataFrame
    blocks: pd.DataFrame
    pooled: pd.DataFrame
    columns: list[str]
    skipped: dict[str, str] = field(default_factory=dict)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: not a JSON object")
    return content


def _read_csv(path: Path, needed: Sequence[str]) -> pd.DataFrame:
    """Every column as text, exactly as written."""
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if missing := [name for name in needed if name not in frame]:
        raise RunError(f"{path} is damaged: no column {', '.join(missing)}")
    return frame


def _floats(column: pd.Series) -> pd.Series:
    """Text -> float64 with Python's exact parser; empty is nan."""
    return pd.Series([float(v) if v else math.nan for v in column], column.index, dtype="float64")


def _factor(text: str) -> str:
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
    frame["factor"] = [_factor(text) for text in frame["factor"]]
    return frame


def _add_later(frame: pd.DataFrame) -> None:
    """Fill in columns that came later, for files of texts that were written before."""
    for name, value in LATER.items():
        if name not in frame and (not value or value in frame):
            frame[name] = frame[value] if value else ""


def read_rows(path: Path) -> pd.DataFrame:
    """A tidy CSV (of an evaluation or of a report) with its types; RunError if damaged."""
    frame = _read_csv(
        path, [name for name in (*TEXT, *COUNTS, *LENGTHS, *FLOATS) if name not in LATER]
    )
    _add_later(frame)
    return _typed(frame, path, FLOATS, COUNTS)


def _first(*paths: Path) -> Path:
    """The first of some files that is there, or the first."""
    return next((path for path in paths if path.is_file()), paths[0])


def read_blocks(path: Path) -> pd.DataFrame:
    """`blocks.csv` of an evaluation, compressed or not, with its types; RunError if damaged."""
    frame = _read_csv(path, BLOCK_COLUMNS)
    _add_later(frame)
    return _typed(frame, path, ["nats"], [name for name in BLOCK_COUNTS if name != "test_len"])


def model_hash(config: dict[str, Any], plugins: Any = None) -> str:
    """Names a configuration apart from its seed and from what changes no result (paths, device)."""

    def rest(values: dict[str, Any], owner: type) -> dict[str, Any]:
        aside = {f.name for f in dataclasses.fields(owner) if not f.metadata.get("identity", True)}
        return {key: value for key, value in values.items() if key not in aside}

    identity = rest(config, RunConfig)
    identity.pop("seed", None)
    if isinstance(identity.get("train"), dict):
        identity["train"] = rest(identity["train"], TrainConfig)
    if plugins:
        identity["plugins"] = plugins
    return digest(identity)


def collect(run_dirs: Sequence[Path], only: Collection[Path] | None = None) -> Collected:
    """Read every finished evaluation of the runs; the latest row wins over an older twin.

    `only` keeps these evaluation folders and passes over the others.

    RunError when a folder is not a run, a file is damaged, or nothing was evaluated.
    """
    found: list[tuple[int, str, pd.DataFrame, pd.DataFrame]] = []
    skipped: dict[str, str] = {}
    chosen = {path.resolve() for path in only or ()}
    for run_dir in dict.fromkeys(Path(path).resolve() for path in run_dirs):
        if not (run_dir / "manifest.json").is_file():
            raise RunError(f"{run_dir} is not a run: it has no manifest.json")
        manifest = _read_json(run_dir / "manifest.json")
        run_id = str(manifest.get("run_id", run_dir.name))
        before = len(found)
        for folder in sorted(path.parent for path in run_dir.glob("evals/*/manifest.json")):
            if only is not None and folder not in chosen:
                continue
            try:
                evaluation = _read_json(folder / "manifest.json")
            except RunError as error:
                skipped[f"{run_id}/{folder.name}"] = str(error)
                continue
            if evaluation.get("weights_sha256") != manifest.get("weights_sha256"):
                skipped[f"{run_id}/{folder.name}"] = "made with other weights than the run has now"
                continue
            if evaluation.get("status") != "finished":
                skipped[f"{run_id}/{folder.name}"] = "evaluation not finished"
                continue
            rows = read_rows(folder / "lengths.csv")
            rows["model"] = model_hash(manifest.get("config", {}), manifest.get("plugins"))
            rows["eval_id"] = folder.name
            rows["tied"] = "; ".join(
                f"{t['option']} = {t['used']} (paper: {t['paper']})"
                for t in manifest.get("tied", [])
            )
            if "interval_over" not in rows:
                rows["interval_over"] = str(evaluation.get("interval_over", "documents"))
            blocks = read_blocks(_first(folder / "blocks.csv", folder / "blocks.csv.gz"))
            blocks.insert(0, "run_id", run_id)
            blocks.insert(1, "eval_id", folder.name)
            written = (folder / "lengths.csv").stat().st_mtime_ns
            found.append((written, folder.name, rows, blocks))
        if len(found) == before:
            skipped[run_id] = f"not evaluated, status {manifest.get('status', 'unknown')}"
    if not any(len(rows) for _, _, rows, _ in found):
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items()) or "no run given"
        raise RunError(
            f"nothing to report ({reasons}); `posbench eval-lengths RUN` evaluates a run"
        )
    found.sort(key=lambda item: item[:2])
    rows = pd.concat([item[2] for item in found], ignore_index=True)
    rows = sorted_rows(rows.drop_duplicates(IDENTITY, keep="last"))
    blocks = _blocks_of(rows, pd.concat([item[3] for item in found], ignore_index=True))
    columns = [name for name in found[-1][2].columns if name not in INTERNAL]
    return Collected(rows, blocks, pool(rows, blocks), columns, skipped)


def _blocks_of(rows: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """The blocks behind the rows that were kept, and the references of their evaluations."""
    source = ["run_id", "eval_id"]
    exact = [*source, *RULE, "test_len", "test_shape", "protocol"]
    kept = set(rows[exact].itertuples(index=False, name=None))
    evaluations = set(rows[source].itertuples(index=False, name=None))
    keep = [
        tuple(row) in kept or (row[-1] in REFERENCES and tuple(row[:2]) in evaluations)
        for row in blocks[exact].itertuples(index=False, name=None)
    ]
    return blocks[keep].drop_duplicates([*exact, "document", "block"]).reset_index(drop=True)


def _unit_means(blocks: pd.DataFrame, unit: list[str]) -> pd.Series:
    """Nats per token of each unit (document or block)."""
    sums = blocks.groupby(unit, sort=True)[["nats", "tokens"]].sum()
    return sums["nats"] / sums["tokens"].astype("float64")


def _of(blocks: pd.DataFrame, row: dict[str, Any]) -> pd.DataFrame:
    """The blocks behind a row."""
    for name in (*RULE, "protocol", "test_len", "test_shape"):
        blocks = blocks[blocks[name] == row[name]]
    return blocks


def _matrix(columns: list[pd.Series], what: str) -> np.ndarray:
    """Unit means of every seed -> `[units, seeds]` over the units that all seeds scored."""
    table = pd.concat(columns, axis=1, join="inner").sort_index()
    if table.empty:
        raise RunError(f"blocks.csv holds no block that all seeds of {what} scored")
    return table.to_numpy(dtype="float64")


def _pooled_row(group: pd.DataFrame, blocks: pd.DataFrame) -> dict[str, Any]:
    """One row for several seeds: mean and two-way interval over units crossed with seeds."""
    seeds = records(group)
    row = dict(seeds[-1])
    means = ("crop_nll", "base_nll", "ngram_nll", "mean_context", "scale", "accuracy", "exact")
    for name in means:
        row[name] = float(group[name].mean())
    row["n_eff"] = float(group["n_eff"].min())
    verdicts = set(group["verdict"])
    row["verdict"] = verdicts.pop() if len(verdicts) == 1 else ""
    refused = [seed["status"] for seed in seeds if seed["status"] != "ok"]
    if refused:  # a mean over the seeds that survived would hide the failure
        empty = ["nll", "nll_lo", "nll_hi", "ppl", "bpb", "gain", "gain_lo", "gain_hi"]
        empty += FLOATS[-6:]
        return {**row, **dict.fromkeys(empty, math.nan), "status": refused[0], "verdict": ""}
    unit = ["document", "block"] if row["interval_over"] in BLOCKWISE else ["document"]
    own, crop, control, bits, n_bytes = [], [], [], 0.0, 0
    for seed in seeds:
        mine = blocks[(blocks["run_id"] == seed["run_id"]) & (blocks["eval_id"] == seed["eval_id"])]
        scored = _of(mine, seed)
        control.append(_unit_means(_of(mine, {**seed, "protocol": "control"}), unit))
        own.append(_unit_means(scored, unit))
        crop.append(_unit_means(mine[mine["protocol"] == "crop"], unit))
        bits += float(scored["nats"].sum()) / math.log(2)
        n_bytes += int(scored["bytes"].sum())
    nll = _matrix(own, str(row["preset"]))
    row["nll"], row["nll_lo"], row["nll_hi"] = two_way_interval(nll)
    row["ppl"] = math.exp(row["nll"]) if row["nll"] < 700 else math.inf
    row["bpb"] = bits / n_bytes if n_bytes else math.nan
    if all(len(column) for column in crop) and not group["gain"].isna().any():
        pairs = [reference - scored for reference, scored in zip(crop, own, strict=True)]
        gain = _matrix([pair.dropna() for pair in pairs], str(row["preset"]))
        row["gain"], row["gain_lo"], row["gain_hi"] = two_way_interval(gain)
    else:
        row["gain"] = row["gain_lo"] = row["gain_hi"] = math.nan
    if row["protocol"] == "repeat" and all(len(column) for column in control):
        pairs = [reference - scored for reference, scored in zip(control, own, strict=True)]
        gain = _matrix([pair.dropna() for pair in pairs], str(row["preset"]))
        row["control_nll"] = float(group["control_nll"].mean())
        row["repeat_gain"], row["repeat_lo"], row["repeat_hi"] = two_way_interval(gain)
    return row


def pool(rows: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """One row per configuration, rescaling, protocol and length, with `n_seeds`.

    A single seed keeps its own numbers. A stamp on any row of any seed stays on all of them.
    """
    family = ["preset", "model"]
    joined = {}
    for key, group in rows.groupby(family, sort=False):
        seeds = group.drop_duplicates("run_id").sort_values(["seed", "run_id"])
        joined[key] = {
            "run_id": "+".join(seeds["run_id"]),
            "seed": "+".join(str(seed) for seed in seeds["seed"]),
            "stamp": "; ".join(stamp_parts(group["stamp"])),
        }
    pooled = []
    keys = [*family, *(name for name in IDENTITY if name != "run_id")]
    for key, group in rows.groupby(keys, sort=False):
        group = group.drop_duplicates("seed", keep="last")
        row = records(group)[0] if len(group) == 1 else _pooled_row(group, blocks)
        pooled.append({**row, **joined[key[:2]], "n_seeds": len(group)})
    frame = pd.DataFrame(pooled)
    for name in COUNTS:
        if name != "seed":
            frame[name] = frame[name].astype("Int64")
    return sorted_rows(frame)
