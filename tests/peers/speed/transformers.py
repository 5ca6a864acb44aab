"""transformers' Llama, as its documentation uses it."""

from collections.abc import Callable
from importlib.metadata import version as installed

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from peers.speed import loop
from peers.speed.task import SCORED, Task


def version() -> str:
    return installed("transformers")


def build(task: Task, longest: int) -> LlamaForCausalLM:
    s = task.shape
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=s.vocabulary,
            hidden_size=s.width,
            intermediate_size=s.hidden,
            num_hidden_layers=s.layers,
            num_attention_heads=s.heads,
            max_position_embeddings=longest,
            tie_word_embeddings=True,
        )
    )


def start(task: Task) -> loop.Steps:
    """Labels are the inputs, which the model shifts; no cache, which training has no use for."""
    model = build(task, task.shape.length)

    def loss(called: nn.Module, batch: Tensor) -> Tensor:
        inputs = batch[:, :-1]
        return called(input_ids=inputs, labels=inputs, use_cache=False).loss

    return loop.training(task, model, loss, loop.adamw(model, task))


def scorer(task: Task) -> Callable[[Tensor], Tensor]:
    """As the guide to perplexity does it: labels of -100 before the scored tokens.

    Lean: logits of the last tokens only, and no cache.
    """
    model = build(task, max(task.lengths)).eval()

    def guided(window: Tensor) -> Tensor:
        inputs = window[None, 1:]
        labels = torch.full_like(inputs, -100)
        labels[:, -SCORED:] = inputs[:, -SCORED:]
        return model(input_ids=inputs, labels=labels).loss

    def lean(window: Tensor) -> Tensor:
        out = model(input_ids=window[None, :-1], logits_to_keep=SCORED, use_cache=False)
        return loop.last(out.logits, window)

    return lean if task.lean else guided
