"""What a run was given and took: columns beside its results, so that unequal budgets are seen."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from posbench import flops
from posbench.settings import ModelConfig

#: of the run, and of a pass over T tokens for each scored block of the row
COLUMNS = ["positional_parameters", "train_tokens", "train_flops", "train_seconds", "test_flops"]


def training_flops(manifest: Mapping[str, Any]) -> float:
    """Floating-point operations of a finished training, counted as in posbench.flops."""
    length = manifest["config"]["train"]["seq_len"]
    sequences = manifest["tokens"] / length
    return flops.training(*_shape(manifest), length, sequences)


def with_spent(rows: pd.DataFrame, manifest: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of a run with COLUMNS; empty where the manifest does not tell, as of old runs."""
    found: dict[str, Any] = dict.fromkeys(COLUMNS)
    if manifest.get("tokens") and "model" in manifest.get("config", {}):
        found["positional_parameters"] = manifest.get("parameters", {}).get("positional")
        found["train_tokens"] = manifest["tokens"]
        found["train_flops"] = training_flops(manifest)
        found["train_seconds"] = manifest.get("seconds")
        shape = _shape(manifest)
        each = [flops.forward(*shape, int(n)) for n in rows["test_len"]]
        found["test_flops"] = rows["n_blocks"].astype("float64") * each
    return rows.assign(**found).astype(dict.fromkeys(COLUMNS, "float64"))


def _shape(manifest: Mapping[str, Any]) -> tuple[ModelConfig, int]:
    config = manifest["config"]
    tokenizer = config["data"].get("tokenizer", "bpe64")
    return ModelConfig(**config["model"]), flops.vocabulary(tokenizer)
