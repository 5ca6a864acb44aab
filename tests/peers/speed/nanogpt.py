"""The loop of nanoGPT's train.py around the model.py of a local checkout."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from torch import Tensor, nn

from peers.speed import loop
from peers.speed.task import Task


def version() -> str:
    return "local checkout"


def imported(checkout: str) -> ModuleType:
    """The checkout's model.py."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", Path(checkout) / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def start(task: Task) -> loop.Steps:
    """Defaults of train.py: no dropout, no biases, weight decay 0.1; the MLP is 4 widths wide."""
    s, code = task.shape, imported(task.checkout)
    model = code.GPT(
        code.GPTConfig(
            block_size=s.length,
            vocab_size=s.vocabulary,
            n_layer=s.layers,
            n_head=s.heads,
            n_embd=s.width,
            dropout=0.0,
            bias=False,
        )
    )
    optimizer = model.configure_optimizers(0.1, loop.rate(task), loop.BETAS, "cpu")

    def loss(called: nn.Module, batch: Tensor) -> Tensor:
        return called(batch[:, :-1], batch[:, 1:].contiguous())[1]

    return loop.training(task, model, loss, optimizer)
