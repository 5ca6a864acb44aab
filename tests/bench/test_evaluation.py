"""Forward passes by length: what is timed, skipped, added up, and how memory is read."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from posbench.bench import asked, evaluation, memory


def test_windows_score_their_last_tokens() -> None:
    (one,) = evaluation.window(100)
    assert len(one.inputs) == 100
    assert one.scored.tolist() == list(range(68, 100))
    assert one.labels[:-1].tolist() == one.inputs[69:].tolist()
    readings = evaluation.window(100, [64, 100])
    assert [r.scored.tolist() for r in readings] == [list(range(32, 64)), list(range(68, 100))]
    assert all(np.array_equal(r.inputs, one.inputs) for r in readings)
    assert readings[0].labels.tolist() == one.inputs[33:65].tolist()


def test_passes_by_length(
    small: list[str], bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One peak is read from a real process; each takes seconds."""
    real = memory.ask

    def ask(words: list[str], scheme: str, length: int, config: Any) -> float:
        last = (scheme, length) == ("alibi", 256)
        return real(words, scheme, length, config) if last else 2.0**20

    monkeypatch.setattr(memory, "ask", ask)
    words = ["eval", "posenc=alibi", *small, "eval.lengths=[64,256]", "--rounds", "2"]
    done, result = bench(*words)
    own = [f"eval/{s}/{w}" for s in ("rope", "alibi") for w in (64, 256, "prefix", "sweep")]
    peaks = [f"memory/{s}/{n}" for s in ("rope", "alibi") for n in (64, 256)]
    assert [m.name for m in result.measurements] == ["eval/matmul", *own, *peaks]
    for scheme in ("rope", "alibi"):
        parts = [result.get(f"eval/{scheme}/{n}").samples for n in (64, 256)]
        total = result.get(f"eval/{scheme}/sweep").samples
        assert total == pytest.approx([a + b for a, b in zip(*parts, strict=True)])
        assert result.get(f"eval/{scheme}/prefix").reference == f"eval/{scheme}/256"
        assert result.get(f"memory/{scheme}/256").unit == "bytes"
    assert result.get("eval/alibi/64").reference == "eval/rope/64"
    taken = result.get("memory/alibi/256").samples[0]
    # at least a float32 stream of 256 tokens and the MLP's hidden width, 128, twice
    assert 256 * (32 + 2 * 128) * 4 <= taken < 64 * 2**20
    assert "peak memory from 64 to 256 tokens: 1.00 times" in done.out


@pytest.fixture
def passes(clock: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Passes take a second for every 64 tokens of the test's clock; (tokens, readings) of each."""
    taken: list[tuple[int, int]] = []

    def once(self: evaluation.Pass) -> None:
        length = len(self.readings[0].inputs)
        taken.append((length, len(self.readings)))
        clock.now += length / 64

    monkeypatch.setattr(evaluation.Pass, "_once", once)
    monkeypatch.setattr(memory, "ask", lambda words, scheme, length, config: 64.0 * length)
    return taken


def measure(words: list[str], limit: float, clock: Any) -> tuple[dict[str, list[float]], list[str]]:
    notes: list[str] = []
    wanted = asked.read(["eval", *words])
    ready = evaluation.prepare(wanted, notes.append)
    found = evaluation.measure(wanted, ready, 2, limit, notes.append, clock=clock)
    return {m.name: m.samples for m in found}, notes


def test_a_pass_beyond_the_limit_is_taken_once_and_longer_ones_never(
    small: list[str], passes: list[tuple[int, int]], clock: Any
) -> None:
    found, notes = measure([*small, "eval.lengths=[64,128,256,512]"], 3.0, clock)
    assert found["eval/rope/64"] == [1.0, 1.0] and found["eval/rope/128"] == [2.0, 2.0]
    assert found["eval/rope/256"] == [4.0]
    assert notes == ["eval/rope/256: took 4 s, so longer lengths were left out (--limit)"]
    assert sorted(passes) == [(64, 1)] * 3 + [(128, 1)] * 3 + [(256, 1)]
    assert not {"eval/rope/512", "eval/rope/sweep", "eval/rope/prefix"} & found.keys()
    assert "memory/rope/256" in found and "memory/rope/512" not in found


def test_a_longest_pass_beyond_the_limit_still_counts(
    small: list[str], passes: list[tuple[int, int]], clock: Any
) -> None:
    found, notes = measure([*small, "eval.lengths=[64,128,256]"], 3.0, clock)
    assert found["eval/rope/sweep"] == [7.0, 7.0] and found["eval/rope/prefix"] == [4.0]
    assert not notes and (256, 3) in passes


def test_lengths_without_positions_are_a_line(
    small: list[str], passes: list[tuple[int, int]], clock: Any
) -> None:
    found, notes = measure([*small, "posenc=learned", "eval.lengths=[64,128,256]"], 9.0, clock)
    assert notes == ["eval/learned/128: no positions for 128 tokens; longer lengths were left out"]
    assert "eval/learned/64" in found and "eval/learned/sweep" not in found


def test_too_little_memory_is_a_line(small: list[str], clock: Any) -> None:
    words = [*small, "eval.lengths=[64,128]", "eval.memory_limit=1e-9"]
    found, notes = measure(words, 9.0, clock)
    assert list(found) == ["eval/matmul"]
    assert notes == [
        "eval/rope/64: needs more memory than is allowed; longer lengths were left out"
    ]


def test_the_peak_is_what_a_process_held_in_between() -> None:
    """80 MB are held and freed again; 200 MB before that are not counted."""
    code = """
import json
from posbench.bench import memory
earlier = bytearray(b"x" * 200_000_000)
del earlier
memory._forget()
before = memory._resident()
held = bytearray(b"x" * 40_000_000) + bytearray(0)
del held
print(json.dumps([before, memory._peak()]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    before, peak = json.loads(done.stdout)
    assert 75e6 < peak - before < 90e6, done.stderr


def test_a_child_that_fails_says_why(small: list[str]) -> None:
    config = asked.read(["eval"]).eval
    with pytest.raises(memory.MemoryUnknown, match="ropes is unknown"):
        memory.ask(small, "ropes", 64, config)
