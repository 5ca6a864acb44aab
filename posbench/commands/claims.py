"""The ledger of published claims."""

from pathlib import Path
from typing import Annotated

import typer

from posbench import complete, console
from posbench.commands.app import app
from posbench.errors import ConfigError

CELLS = Path("runs/reference/evidence/cells")


@app.command(short_help="Published claims against the evidence.")
def claims(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...",
            help="Claims, e.g. A02 or A02b; default: all. A claim alone is shown in full.",
            autocompletion=complete.claims,
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Instead: the runs still missing and what they cost.")
    ] = False,
    run: Annotated[
        bool, typer.Option("--run", help="First do missing runs, in the plan's order.")
    ] = False,
    minutes: Annotated[
        float, typer.Option(help="How long --run works; it goes on the next time.")
    ] = 60.0,
    seeds: Annotated[int, typer.Option(help="Least number of seeds; some claims need more.")] = 3,
    cells: Annotated[Path, typer.Option(help="Folder of the committed evidence.")] = CELLS,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write claims.csv and the tables of the evidence to this folder.",
            show_default=False,
        ),
    ] = None,
    runs_root: Annotated[str, typer.Option(help="Folder that holds the runs.")] = "runs",
) -> None:
    """What the evidence says of published claims: holds, contradicted, undecided, not testable."""
    from posbench.evidence import cells as kept
    from posbench.evidence import claims as ledger
    from posbench.evidence import decide, printed, tables, work
    from posbench.evidence import plan as plans
    from posbench.files import require_writable, write_atomic

    if seeds < 1:
        raise ConfigError(f"--seeds={seeds}: must be at least 1")
    if not minutes > 0:
        raise ConfigError(f"--minutes={minutes:g}: must be above 0")
    if out and ids:
        raise ConfigError(f"--out={out}: of all claims; leave out {ids[0]}, or give --csv")
    files = [csv] if csv else []
    files += [out / "claims.csv"] if out else []
    if csv:
        require_writable(f"--csv={csv}", csv)
    if out:
        require_writable(f"--out={out}", out / "claims.csv")
    experiments = plans.load()
    wanted = ledger.chosen(ledger.load(experiments=experiments), ids or [])
    if not cells.exists() and not run and not plan:
        if cells != CELLS:
            raise ConfigError(f"--cells={cells}: no such folder; only --run makes one")
        console.note(f"no evidence here, so nothing is decided: there is no {cells}; see --cells")
    store = kept.opened(cells)
    names = ledger.experiments_of(wanted) if ids else None  # all of the plan
    if plan:
        console.note("composing every line of the plan, which takes half a minute")
        print("\n".join(work.plan(experiments, store, seeds, names, runs_root)))
        return
    if run:
        work.run(experiments, store, seeds, minutes, console.note, names, runs_root)
    evidence = kept.Evidence(store, experiments)
    outcomes = [decide.decide(claim, evidence, seeds) for claim in wanted]
    if ids and len(outcomes) < 4:
        print("\n\n".join(printed.details(o, experiments, seeds) for o in outcomes))
    else:
        print(printed.table(outcomes))
    for file in files:
        write_atomic(file, printed.as_csv(outcomes))
        console.note(f"wrote {file}")
    if out:
        written = tables.write(evidence, out, seeds, runs_root)
        console.note(f"wrote {out}/{' '.join(written)}")
