"""Optimizers and the learning-rate schedule."""

from typing import Any

import torch
from torch import Tensor, nn

from posbench.model import Decoder
from posbench.settings import OptimizerConfig, RunConfig, TrainConfig


def groups(
    model: Decoder, config: OptimizerConfig
) -> tuple[list[dict[str, Any]], list[nn.Parameter]]:
    """AdamW's groups, and the 2-D weights of the blocks.

    Norms, biases and the token embedding get no weight decay, an output embedding of its own
    (model.tied=false) does; a positional scheme's own parameters come in the groups it declares.
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


class Muon(torch.optim.Muon):
    """torch's Muon with the matrices of one shape orthogonalised together.

    On a CPU in their own type, else in bfloat16, as torch does everywhere: on a CPU it is slow.
    State and options are torch's, but for two that are fixed: Nesterov's momentum, and the learning
    rate of `match_rms_adamw`.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step on all parameters that have a gradient."""
        for group in self.param_groups:
            ours: list[Tensor] = []
            grads: list[Tensor] = []
            moments: list[Tensor] = []
            self._init_group(group, ours, grads, moments)
            torch._foreach_lerp_(moments, grads, 1 - group["momentum"])
            ahead = torch._foreach_lerp(grads, moments, group["momentum"])
            torch._foreach_mul_(ours, 1 - group["lr"] * group["weight_decay"])
            shapes: dict[torch.Size, list[int]] = {}
            for i, p in enumerate(ours):
                shapes.setdefault(p.shape, []).append(i)
            for shape, members in shapes.items():
                whole = torch.stack([ahead[i] for i in members])
                kind = whole.dtype if whole.device.type == "cpu" else torch.bfloat16
                turned = orthogonalised(whole.to(kind), group).to(whole.dtype)
                rate = group["lr"] * 0.2 * max(shape) ** 0.5
                torch._foreach_add_([ours[i] for i in members], list(turned), alpha=-rate)


def orthogonalised(matrices: Tensor, group: dict[str, Any]) -> Tensor:
    """Newton-Schulz iteration [N, rows, columns]: singular values go to about 1."""
    a, b, c = group["ns_coefficients"]
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def build(model: Decoder, config: RunConfig) -> list[torch.optim.Optimizer]:
    """The optimizers of a run; every group carries `lr_factor`, a multiple of train.lr."""
    opt = config.optimizer
    adamw, matrices = groups(model, opt)
    optimizers: list[torch.optim.Optimizer] = []
    if opt.name == "muon":
        optimizers.append(
            Muon(
                [{"params": matrices, "lr_factor": opt.muon_lr_factor}],
                lr=peak(config.train),
                weight_decay=opt.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    else:
        adamw.insert(0, {"params": matrices, "lr_factor": 1.0, "weight_decay": opt.weight_decay})
    optimizers.insert(
        0, torch.optim.AdamW(adamw, lr=peak(config.train), betas=(opt.beta1, opt.beta2), fused=True)
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
