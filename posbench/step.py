"""One optimizer step of a run on its device: what `train` repeats and `bench` measures."""

import contextlib
import importlib.util
import os
import platform
import shutil
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posbench import devices, flops, optim
from posbench.data import cache, skipped
from posbench.data.dataset import Dataset
from posbench.errors import ConfigError
from posbench.model import Decoder
from posbench.settings import RunConfig

#: operations of a run from which on compiling pays for itself, by kind of device; on a CPU for each
#: thread. There it takes 15 to 40 s and saves a quarter to a third of the time
WORTH_COMPILING = {"cpu": 1e13, "cuda": 5e15}

Batch = tuple[Tensor, Tensor, Tensor]


class Stepper:
    """A model with its optimizers, and the step that changes it.

    The forward pass with its loss is compiled, as one graph, where `train.compile` says so; `auto`
    depends on the size of the run, its threads and the machine's tools, never on a clock, so that a
    run that is repeated takes the same path. A scheme that cannot be compiled then runs as it is.
    """

    def __init__(
        self, config: RunConfig, model: Decoder, states: list[dict[str, Any]] | None = None
    ):
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        train = config.train
        self.config, self.model = config, model
        AcceleratorState._reset_state()  # an earlier run here may have had another precision
        device = devices.pick(train.device, "train.device")
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # what accelerate takes, but where it shares a run
        self.accelerator = Accelerator(
            mixed_precision="bf16" if train.precision == "bf16" else "no", cpu=device.type == "cpu"
        )
        self.device = self.accelerator.device
        model.to(self.device)
        optimizers = optim.build(model, config)
        for optimizer, state in zip(optimizers, states or [], strict=states is not None):
            optimizer.load_state_dict(state)
        prepared = self.accelerator.prepare(model, *optimizers)
        self.parallel, self.optimizers = prepared[0], list(prepared[1:])
        #: why the run is not compiled although it was to be; empty where it is as asked
        self.not_compiled = ""
        self.compiled = self._wanted()
        self._loss = self._plain_loss
        if self.compiled:
            devices.keep_compiled(cache.folder() / "compiled")
            self._loss = torch.compile(self._plain_loss, fullgraph=True, dynamic=False)
        self._tried = False

    def _wanted(self) -> bool:
        """Whether to compile; ConfigError where it was asked for and cannot be done."""
        train = self.config.train
        if train.compile == "false":
            return False
        reason = _missing(self.device)
        if not self.model.posenc.compilable:
            reason = f"compiling {self.config.preset} takes too long"
        if self.accelerator.num_processes > 1:
            reason = "several processes share the run"
        if train.compile == "true":
            if reason:
                raise ConfigError(f"train.compile=true: {reason}; use auto or false")
            return True
        vocabulary = self.model.head.out_features
        sequences = train.steps * train.batch_size
        size = flops.training(self.config.model, vocabulary, train.seq_len, sequences)
        threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        if size < threads * WORTH_COMPILING.get(self.device.type, float("inf")):
            return False
        self.not_compiled = reason
        return not reason

    def _plain_loss(self, inputs: Tensor, labels: Tensor, pos: Tensor) -> Tensor:
        """Mean loss in nats per token of a batch."""
        logits = self.parallel(inputs, pos)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    def __call__(self, batch: Batch, step: int) -> Tensor:
        """Take step `step` (0-based) on a batch; returns its loss, still on the device."""
        train = self.config.train
        optim.set_rate(self.optimizers, train, step)
        loss = self._gradients(batch)
        self.accelerator.clip_grad_norm_(self.model.parameters(), train.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.model.posenc.project()
        return loss

    def _gradients(self, batch: Batch) -> Tensor:
        """Loss of a batch; its gradients are added to the parameters'."""
        if not self.compiled or self._tried:
            return self._backward(batch)
        try:
            loss = self._backward(batch)
        except Exception as error:
            if not _from_compiler(error):
                raise
            # the compiler's own first line names only the compiler
            lines = [x for x in str(error).splitlines() if x and not x.endswith("raised:")]
            self.not_compiled = lines[0] if lines else type(error).__name__
            if self.config.train.compile == "true":
                scheme = self.config.preset
                raise ConfigError(
                    f"train.compile=true: {scheme} cannot be compiled ({self.not_compiled}); "
                    "use auto or false"
                ) from None
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)
            self.compiled, self._loss = False, self._plain_loss
            return self._backward(batch)
        self._tried = True
        return loss

    def _backward(self, batch: Batch) -> Tensor:
        with (
            repeatable()
            if self.compiled and self.device.type == "cpu"
            else contextlib.nullcontext()
        ):
            with self.accelerator.autocast():
                loss = self._loss(*batch)
            self.accelerator.backward(loss)
        return loss.detach()

    def batches(self, data: Dataset, first: int) -> Iterator[Batch]:
        """This process's share of the batches of the steps from `first` on.

        Each is made and sent off while the device still works on the step before.
        """
        ready: deque[Batch] = deque()
        for step in range(first, self.config.train.steps):
            ready.append(self._batch(data, step))
            if len(ready) > 1:
                yield ready.popleft()
        yield from ready

    def _batch(self, data: Dataset, step: int) -> Batch:
        """Inputs, labels [B, L] and positions [B or 1, L, A] of a step."""
        train, seed = self.config.train, self.config.seed
        step += self.config.steps_before
        shape = self.config.shape
        sampler = self.model.sampler
        whole = skipped.training_batch(data, sampler, shape, train.batch_size, seed, step)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        inputs, labels = (torch.from_numpy(a[rank::world]) for a in whole)
        pos = self.model.training_positions(train.batch_size, shape, seed, step)
        pos = pos[:, : inputs.shape[1]]
        pos = pos if len(pos) == 1 else pos[rank::world]
        return self._sent(inputs), self._sent(labels), self._sent(pos)

    def _sent(self, x: Tensor) -> Tensor:
        if self.device.type == "cuda":
            return x.pin_memory().to(self.device, non_blocking=True)
        return x.to(self.device)

    def close(self) -> None:
        """Free what was compiled."""
        if self.compiled:
            torch._dynamo.reset()


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """Have compiled code add up in a fixed order: several threads else add as they come."""
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        memory.fill_uninitialized_memory = filled


def _missing(device: torch.device) -> str:
    """Why nothing can be compiled for a device here; empty where it can."""
    if device.type == "cpu":
        compilers = os.environ.get("CXX", ""), "g++", "clang++", "cl"
        return "" if any(map(shutil.which, compilers)) else "no C++ compiler is installed"
    if device.type == "cuda":
        return "" if importlib.util.find_spec("triton") else "triton is not installed"
    return f"not supported on {device.type} ({platform.system()})"


def _from_compiler(error: Exception) -> bool:
    """Whether torch.compile raised an error, or could not keep its files; not the model."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InductorError

    return isinstance(error, TorchDynamoException | InductorError | OSError)
