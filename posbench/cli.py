"""The program. Results go to stdout, everything else to stderr.

Exit codes: 0 ok, 1 a run failed, 2 bad input, 130 interrupted. Nothing heavy (torch, pandas, scipy,
matplotlib) is imported at module level, here or in `posbench.commands`: `--help` answers at once.
"""

import errno
import os
import signal
import sys
import threading
from typing import Any

import typer

from posbench import console
from posbench.commands import bench, claims, config, runs, schemes
from posbench.commands.app import app
from posbench.errors import PosbenchError

__all__ = ["app", "bench", "claims", "config", "main", "runs", "schemes"]

#: what typer, or click below an older one, raises for a command line that it cannot read
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]


def main() -> None:
    """Entry point: user errors become one line and an exit code, an interrupt 130.

    SIGTERM, which schedulers send before they end a job, is an interrupt as well; not in one
    process of several, which may be waiting for the others and would not see it.
    """
    alone = "LOCAL_RANK" not in os.environ
    if alone and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = app(standalone_mode=False)
    except PosbenchError as error:
        console.error(str(error))
        sys.exit(error.exit_code)
    except _ClickException as error:
        sys.exit(_misread(error))
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        console.error(f"no space left: {error.filename or 'the output'} cannot be written")
        sys.exit(1)
    if code == 130:  # what typer makes of KeyboardInterrupt
        console.note("posbench: interrupted; type the same command again to go on")
    sys.exit(code or 0)


def _misread(error: Any) -> int:
    """Say what is wrong with the command line; a program without a command gets the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        ctx = getattr(error, "ctx", None)
        command = ctx.command_path if ctx else "posbench"
        console.error(f"{error.format_message().rstrip('.')} (see {command} --help)")
    return int(error.exit_code)
