"""Training steps: what is timed, what is compared, and what cannot be measured."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import refused

from posbench.bench import training


class Fake:
    """A stepper whose first step takes 5 s and others 1/8 s of the test's clock."""

    def __init__(self, clock: Any):
        self.clock, self.device, self.seen = clock, torch.device("cpu"), list[int]()

    def batches(self, data: Any, first: int) -> Iterator[str]:
        yield from ["a", "b", "c", "d", "e"][first:]

    def __call__(self, batch: str, step: int) -> None:
        self.clock.now += 0.125 if self.seen else 5.0
        assert "abcde"[step] == batch
        self.seen.append(step)


def test_the_first_step_stands_apart_and_samples_are_means(clock: Any) -> None:
    fake: Any = Fake(clock)
    steps = training.Steps(fake, None, clock)  # type: ignore[arg-type]
    assert steps.first == 5.0
    assert steps.count == 3  # 0.3 s make a sample
    assert steps() == steps() == 0.125
    assert fake.seen == [0, 1, 2, 3, 4, 0, 1, 2]  # the run begins again at its end


def test_steps_of_schemes_beside_none(small: list[str], bench: Callable[..., Any]) -> None:
    done, result = bench("train", "posenc=rope,alibi", *small, "--rounds", "3")
    names = [m.name for m in result.measurements]
    assert names == ["train/matmul", *(f"train/{s}/eager" for s in ("none", "rope", "alibi"))]
    for one in result.measurements:
        assert len(one.samples) == 3 and one.unit == "s"
    for one in result.measurements[1:]:
        assert (one.reference, one.yardstick) == ("train/none/eager", "train/matmul")
        assert one.facts["tokens"] == 4 * 64
    assert result.get("train/matmul").facts["operations"] == 2 * 64**3
    assert result.environment["cores"] and result.environment["cpu"]
    for line in ("rope ", "alibi ", "none ", "matrix product 64 x 64"):
        assert line in done.out
    assert "total for this run" not in done.out and not result.notes


def test_operations_of_a_step_are_counted(
    small: list[str], bench: Callable[..., Any], settings_of: Callable[..., Any]
) -> None:
    """Torch counts the matrix products; those of attention are added query by query."""
    from torch.utils.flop_counter import FlopCounterMode

    from posbench import model as models

    _, result = bench("train", "posenc=none", *small, "--rounds", "1")
    built = models.build(settings_of(posenc="none"), 256)
    with FlopCounterMode(display=False) as counter:
        built(torch.zeros(4, 64, dtype=torch.long)).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    products = sum(counts.get(op, 0) for op in (torch.ops.aten.mm, torch.ops.posbench.linear))
    keys = sum(query + 1 for query in range(64))
    attention = 3 * 4 * 2 * 2 * (2 * 32 * keys)  # passes, sequences, layers, products
    assert result.get("train/none/eager").facts["operations"] == products + attention


def test_compiled_steps_and_the_total_of_the_run(
    small: list[str], bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler is a stand-in; the real one takes seconds."""
    compiled = []

    def compile(function: Any, **options: Any) -> Any:
        compiled.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    words = ["train", "posenc=rope", *small[:-1], "train.compile=true", "--rounds", "2"]
    done, result = bench(*words)
    assert len(compiled) == 2
    one = result.get("train/rope/compiled")
    assert one.reference == "train/none/compiled"
    assert one.facts["compiling"] == max(0.0, one.facts["first"] - one.median)
    assert "total for this run of 5 steps" in done.out
    assert done.out.count("\n  compiled ") == 2


def test_what_cannot_be_compiled_or_built_is_a_line(
    small: list[str], bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.exc import Unsupported

    def compile(function: Any, **options: Any) -> Any:
        def fail(*batch: Any) -> Any:
            raise Unsupported("no graph for this")

        return fail

    monkeypatch.setattr(torch, "compile", compile)
    words = ["train", "posenc=rope,layers", *small[:-1], "train.compile=true", "--rounds", "1"]
    done, result = bench(*words, "posenc.pattern=[rope]")
    assert [m.name for m in result.measurements] == [
        "train/matmul",
        "train/none/eager",
        "train/layers/eager",
    ]
    assert result.notes[0].startswith("train/rope: posenc.pattern is an option of posenc=layers")
    assert any("cannot be compiled (no graph for this)" in note for note in result.notes)
    assert "not measured:" in done.out
    assert not any(m.name.endswith("compiled") for m in result.measurements)


def test_all_schemes_are_measured_where_none_is_named() -> None:
    from posbench import registry
    from posbench.bench import asked

    found = training.schemes(asked.read(["train"]))
    assert found[0] == "none" and sorted(found) == list(registry.names("posenc"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["steps"], ["WHAT=steps is unknown", "train, eval, startup, all"]),
        (["train", "posenc=ropes"], ["posenc=ropes is unknown", "did you mean rope?"]),
        (["train", "train.stepz=3"], ["train.stepz"]),
        (["train", "train.seq_len=64,128"], ["train.seq_len=64,128", "several values"]),
        (["train", "posenc=rope", "posenc.nothing=1"], ["posenc.nothing"]),
        (["eval", "eval.docs=3"], ["eval.docs=3", "eval.lengths"]),
        (["eval", "eval.lengths=[32]"], ["eval.lengths=32", "at least 64"]),
        (["--rounds", "0"], ["--rounds=0: must be at least 1"]),
        (["--limit", "0"], ["--limit=0: must be above 0"]),
        (["--out", "."], ["--out=.: cannot be written"]),
        (["--against", "nothing.json"], ["--against=nothing.json: cannot be read"]),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], said: list[str], posbench: Callable[..., Any], tiny: list[str]
) -> None:
    data = tiny if words[0] == "train" else []
    refused(posbench("bench", *data, *words), *said)
