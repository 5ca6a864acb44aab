"""The machine: its processor, the cores that this process may use, its parent. Without torch."""

import os
import platform
import subprocess
import threading
import time
from functools import cache
from pathlib import Path


def cores() -> int:
    """Cores that this process may use: its affinity, and its share in a container."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()[:2]
        return max(1, min(count, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no such file, or no limit in it
        return count


@cache
def end_with(parent: int | None) -> None:
    """End this process within a second of its parent, given by its number, however that ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def vendor() -> str:
    """Maker of the processor, as Linux gives it (`GenuineIntel`); empty elsewhere."""
    return (_said("vendor_id") or [""])[0].strip()


def _said(key: str) -> list[str]:
    """What Linux says of every core under a key."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return [line.partition(":")[2] for line in file if line.startswith(key)]
    except OSError:
        return []


def processor() -> str:
    """Name of the processor, as the system gives it."""
    names = _said("model name")
    if not names and platform.system() == "Darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        names = [subprocess.run(asked, capture_output=True, text=True, check=False).stdout]
    return (names[0] if names else platform.processor() or platform.machine()).strip()
