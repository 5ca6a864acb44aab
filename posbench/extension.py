"""What a fine-tuning gains and costs: its loss at the target length, and at the first length L.

Both on windows of the validation documents, evenly spaced; of each window the last L predictions
count, so that at the target length all of them have at least target - L tokens before them. What
the loss at the target is to come down to is the base run's for the same predictions, each from no
more than the last L tokens and no less than three quarters of them. The loss at L would be an easy
aim: there the first predictions have next to nothing before them.
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
        self.start_token = data.tokenizer.start
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
        model = model.to(self.device)
        found = self.losses(model)
        return found | {"aim": self._crop(model) if self._on_text() else found["short_loss"]}

    def losses(self, model: Decoder) -> Losses:
        """`target_loss` and `short_loss` in nats per token."""
        return {f"{name}_loss": self.loss(model, name) for name in self.windows}

    def loss(self, model: Decoder, name: str) -> float | None:
        """Mean loss at one of the two lengths, in nats per token."""
        shape, inputs, labels = self.windows[name]
        if not model.has_positions(shape):
            return None
        return self._nats(model, shape, inputs, labels) / int((labels >= 0).sum())

    def _on_text(self) -> bool:
        """Whether a window may begin anywhere: a task has its question at the beginning."""
        return len(self.config.shape) == 1 and hasattr(self.config.data, "tokenizer")

    def _crop(self, model: Decoder) -> float:
        """Mean loss of what counts at the target, from the last L tokens alone."""
        _, inputs, labels = self.windows["target"]
        end, total = inputs.shape[1] - labels.shape[1], 0.0
        for y in labels.split(max(1, self.length // 4), dim=1):
            end += y.shape[1]
            x = inputs[:, max(0, end - self.length) : end].clone()
            if self.start_token is not None:
                x[:, 0] = self.start_token
            total += self._nats(model, (x.shape[1],), x, y)
        return total / int((labels >= 0).sum())

    @torch.no_grad()
    def _nats(
        self, model: Decoder, shape: Shape, inputs: torch.Tensor, labels: torch.Tensor
    ) -> float:
        """Summed loss of the last predictions of windows, as many as there are labels."""
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
        return total

    def summary(self, base: Losses, start: Losses, end: Losses) -> dict[str, Any]:
        """For the manifest: the losses of the base run, before the first step and after the last.

        `aim` is what the loss at the target is to come down to, `tax` what the short length lost:
        its loss after minus that of the base run.
        """
        moments = {"base": base, "start": start, "end": end}
        return {
            "length": self.length,
            "target": self.target,
            **{
                name: {moment: found[name] for moment, found in moments.items()}
                for name in ("target_loss", "short_loss")
            },
            "aim": base["aim"],
            "tax": _difference(end["short_loss"], base["short_loss"]),
        }


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
