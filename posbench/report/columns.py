"""Columns of the tables that evaluations leave, and what names a row or a scored cell."""

from posbench.evaluate import verdicts
from posbench.report import spent

TEXT = [
    "run_id", "name", "posenc", "preset", "positions", "rescale", "factor", "data", "tokenizer",
    "tier", "track", "protocol", "targets_hash", "verdict", "status", "dtype", "options",
    "stamp", "windows_hash", "train_shape", "test_shape",
]  # fmt: skip
COUNTS = ["seed", "n_docs", "n_blocks", "n_targets"]
LENGTHS = ["train_len", "test_len"]
#: of probes
PROBES = ["accuracy", "exact", "control_nll", "repeat_gain", "repeat_lo", "repeat_hi"]
#: of a task over seeds: least, median and largest accuracy, share of seeds that solve a length
OF_SEEDS = ["accuracy_min", "accuracy_median", "accuracy_max", "success_rate"]
FLOATS = [
    "scale", "ratio", "n_eff", "mean_context", "nll", "nll_lo", "nll_hi", "ppl", "bpb",
    "crop_nll", "gain", "gain_lo", "gain_hi", "base_nll", "ngram_nll", "chance", *PROBES,
    *verdicts.COLUMNS, *spent.COLUMNS,
]  # fmt: skip
#: columns that older files lack -> the column that says the same there
LATER = {"windows_hash": "", "stride": "", "train_shape": "train_len", "test_shape": "test_len"}
LATER |= dict.fromkeys(["distance", "chance", *PROBES, *verdicts.COLUMNS, *spent.COLUMNS], "")
LATER_BLOCKS = {"test_shape": "test_len", "distance": ""}
#: protocols of blocks that rows are compared with
REFERENCES = ("crop", "context16", "trained_long", "control")
RULE = ["rescale", "factor", "options"]
IDENTITY = [
    "run_id", *RULE, "protocol", "stride", "distance", "test_len", "test_shape", "targets_hash",
    "dtype",
]  # fmt: skip
#: what `collect` adds to the columns on disk
INTERNAL = ["model", "settings", "eval_id", "interval_over", "tied", "passed", "base"]
#: what pooling adds to them for the table and the figures: see posbench.report.pooling
SHOWN = ["members", "long_nll", "long_lo", "long_hi"]
BLOCK_COUNTS = ["test_len", "block", "end", "tokens", "bytes"]
BLOCK_COLUMNS = [*RULE, "protocol", "document", "nats", *BLOCK_COUNTS]
#: an evaluation; with rule, protocol and length what a scored cell is named by
SOURCE = ["run_id", "eval_id"]
PLACE = [*SOURCE, *RULE, "protocol", "test_len", "test_shape"]
