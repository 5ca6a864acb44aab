"""How fast this machine trains and evaluates."""

import json
from pathlib import Path
from typing import Annotated

import typer

from posbench import complete, console
from posbench.commands.app import Plugins, app
from posbench.errors import ConfigError


@app.command(short_help="Time training steps, forward passes and start-up.")
def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[train|eval|startup|all] [OVERRIDES]",
            help="What to measure, then overrides as of `posbench train`. posenc=a,b,c names the "
            "schemes: for steps they are compared with none (default: all schemes, which takes "
            "minutes, less with train.compile=false), for passes by length with rope (default: "
            "rope alone). eval.lengths, eval.threads, eval.device and "
            "eval.memory_limit are heeded too.",
            autocompletion=complete.bench,
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, samples and all.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the JSON to this file too.", show_default=False),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="An earlier result (--out): print ratios new / old and which are noise.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Rounds; every measurement has one sample in each.")
    ] = 7,
    limit: Annotated[
        float,
        typer.Option(
            help="Seconds: a longer forward pass is taken once, and longer lengths are left out."
        ),
    ] = 10.0,
    plugin: Plugins = None,
) -> None:
    """Time training steps, forward passes by length, and start-up, in alternating order."""
    if rounds < 1:
        raise ConfigError(f"--rounds={rounds}: must be at least 1")
    if not limit > 0:
        raise ConfigError(f"--limit={limit:g}: must be above 0 (seconds)")
    from posbench import devices
    from posbench.bench import tables
    from posbench.bench.run import run
    from posbench.files import require_writable

    if out is not None:
        require_writable(f"--out={out}", out)
    devices.make_fast()
    result, compared = run(arguments or [], rounds, limit, against, console.steps)
    if out is not None:
        result.write(out)
        console.note(f"wrote {out}")
    if as_json:
        found = result.plain() | ({"comparison": compared.plain()} if compared else {})
        print(json.dumps(found, indent=2))
        return
    print(tables.text(result))
    if compared is not None:
        print(f"\n{tables.comparison(compared, str(against))}")
