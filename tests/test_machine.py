"""A process that ends with its parent."""

import os
import subprocess
import sys
import time

import pytest

CHILD = "import os, time; from posbench.machine import end_with; end_with(os.getppid()); {told}"
PARENT = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); {rest}"


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks for processes in /proc")
def test_a_worker_ends_with_its_parent_even_if_that_is_killed() -> None:
    child = CHILD.format(told="print(os.getpid(), flush=True); time.sleep(120)")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(child=child, rest="time.sleep(120)")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert running(worker)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    patience = time.monotonic() + 30
    while running(worker) and time.monotonic() < patience:
        time.sleep(0.1)
    assert not running(worker)
