"""The program. Results go to stdout, everything else to stderr.

Exit codes: 0 ok, 1 a run failed, 2 bad input, 130 interrupted. Nothing heavy (torch, pandas, scipy,
matplotlib) is imported at module level, here or in `posbench.commands`: `--help` answers at once.
"""

import sys

from posbench import console
from posbench.commands import bench, claims, config, runs, schemes
from posbench.commands.app import app
from posbench.errors import PosbenchError

__all__ = ["app", "bench", "claims", "config", "main", "runs", "schemes"]


def main() -> None:
    """Entry point: user errors become one line and an exit code, an interrupt 130."""
    try:
        app()
    except PosbenchError as error:
        console.error(str(error))
        sys.exit(error.exit_code)
    except SystemExit as stop:
        if stop.code == 130:  # what typer makes of KeyboardInterrupt
            console.note("posbench: interrupted; type the same command again to go on")
        raise
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
