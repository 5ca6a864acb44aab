"""What a fine-tuning gains and costs: its loss at the target length, and at the first length L.

Both on windows of the validation documents, evenly spaced; of each window the last L predictions
count, so that at the target length all of them have at least target - L tokens before them.
"""

from typing import Any

import torch
import torch.nn.functional as F

from posbench import finetune
from posbench import model as models
from posbench.data.dataset import Dataset
from posbench.grid import Shape
from posbench.model import Decoder
from posbench.settings import RunConfig

#: None where positions do not reach so far
Losses = dict[str, float | None]


class Extension:
    """Measures models at both lengths; about as many tokens are read at each."""

    def __init__(self, config: RunConfig, data: Dataset, device: torch.device):
        train, L = config.train, config.first_length
        self.config, self.device, self.vocab_size = config, device, data.tokenizer.vocab_size
        self.length, self.target = L, finetune.target(config)
        grid = len(config.shape) > 1
        shapes = {"target": config.shape if grid else (self.target,)}
        shapes["short"] = config.shape if grid else (L,)
        self.windows: dict[str, tuple[Shape, torch.Tensor, torch.Tensor]] = {}
        for name, shape in shapes.items():
            n = max(1, train.val_windows * L // self.target) if name == "target" else None
            found = data.validation_windows(shape, n or train.val_windows)
            inputs, labels = (torch.from_numpy(a) for a in found)
            self.windows[name] = shape, inputs, labels[:, -L:]

    def base(self) -> Losses:
        """Losses of the run that is gone on from, as it was trained."""
        run = finetune.base_of(self.config)
        model = models.build(run.config, self.vocab_size)
        models.load_weights(model, run.weights)
        return self.losses(model.to(self.device))

    def losses(self, model: Decoder) -> Losses:
        """`target_loss` and `short_loss` in nats per token."""
        return {f"{name}_loss": self.loss(model, name) for name in self.windows}

    @torch.no_grad()
    def loss(self, model: Decoder, name: str) -> float | None:
        """Mean loss at one of the two lengths, in nats per token."""
        shape, inputs, labels = self.windows[name]
        most = model.sampler.max_length
        if most is not None and inputs.shape[1] > most:
            return None
        scored = torch.arange(inputs.shape[1] - labels.shape[1], inputs.shape[1])
        pos = model.positions(shape)[:, : inputs.shape[1]]
        train, total, training = self.config.train, 0.0, model.training
        size = max(1, train.batch_size * train.seq_len // inputs.shape[1])
        model.eval()
        for i in range(0, len(inputs), size):
            x, y = inputs[i : i + size].to(self.device), labels[i : i + size].to(self.device)
            logits = model.logits(model.hidden(x, pos_BTA=pos, scored_S=scored)).flatten(0, 1)
            total += F.cross_entropy(logits.float(), y.flatten(), reduction="sum").item()
        model.train(training)
        return total / int((labels >= 0).sum())

    def summary(self, base: Losses, start: Losses, end: Losses) -> dict[str, Any]:
        """For the manifest: the losses of the base run, before the first step and after the last.

        `tax` is what the short length lost: its loss after minus that of the base run.
        """
        moments = {"base": base, "start": start, "end": end}
        return {
            "length": self.length,
            "target": self.target,
            **{
                name: {moment: found[name] for moment, found in moments.items()}
                for name in ("target_loss", "short_loss")
            },
            "tax": _difference(end["short_loss"], base["short_loss"]),
        }


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
