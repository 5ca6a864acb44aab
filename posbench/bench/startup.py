"""Seconds until a fresh process has answered, in turn with one that does nothing."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posbench.bench.alternate import alternate
from posbench.bench.machine import Clock
from posbench.bench.result import SECONDS, Measurement

BARE = "startup/python -c pass"
#: a run that is over with its first step, on a model that is absurd on purpose
FIRST_STEP = [
    "train",
    "experiment=smoke",
    "train.steps=1",
    "train.val_windows=1",
    "train.compile=false",
]
#: what the program writes after its first step
STEPPED = "  step 1/1  "


class StartFailed(Exception):
    """A process did not end as it should; one line."""


@dataclass
class Start:
    """A process from its start to its end, or to the first line on stderr that holds `until`."""

    command: Sequence[str]
    environment: dict[str, str]
    until: str = ""
    clock: Clock = time.perf_counter

    def __call__(self) -> float:
        """Seconds that it took."""
        with tempfile.TemporaryDirectory() as folder:
            began = self.clock()
            process = subprocess.Popen(
                self.command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                cwd=folder,
                env=os.environ | self.environment,
            )
            assert process.stderr is not None
            seconds, last = None, ""
            for line in process.stderr:
                last = line.strip() or last
                if self.until and self.until in line and seconds is None:
                    seconds = self.clock() - began
            code = process.wait()
            seconds = self.clock() - began if not self.until else seconds
            process.stderr.close()
        if code or seconds is None:
            raise StartFailed(last or f"exit code {code}")
        return seconds


def subjects() -> dict[str, Start]:
    """What is started, by the name of its measurement."""
    python = [sys.executable]
    program = [*python, "-c", "import sys; sys.argv[0] = 'posbench'; import posbench.cli as cli"]
    program[-1] += "; cli.app(prog_name='posbench')"
    typed = {
        "_POSBENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": "posbench train posenc = al",
        "COMP_CWORD": "4",
    }
    # plain lines on stderr, from a source checkout or an installed package alike
    here = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *_python_path()])}
    return {
        BARE: Start([*python, "-c", "pass"], {}),
        "startup/import torch": Start([*python, "-c", "import torch"], {}),
        "startup/--help": Start([*program, "--help"], here),
        "startup/list": Start([*program, "list"], here),
        "startup/completion": Start(program, here | typed),
        "startup/train, first step": Start([*program, *FIRST_STEP], here, STEPPED),
    }


def _python_path() -> list[str]:
    return [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]


def measure(
    rounds: int,
    note: Callable[[str], None],
    report: Callable[[str], None] = lambda item: None,
    started: dict[str, Start] | None = None,
) -> list[Measurement]:
    """Samples of every start; each is made once before, so that files are cached and compiled."""
    started = subjects() if started is None else started

    def failed(name: str, error: Exception) -> None:
        note(f"{name}: {error}")

    report("first starts")
    warm = alternate(started, 1, failed)
    found = alternate(
        {name: started[name] for name in warm}, rounds, failed, lambda n: report(f"round {n}")
    )
    return [
        Measurement(name, SECONDS, samples, BARE, "" if name == BARE else BARE)
        for name, samples in found.items()
    ]


def settings() -> dict[str, Any]:
    """What two results must share, so that their starts compare."""
    return {"first step": " ".join(FIRST_STEP[1:])}
