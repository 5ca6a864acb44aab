"""Memory of an evaluation: the estimate, refusals, and 16,384 tokens under 2 GiB."""

import gc
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import window
from oracles import SCHEMES
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from posbench import model as models
from posbench.data import windows
from posbench.evaluate import score
from posbench.evaluate.score import OutOfMemory

Evaluate = Callable[..., Path]
Rows = Callable[[Path], pd.DataFrame]
K = 32  # scored tokens of a block


# --- memory ---------------------------------------------------------------------------------------


class Peak(TorchDispatchMode):
    """The most bytes that results of operations held together."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for t in result if isinstance(result, tuple | list) else [result]:
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                self.live[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self.live = {k: v for k, v in self.live.items() if not v[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return result


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("batch", "length"), [(1, 2048), (8, 256)])
def test_memory_needed_is_an_upper_bound(
    settings_of: Callable[..., Any], scheme: str, batch: int, length: int
) -> None:
    longest = {"seq_len": length} if scheme == "learned" else {}
    built = models.build(settings_of(scheme, train=longest), 256).eval()
    tokens = torch.zeros(batch, length, dtype=torch.int64)
    scored = torch.arange(length - K, length)
    gc.collect()
    with torch.inference_mode(), Peak() as watch:
        score._nats(built, built.posenc, tokens, (tokens.shape[1],), [tokens[:, :K]], [scored])
    needed = score.memory_needed(built, built.posenc, batch, length, K)
    assert watch.peak <= needed
    assert needed < 100 * watch.peak


@pytest.mark.parametrize("scheme", ["rope", "alibi", "fox"])
def test_memory_needed_bounds_several_readings_of_one_pass(
    settings_of: Callable[..., Any], scheme: str
) -> None:
    built = models.build(settings_of(scheme), 256).eval()
    tokens = torch.zeros(1, 2048, dtype=torch.int64)
    scored = [torch.arange(n - K, n) for n in (64, 1024, 2047, 2048)]
    gc.collect()
    with torch.inference_mode(), Peak() as watch:
        score._nats(
            built, built.posenc, tokens, (tokens.shape[1],), [tokens[:, :K]] * len(scored), scored
        )
    assert watch.peak <= score.memory_needed(built, built.posenc, 1, 2048, K)


def test_memory_needed_grows_linearly(model: models.Decoder) -> None:
    needed = [score.memory_needed(model, model.posenc, 1, n * 4096, K) for n in (1, 2, 3, 4)]
    steps = np.diff(needed)
    assert steps.max() - steps.min() <= 1 and steps.min() > 0  # rounding to whole bytes
    assert needed[3] < 4 * needed[0]
    batches = np.diff([score.memory_needed(model, model.posenc, b, 1024, K) for b in (1, 2, 3)])
    assert abs(batches[0] - batches[1]) <= 1 and batches[0] > 0


def test_a_window_above_the_limit_is_refused_before_the_forward(
    model: models.Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> Any:
        raise AssertionError("a forward pass was made")

    monkeypatch.setattr(score, "_nats", never)
    needed = score.memory_needed(model, model.posenc, 1, 512, 1)
    with pytest.raises(OutOfMemory):
        score.score(model, model.posenc, [window(512)], np.ones(256, int), 512, needed - 1)


def test_a_limit_that_one_window_fits_is_enough(model: models.Decoder) -> None:
    """A row is refused for its length, not for the number of windows that are read together."""
    needed = score.memory_needed(model, model.posenc, 1, 256, 1)
    read = [window(256, "d", block) for block in range(8)]
    found = score.score(model, model.posenc, read, np.ones(256, int), 256 * 8, needed)
    assert len(found) == 8


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_errors_of_an_allocator_are_caught(
    model: models.Decoder, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(score, "_nats", refuse)
    with pytest.raises(OutOfMemory):
        score.score(model, model.posenc, [window(64)], np.ones(256, int), 64, math.inf)


def test_other_errors_are_not_hidden(
    model: models.Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*arguments: Any) -> Any:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(score, "_nats", crash)
    with pytest.raises(RuntimeError, match="shapes"):
        score.score(model, model.posenc, [window(64)], np.ones(256, int), 64, math.inf)


def test_the_limit_is_what_is_given_or_most_of_what_is_free() -> None:
    assert score.memory_limit(2.5, torch.device("cpu")) == 2.5 * 2**30
    assert score.memory_limit(None, torch.device("cpu")) > 2**20


LONG = """
import resource, sys, torch
from posbench import model as models, registry, settings
from posbench.evaluate import score
torch.set_num_threads(2)
scheme = sys.argv[1]
length = 16384 if scheme == "learned" else 128
config = settings.RunConfig(
    posenc=registry.get("posenc", scheme).Config(),
    positions=registry.get("positions", "standard").Config(),
    data=registry.get("data", "sotu").Config(),
    train=settings.TrainConfig(seq_len=length),
    model=settings.ModelConfig(n_layers=2),  # what a layer needs is free again in the next one
)
model = models.build(config, 1024).eval()
tokens = torch.randint(1024, (1, 16384))
with torch.inference_mode():
    scored = torch.arange(16352, 16384)
    score._nats(model, model.posenc, tokens, (16384,), [tokens[:, :32]], [scored])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_16384_tokens_stay_under_2_gib(scheme: str) -> None:
    """The whole process, libraries included, with the tiny model."""
    if not sys.platform.startswith("linux"):
        pytest.skip("peak memory is read as Linux reports it")
    done = subprocess.run(
        [sys.executable, "-c", LONG, scheme], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 2 * 2**30


def test_windows_with_other_index_sets_do_not_share_a_batch(
    model: models.Decoder, text_data: Any
) -> None:
    tokens = next(iter(text_data.test.values()))

    def window(block: int, *scored: int) -> windows.Window:
        places = np.array(scored)
        return windows.Window("d", block, 64, tokens[:64], tokens[1:65][places], places)

    both = [window(0, 1, 5), window(1, 60, 63)]
    sizes = np.ones(256, dtype=int)
    together = score.score(model, model.posenc, both, sizes, 10_000, math.inf)
    alone = [score.score(model, model.posenc, [w], sizes, 10_000, math.inf)[0] for w in both]
    assert [b.nats for b in together] == [b.nats for b in alone]
