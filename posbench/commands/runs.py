"""Training, measuring, collecting."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posbench import complete, console
from posbench.commands.app import Overrides, Plugins, RunsAndOverrides, app
from posbench.errors import ConfigError, RunError

if TYPE_CHECKING:
    from posbench import jobs


@app.command()
def train(
    overrides: Overrides = None,
    multirun: Annotated[
        bool,
        typer.Option(
            "--multirun", "-m", help="Sweep: values with commas or glob(*) give one run each."
        ),
    ] = False,
    jobs: Annotated[
        str,
        typer.Option(
            "--jobs",
            "-j",
            metavar="N",
            help="With -m: N runs at a time, each in its own process; auto = measured once.",
        ),
    ] = "1",
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Train again what is finished; its evaluations are removed."),
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Train one run, or a sweep with -m. A finished run is reused, an interrupted one goes on."""
    from posbench import devices, launch

    devices.make_fast()
    _check_jobs(jobs, "auto")
    if jobs != "1" and not multirun:
        raise ConfigError(f"--jobs={jobs}: several runs at a time need -m")
    given = [*(overrides or []), *(["fresh=true"] if fresh else [])]
    outcomes = launch.train(given, multirun, _announce, jobs)
    for line in _outcome_table(outcomes):
        if console.leading():
            print(line)
    if any(o.status in ("diverged", "failed") for o in outcomes):
        raise typer.Exit(1)


def _check_jobs(jobs: str, *words: str) -> None:
    """ConfigError for what is no number of processes."""
    if jobs not in words and (not jobs.isdecimal() or int(jobs) < 1):
        allowed = " or ".join(["a whole number of at least 1", *words])
        raise ConfigError(f"--jobs={jobs}: must be {allowed}")


def _announce(ready: "list[jobs.Prepared]") -> None:
    """Hyper-parameters that follow the training length: the paper's value and the one used."""
    from posbench import model

    lines = [
        f"{one.config.preset}: {tied.option} = {tied.used} at L = {one.config.train.seq_len} "
        f"(paper: {tied.paper})"
        for one in ready
        for tied in model.tied(one.config)
    ]
    for line in dict.fromkeys(lines):
        console.note(line)


def _outcome_table(outcomes: "list[jobs.Outcome]") -> list[str]:
    """One line a run: status, validation loss, folder; errors below."""
    lines = []
    for o in outcomes:
        loss = "      -" if o.val_loss is None else f"{o.val_loss:7.4f}"
        lines.append(f"{o.status:<9} val loss {loss}  {o.folder}")
        if o.message:
            console.error(o.message)
    return lines


@app.command("eval-lengths", short_help="Measure trained runs at many test lengths.")
def eval_lengths(
    arguments: RunsAndOverrides = None,
    jobs: Annotated[
        str,
        typer.Option(
            "--jobs", "-j", metavar="N", help="Measure N runs at a time, each in its own process."
        ),
    ] = "1",
    plugin: Plugins = None,
) -> None:
    """Measure trained runs at many test lengths, under one or many rescalings."""
    from posbench import devices, launch, runs
    from posbench.evaluate import lengths, parallel, tuning
    from posbench.evaluate.plan import plan

    devices.make_fast()
    _check_jobs(jobs)
    if jobs != "1":
        parallel.loky()
    given = arguments or []
    places, overrides = _split(given)
    sweeps = launch.sweeps(overrides)
    if not places and sweeps[0].name:
        places = [sweeps[0].name]
    if not places:
        raise ConfigError("RUN is missing: name a run folder, a folder of runs, or name=NAME")
    found, unfinished = runs.find(places, sweeps[0].runs_root)
    for run in unfinished:
        console.note(f"{run.path}: passed over, its training is not finished ({run.status})")
    if not found:
        raise RunError(f"{' '.join(places)}: no finished run")
    workers = min(int(jobs), len(found))
    if workers > 1:
        sweeps = parallel.share(sweeps, workers)
    plans = [plan(run, sweeps) for run in found]
    for stale in filter(lengths.by_other_code, (p.folder for p in plans)):
        console.note(f"{stale}: reused, though measured by other code; remove it to measure again")
    for line in dict.fromkeys(filter(None, map(tuning.note, plans))):
        console.note(line)
    presets = list(dict.fromkeys(p.run.config.preset for p in plans))
    title = f"eval-lengths {', '.join(presets)}"
    if len(title) > 60:
        title = f"eval-lengths {len(plans)} runs"
    with console.steps(title, sum(len(p.keys()) for p in plans)) as report:
        if workers > 1:
            outcomes = parallel.side_by_side(plans, sweeps, workers, report)
        else:
            outcomes = parallel.one_by_one(plans, report)
    done = [(p.run.path, o.folder) for p, o in zip(plans, outcomes, strict=True) if o.folder]
    if done:
        print(_table([path for path, _ in done], [folder for _, folder in done]))
    for outcome in outcomes:
        if outcome.message:
            console.error(outcome.message)
    if len(done) < len(plans):
        raise typer.Exit(1)


def _table(run_dirs: list[Path], evaluations: list[Path]) -> str:
    """The table of exactly these evaluations."""
    from posbench.report import collect, tables

    return tables.terminal_table(collect.collect(run_dirs, only=evaluations).pooled)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Run names and overrides: an override has '=' or begins with '~' or '+'."""
    overrides = [a for a in arguments if "=" in a or a.startswith(("~", "+"))]
    return [a for a in arguments if a not in overrides], overrides


@app.command(short_help="Tables, verdicts, comparisons and figures of runs.")
def report(
    where: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME or RUN...]",
            help="Names below runs_root, folders of runs, or run folders; default: default.",
            autocompletion=complete.runs,
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write to; default <runs_root>/<name>/report/.", show_default=False
        ),
    ] = None,
    training: Annotated[
        bool,
        typer.Option(
            "--training",
            help="Instead: loss, time and speed of training, as table, CSV and curves.",
        ),
    ] = False,
    runs_root: Annotated[str, typer.Option(help="Folder that holds the runs.")] = "runs",
) -> None:
    """Collect evaluations: tables, verdicts, comparisons and figures."""
    from posbench import runs
    from posbench.files import require_writable
    from posbench.report import tables
    from posbench.report.training import write_training
    from posbench.report.write import write_report

    for argument in where or []:
        if "=" in argument:
            hint = "; write --runs-root" if argument.startswith("runs_root=") else ""
            raise ConfigError(
                f"{argument}: report takes no overrides, only names and run folders{hint}"
            )
    if out is not None:
        require_writable(f"--out={out}", out / "lengths.md")
    finished, unfinished = runs.find(where or ["default"], runs_root)
    found = finished + unfinished
    if out is None:
        parents = {run.path.resolve().parent for run in found}
        if len(parents) > 1:
            raise ConfigError("--out must be given: the runs are in several folders")
        out = found[0].path.parent / "report"
    if training:
        if not finished:
            raise RunError(f"{' '.join(where or ['default'])}: no finished run")
        text, files = write_training(finished, out)
        print(text)
        console.note(f"wrote {out}/{' '.join(files)}")
        return
    collected = write_report([run.path for run in found], out)
    print(tables.terminal_table(collected.pooled))
    for name, why in collected.skipped.items():
        console.note(f"not in the table: {name}: {why}")
    console.note(f"wrote {out}/{' '.join(collected.files)}")
