"""Peak memory of one forward pass, taken in a process that does nothing else.

On the CPU it is the peak of the resident set during the pass minus the resident set before it: in
Linux from the kernel's own high-water mark, which is reset before the pass; elsewhere from
ru_maxrss, the peak of the process's whole life. On a GPU it is what torch's allocator says. A short
pass comes first, so that libraries hold what they keep.
"""

import contextlib
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posbench.settings import EvalConfig

#: a pass of 64 tokens comes first
SHORT = 64
#: seconds after which a process is ended
PATIENCE = 600


class MemoryUnknown(Exception):
    """A process gave no answer; one line."""


def ask(overrides: Sequence[str], scheme: str, length: int, evaluation: EvalConfig) -> float:
    """Bytes that a pass of a scheme over `length` tokens takes at its peak."""
    task = {
        "words": list(overrides),
        "scheme": scheme,
        "length": length,
        "threads": evaluation.threads,
        "device": evaluation.device,
    }
    command = [sys.executable, "-m", __name__, json.dumps(task)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise MemoryUnknown(f"no answer in {PATIENCE} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise MemoryUnknown(last[-1])
    return float(json.loads(done.stdout))


def _resident() -> int:
    """Bytes that this process has in memory."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def _forget() -> None:
    """Set the kernel's high-water mark to what is resident now, where that can be done."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Bytes at the high-water mark."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        unit = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _taken(task: dict[str, Any]) -> int:
    """Bytes of the pass that a task describes, one page at least."""
    import torch

    from posbench import devices
    from posbench.bench import asked, evaluation, machine

    device = devices.pick(task["device"], "eval.device")
    with machine.as_in_a_run(task["threads"]):
        model = evaluation.model(asked.read(task["words"]).config(task["scheme"]), device)
        short, whole = (
            evaluation.Pass(model, evaluation.window(n), float("inf"))
            for n in (SHORT, task["length"])
        )
        short()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            whole()
            return torch.cuda.max_memory_allocated(device) - before
        _forget()
        before = _resident()
        whole()
        return max(_peak() - before, 4096)


if __name__ == "__main__":
    print(_taken(json.loads(sys.argv[1])))
