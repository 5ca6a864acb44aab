"""Names of runs that exist: they must stay what they are, whatever options come to be."""

import csv
import json
from pathlib import Path

import pytest

from posbench import jobs, launch, settings
from posbench.data import pinned

REFERENCE = Path(__file__).parents[1] / "runs" / "reference" / "demo" / "lengths.csv"

#: overrides -> id with the content hash `content`, as they were before runs could go on from others
GOLDEN = {
    "experiment=demo": "rope-L128-s0-d52863c0",
    "experiment=demo posenc=rope_matched": "rope_matched-L128-s0-2cb5c656",
    "experiment=demo posenc=alibi": "alibi-L128-s0-5001b21c",
    "experiment=smoke posenc=t5": "t5-L128-s0-47e8722f",
    "posenc=stack posenc.parts=[rope,logn] seed=2 optimizer=muon": "stack-L128-s2-4c275c63",
    "positions=randomized posenc=learned train.seq_len=64": "learned-L64-s0-a8bf4d78",
    "data=text data.path=/x data.tokenizer=bytes": "rope-L128-s0-4cc0b12e",
}


def run_id(words: str, content: str) -> str:
    ((cfg, preset),) = launch.train_configs(words.split(), multirun=False)
    return settings.run_id(jobs.run_config(cfg, preset), content)


@pytest.mark.parametrize("words", GOLDEN)
def test_ids_of_ordinary_runs_are_what_they_were(words: str) -> None:
    assert run_id(words, "content") == GOLDEN[words]


@pytest.mark.parametrize("preset", ["rope", "rope_matched", "alibi", "none"])
def test_the_committed_demo_runs_have_the_ids_that_their_settings_give(preset: str) -> None:
    targets = json.loads(pinned.read("sotu", "bpe1024", pinned.TARGETS) or b"")
    with REFERENCE.open(encoding="utf-8") as file:
        committed = {row["run_id"] for row in csv.DictReader(file)}
    found = run_id(f"experiment=demo posenc={preset}", targets["content_sha256"])
    assert found in committed
