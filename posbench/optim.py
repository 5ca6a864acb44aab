"""Optimizers and the learning-rate schedule."""

from typing import Any

import torch
from torch import nn

from posbench.model import Decoder
from posbench.settings import OptimizerConfig, RunConfig, TrainConfig


def groups(
    model: Decoder, config: OptimizerConfig
) -> tuple[list[dict[str, Any]], list[nn.Parameter]]:
    """AdamW's groups, and the 2-D weights of the blocks.

    Norms, biases and embeddings get no weight decay; a positional scheme's own parameters come in
    the groups it declares.
    """
    matrices, decayed, plain = [], [], []
    for name, p in model.named_parameters():
        if name.startswith("posenc."):
            continue
        if name.startswith("blocks.") and p.ndim == 2:
            matrices.append(p)
        elif p.ndim == 2 and not name.startswith("embedding"):
            decayed.append(p)
        else:
            plain.append(p)
    own = [g for g in model.posenc.param_groups() if g["params"]]
    adamw = [
        {"params": decayed, "lr_factor": 1.0, "weight_decay": config.weight_decay},
        {"params": plain, "lr_factor": 1.0, "weight_decay": 0.0},
        *own,
    ]
    return [g for g in adamw if g["params"]], matrices


def build(model: Decoder, config: RunConfig) -> list[torch.optim.Optimizer]:
    """The optimizers of a run; every group carries `lr_factor`, a multiple of train.lr."""
    opt = config.optimizer
    adamw, matrices = groups(model, opt)
    optimizers: list[torch.optim.Optimizer] = []
    if opt.name == "muon":
        optimizers.append(
            torch.optim.Muon(
                [{"params": matrices, "lr_factor": opt.muon_lr_factor}],
                lr=peak(config.train),
                weight_decay=opt.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    else:
        adamw.insert(0, {"params": matrices, "lr_factor": 1.0, "weight_decay": opt.weight_decay})
    optimizers.insert(
        0, torch.optim.AdamW(adamw, lr=peak(config.train), betas=(opt.beta1, opt.beta2))
    )
    return optimizers


def peak(config: TrainConfig) -> float:
    """The peak learning rate; a run's settings always hold one."""
    assert config.lr is not None
    return config.lr


def rate(config: TrainConfig, step: int) -> float:
    """Share of the peak learning rate at a step (0-based): linear rise, level, linear fall."""
    warmup, decay = config.warmup * config.steps, config.decay * config.steps
    up = min(1.0, (step + 1) / warmup) if warmup else 1.0
    left = min(1.0, (config.steps - 1 - step) / decay) if decay else 1.0
    return up * (config.final_lr + (1 - config.final_lr) * left)


def set_rate(optimizers: list[Any], config: TrainConfig, step: int) -> None:
    """Give every group its learning rate for a step."""
    share = rate(config, step)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = peak(config) * group["lr_factor"] * share
