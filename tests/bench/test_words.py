"""What a person types and gets: JSON, files, a comparison, completion."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import refused

from posbench import complete, registry


def test_json_files_and_a_comparison(
    small: list[str], posbench: Callable[..., Any], tmp_path: Path
) -> None:
    words = ["bench", "train", "posenc=rope", *small, "--rounds", "2"]
    first = posbench(*words, "--json", "--out", "a.json")
    assert first.code == 0, first.err
    stored = json.loads((tmp_path / "a.json").read_text())
    assert json.loads(first.out) == stored
    assert stored["kind"] == "posbench bench" and stored["schema"] == 1
    assert {"cpu", "cores", "torch", "posbench", "time", "threads"} <= stored["environment"].keys()
    assert stored["settings"]["train"]["train.batch_size"] == 4

    second = posbench(*words, "posenc=alibi", "--against", "a.json")
    assert second.code == 0, second.err
    after = second.out[second.out.index("against a.json") :].splitlines()
    assert max(map(len, after)) <= 80
    compared = {line.split()[0]: line.split()[-1] for line in after if line.startswith("train/")}
    assert compared == dict.fromkeys(
        ("train/matmul", "train/none/eager", "train/rope/eager"), "noise"
    )
    assert "only now: train/alibi/eager" in second.out

    both = posbench(*words, "--json", "--against", "a.json")
    changes = json.loads(both.out)["comparison"]["changes"]
    assert [c["name"] for c in changes] == ["train/matmul", "train/none/eager", "train/rope/eager"]
    refused(
        posbench(*words, "train.batch_size=2", "--against", "a.json"),
        "--against=a.json",
        "train.batch_size was 4, is 2",
    )
    (tmp_path / "b.json").write_text("{}")
    refused(posbench(*words, "--against", "b.json"), "--against=b.json", "not a result")


def context(*words: str) -> Any:
    """What typer hands over: the words before the one to complete are in `params`."""
    return SimpleNamespace(params={"arguments": [*words]})


@pytest.mark.parametrize(
    ("before", "begun", "expected"),
    [
        ([], "t", ["train", "tier="]),
        ([], "st", ["startup"]),
        (["train"], "st", []),
        (
            ["eval"],
            "eval.",
            ["eval.device=", "eval.lengths=", "eval.memory_limit=", "eval.threads="],
        ),
        (["train"], "posenc=alib", ["posenc=alibi"]),
        (["train"], "posenc=rope,alib", ["posenc=rope,alibi"]),
        (["train", "posenc", "="], "rope,alib", ["rope,alibi"]),  # bash
        (["train", "seed", "="], "0,", []),
    ],
)
def test_completion(before: list[str], begun: str, expected: list[str]) -> None:
    found = complete.bench(context(*before), [], begun)
    assert found[: len(expected)] == expected
    assert bool(found) == bool(expected)


def test_every_part_is_offered_first() -> None:
    found = complete.bench(context(), [], "")
    assert found[:4] == ["train", "eval", "startup", "all"]
    assert "posenc=" in found and "train.compile=" in found
    assert len(complete.bench(context(), [], "posenc=rope,")) == len(registry.options("posenc"))
