"""Files that cannot be written, and those that are damaged: one clear line."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from posbench import trainlog
from posbench.errors import ConfigError, RunError
from posbench.files import read_json, write_atomic
from posbench.report.collect import read_table


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    for path in (tmp_path / "file" / "new.csv", Path("/dev/null/new.csv")):
        with pytest.raises(ConfigError, match=r"new\.csv: cannot be written \(\w"):
            write_atomic(path, "text")
    with pytest.raises(OSError, match="cannot be written"):  # caches pass over it
        write_atomic(tmp_path, "text")
    assert (tmp_path / "file").read_text() == "old" and list(tmp_path.iterdir()) == [
        tmp_path / "file"
    ]


@pytest.mark.parametrize("text", ["", '{"a": 1', "[]", None])
def test_damaged_json_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "manifest.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RunError, match=r"manifest\.json is damaged: ."):
        read_json(path)


@pytest.mark.parametrize("text", ['{"step": 1}\n{"st', "3\n", None])
def test_a_damaged_log_is_named(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "train.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RunError, match=r"train\.jsonl is damaged: ."):
        trainlog.read(path)
    path.write_text('{"step": 1}\n{"step": 2}\n')
    assert [line["step"] for line in trainlog.read(path)] == [1, 2]


def test_a_truncated_table_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(b"a,b\n" + b"1,2\n" * 5000)
    path = tmp_path / "blocks.csv.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError, match=r"blocks\.csv\.gz is damaged: ."):
        read_table(path, ["a"])
    path.write_bytes(whole)
    found: Any = read_table(path, ["a", "b"])
    assert len(found) == 5000
