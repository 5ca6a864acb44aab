"""x-transformers, as its README uses it."""

from collections.abc import Callable
from importlib.metadata import version as installed
from typing import Any

from torch import Tensor, nn
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

from peers.speed import loop
from peers.speed.task import Task

#: options of each scheme; T5's bias excludes the fused attention
SCHEMES: dict[str, dict[str, Any]] = {
    "rope": {"rotary_pos_emb": True, "attn_flash": True},
    "alibi": {"alibi_pos_bias": True, "attn_flash": True},
    "t5": {"rel_pos_bias": True},
}


def version() -> str:
    return installed("x-transformers")


def build(task: Task, longest: int) -> TransformerWrapper:
    s = task.shape
    return TransformerWrapper(
        num_tokens=s.vocabulary,
        max_seq_len=longest,
        use_abs_pos_emb=False,
        tie_embedding=True,
        attn_layers=Decoder(
            dim=s.width,
            depth=s.layers,
            heads=s.heads,
            attn_dim_head=s.width // s.heads,
            ff_mult=s.hidden / s.width,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
            use_rmsnorm=True,
            **SCHEMES[task.scheme],
        ),
    )


def start(task: Task) -> loop.Steps:
    """The wrapper takes a window and predicts all but its first token."""
    model = AutoregressiveWrapper(build(task, task.shape.length))

    def loss(called: nn.Module, batch: Tensor) -> Tensor:
        return called(batch[:, :-1])

    return loop.training(task, model, loss, loop.adamw(model, task))


def scorer(task: Task) -> Callable[[Tensor], Tensor]:
    """Logits of the whole window, of which the last are scored."""
    model = build(task, max(task.lengths)).eval()
    return lambda window: loop.last(model(window[None, :-1]), window)
