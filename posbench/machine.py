"""The machine: its processor and the cores that this process may use. Without torch."""

import os
import platform
import subprocess
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


def processor() -> str:
    """Name of the processor, as the system gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2] for line in file if line.startswith("model name")]
    except OSError:
        names = []
    if not names and platform.system() == "Darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        names = [subprocess.run(asked, capture_output=True, text=True, check=False).stdout]
    return (names[0] if names else platform.processor() or platform.machine()).strip()
