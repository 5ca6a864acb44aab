"""The training loop: data -> loss -> step -> log -> checkpoint; resumable at any step.

The batch of a step is a pure function of (seed, step) and the model has no dropout, so weights and
optimizer state are all that a run needs to go on as if it had never stopped.
"""

import contextlib
import math
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.nn.functional as F

from posbench import devices, finetune, optim, plugins, runs, threads
from posbench import model as models
from posbench.data import tasks
from posbench.data.dataset import Dataset
from posbench.errors import ConfigError, RunError, TrainingFailed
from posbench.extension import Extension, Losses
from posbench.files import file_sha256
from posbench.settings import RunConfig, TrainConfig
from posbench.step import Stepper
from posbench.trainlog import JsonLines

LOG = "train.jsonl"
#: what a damaged checkpoint raises when it is read
_DAMAGED = (
    *(RunError, OSError, RuntimeError, UnpicklingError, EOFError),
    *(ValueError, KeyError, TypeError, AttributeError),
)


@dataclass(frozen=True)
class Progress:
    """What a progress display is told after a logged step."""

    step: int
    steps: int
    loss: float
    val_loss: float | None
    tokens_per_second: float


def run(
    config: RunConfig,
    out: Path,
    data: Dataset,
    report: Callable[[Progress], None] = lambda progress: None,
    argv: list[str] | None = None,
) -> runs.Run:
    """Train in the folder `out`, going on from its checkpoint if it has one.

    Returns the finished run. Raises TrainingFailed when the loss is not finite; the manifest then
    says `diverged`.
    """
    from accelerate import PartialState

    devices.make_fast()
    target = devices.pick(config.train.device, "train.device")
    devices.use_threads(_threads(config, out, data.tokenizer.vocab_size, target.type))
    state = PartialState(cpu=target.type == "cpu")
    if config.train.batch_size % state.num_processes:
        raise ConfigError(
            f"train.batch_size={config.train.batch_size}: must be divisible by the "
            f"{state.num_processes} processes"
        )
    main = state.is_main_process
    with runs.locked(out) if main else contextlib.nullcontext():
        manifest = runs.new_manifest(config, out.name, argv or runs.argv())
        if (out / runs.MANIFEST).is_file():
            before = runs.Run.open(out).manifest
            if before.get("config_sha256") != manifest["config_sha256"]:
                raise RunError(f"{out}: holds a run of other settings")
            if before.get("data") != runs.facts(data):
                raise RunError(f"{out}: holds a run on other data, tokenizer or targets")
        manifest |= {"data": runs.facts(data), **_base(config)}
        record = runs.Run(out, manifest, writes=main)
        record.update()
        if main:
            data.tokenizer.save(out / "tokenizer.json")
            plugins.keep(config, out)
        state.wait_for_everyone()
        try:
            with contextlib.closing(_Loop(config, record, data, report)) as loop:
                loop.go()
        except TrainingFailed as error:
            record.update(status="diverged", finished=runs.now(), error=str(error))
            raise
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            record.update(
                status="interrupted" if stopped else "failed",
                finished=runs.now(),
                error=f"{type(error).__name__}: {error}",
                traceback=None if stopped else traceback.format_exc(),
            )
            raise
        return record


def _base(config: RunConfig) -> dict[str, Any]:
    """What the manifest says of the run that a fine-tuning goes on from."""
    return {"base": {"path": config.init, **asdict(config.base)}} if config.base else {}


def _threads(config: RunConfig, out: Path, vocab_size: int, device: str) -> int | None:
    """Threads of a run; under `auto`, one that goes on keeps those that it began with."""
    auto = isinstance(config.train.threads, str)
    if auto and (out / runs.MANIFEST).is_file() and runs.checkpoint_folder(out) is not None:
        before = runs.Run.open(out).manifest.get("environment", {}).get("threads")
        if isinstance(before, int):
            return before
    return threads.for_run(config, vocab_size, device)


class _Loop:
    """State of one run in one process."""

    def __init__(
        self,
        config: RunConfig,
        record: runs.Run,
        data: Dataset,
        report: Callable[[Progress], None],
    ):
        self.config, self.record, self.data, self.report = config, record, data, report
        train = config.train
        self.model = models.build(config, data.tokenizer.vocab_size)
        #: seconds that earlier legs of this run took
        self.earlier = 0.0
        self.began = time.perf_counter()
        #: of a fine-tuning: losses of the base run, and before the first step
        self.before: dict[str, Losses] = {}
        self.start, states = self._restored()
        if config.base and not self.start:
            models.load_weights(self.model, finetune.base_of(config).weights)
        self.stepper = Stepper(config, self.model, states)
        self.main = self.stepper.accelerator.is_main_process
        self.validation = data.validation_windows(config.shape, train.val_windows)
        self.extension = Extension(config, data, self.stepper.device) if config.base else None

    def go(self) -> None:
        """Train to the last step."""
        train = self.config.train
        self.began, seen = time.perf_counter(), 0
        val_loss: float | None = None
        value: float | None = None
        with self._log() as log:
            if self.extension and not self.start:
                self.before["base"] = self.extension.base()
                self.before["start"] = self.extension.losses(self.model)
                log({"step": 0, "loss": None, "val_loss": None, **self.before["start"]})
            batches = self.stepper.batches(self.data, self.start)
            for step, batch in enumerate(batches, self.start):
                loss = self.stepper(batch, step)
                if step == self.start:
                    self._began(time.perf_counter() - self.began)
                seen += train.batch_size * train.seq_len
                done = step + 1
                last = done == train.steps
                fresh = self._validate() if done % train.val_every == 0 or last else None
                val_loss = val_loss if fresh is None else fresh
                measured = self.extension and (done % train.target_every == 0 or last)
                logged = done % train.log_every == 0 or last or done == self.start + 1
                if logged or measured or fresh is not None:
                    value = loss.item()
                    self._check("loss", value, done)
                    self._check("validation loss", fresh, done)
                    rate = seen / (time.perf_counter() - self.began)
                    line = {"step": done, "loss": value, "val_loss": fresh}
                    if self.extension and measured:
                        line["target_loss"] = self.extension.loss(self.model, "target")
                    log(
                        line
                        | {"lr": optim.peak(train) * optim.rate(train, step), "tokens_per_s": rate}
                    )
                    self.report(Progress(done, train.steps, value, fresh, rate))
                if (done % train.checkpoint_every == 0 or last) and self.main:
                    self._save(done)
        self._finish(value, val_loss)

    def _check(self, what: str, value: float | None, step: int) -> None:
        """TrainingFailed where a loss is not finite."""
        if value is not None and not math.isfinite(value):
            raise TrainingFailed(
                f"{self.record.path}: the {what} is {value} at step {step}; "
                f"try a lower train.lr (now {optim.peak(self.config.train):g})"
            )

    @torch.no_grad()
    def _validate(self) -> float:
        """Mean loss in nats per scored token on the fixed validation windows."""
        self.model.eval()
        inputs, labels = (torch.from_numpy(a) for a in self.validation)
        pos = self.model.positions(self.config.shape)[:, : inputs.shape[1]]
        total, size = 0.0, self.config.train.batch_size
        for i in range(0, len(inputs), size):
            x = inputs[i : i + size].to(self.stepper.device)
            y = labels[i : i + size].to(self.stepper.device)
            logits = self.model(x, pos).flatten(0, 1).float()
            total += F.cross_entropy(logits, y.flatten(), reduction="sum").item()
        self.model.train()
        return total / int((labels != tasks.UNSCORED).sum())

    def _began(self, seconds: float) -> None:
        """Record how this leg computes, and what its first step took, compiling included."""
        self.record.update(
            compiled=self.stepper.compiled,
            not_compiled=self.stepper.not_compiled,
            first_step_seconds=round(seconds, 1),
        )

    def close(self) -> None:
        """Free what the run holds in this process."""
        self.stepper.close()

    def _log(self) -> JsonLines:
        return JsonLines(self.record.path / LOG, self.start, self.main)

    def _save(self, step: int) -> None:
        """Write the checkpoint beside the old one, then swap."""
        from safetensors.torch import save_model

        aside = self.record.path / f".{runs.CHECKPOINT}.new"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        save_model(self.model, str(aside / runs.WEIGHTS))
        states = {
            "step": step,
            "optimizers": [o.state_dict() for o in self.stepper.optimizers],
            "weights_sha256": file_sha256(aside / runs.WEIGHTS),
            "seconds": self._seconds(),
            "before": self.before,
        }
        torch.save(states, aside / "optimizer.pt")
        runs.replace_folder(aside, self.record.path / runs.CHECKPOINT)

    def _restored(self) -> tuple[int, list[dict[str, Any]] | None]:
        """Load the newest checkpoint's weights, if any: the next step, and optimizer states."""
        folder = runs.checkpoint_folder(self.record.path)
        if folder is None:
            return 0, None
        try:
            states = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
            if file_sha256(folder / runs.WEIGHTS) != states["weights_sha256"]:
                raise RunError("damaged checkpoint")
            models.load_weights(self.model, folder / runs.WEIGHTS)
            step, optimizers = int(states["step"]), states["optimizers"]
            self.earlier, self.before = float(states["seconds"]), states.get("before", {})
        except _DAMAGED:
            # a damaged checkpoint is worth no more than none
            self.record.update(restarted=f"damaged checkpoint ({folder.name})")
            models.initialise(self.model, self.config.seed)
            return 0, None
        return min(step, self.config.train.steps), optimizers

    def _seconds(self) -> float:
        """Seconds of training so far, earlier legs included."""
        return self.earlier + time.perf_counter() - self.began

    def _finish(self, loss: float | None, val_loss: float | None) -> None:
        seconds = self._seconds()
        self.stepper.accelerator.wait_for_everyone()
        if val_loss is None:
            val_loss = self._validate()
        if self.extension:
            found = self.extension.summary(**self.before, end=self.extension.losses(self.model))
            self.record.update(extension=found)
        weights = self.record.path / runs.CHECKPOINT / runs.WEIGHTS
        own = sum(p.numel() for p in self.model.posenc.parameters())
        config: TrainConfig = self.config.train
        tokens = config.steps * config.batch_size * config.seq_len
        self.record.update(
            status="finished",
            finished=runs.now(),
            train_loss=loss,
            val_loss=val_loss,
            parameters={
                "total": sum(p.numel() for p in self.model.parameters()),
                "blocks": sum(p.numel() for p in self.model.blocks.parameters()),
                "positional": own,
            },
            tied=[vars(t) for t in models.tied(self.config)],
            tokens=tokens,
            seconds=round(seconds, 1),
            tokens_per_s=round(tokens / seconds) if seconds else None,
            device=str(self.stepper.device),
            weights_sha256=file_sha256(weights),
        )
