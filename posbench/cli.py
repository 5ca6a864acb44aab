"""The commands. Results go to stdout, everything else to stderr.

Exit codes: 0 ok, 1 a run failed, 2 bad input, 130 interrupted. Nothing heavy (torch, pandas, scipy,
matplotlib) is imported at module level: `--help` answers at once.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posbench import __version__, complete, console
from posbench.errors import ConfigError, PosbenchError, RunError

if TYPE_CHECKING:
    from posbench import jobs, registry

app = typer.Typer(
    name="posbench",
    help="Train a small decoder with any positional encoding on short sequences, then "
    "measure it on long ones.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Hydra overrides: group=option or key=value, e.g. posenc=alibi train.steps=500.",
        autocompletion=complete.train,
        show_default=False,
    ),
]
RunsAndOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN... [OVERRIDES]",
        help="Run folders, folders of runs or names below runs_root; overrides as key=value, e.g. "
        "rescale=[none,yarn] rescale.factor=[8,auto] eval.lengths=[128,1024].",
        autocompletion=complete.eval_lengths,
        show_default=False,
    ),
]


def _load(files: list[str] | None) -> list[str] | None:
    """Register the plug-ins of the command line, before anything else is looked at."""
    from posbench import registry

    for file in files or []:
        registry.load_plugin(file)
    return files


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        callback=_load,
        is_eager=True,
        help="A file with a scheme, rescaling, sampler or corpus of your own; may be repeated.",
        show_default=False,
    ),
]


def _version(value: bool) -> None:
    if value:
        print(f"posbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Shown by the help of the program itself."""


@app.command()
def train(
    overrides: Overrides = None,
    multirun: Annotated[
        bool,
        typer.Option(
            "--multirun", "-m", help="Sweep: values with commas or glob(*) give one run each."
        ),
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Train again what is finished; its evaluations are removed."),
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Train one run, or a sweep with -m. A finished run is reused, an interrupted one goes on."""
    from posbench import launch

    given = [*(overrides or []), *(["fresh=true"] if fresh else [])]
    outcomes = launch.train(given, multirun, _announce)
    for line in _outcome_table(outcomes):
        if console.leading():
            print(line)
    if any(o.status in ("diverged", "failed") for o in outcomes):
        raise typer.Exit(1)


def _announce(ready: "list[jobs.Prepared]") -> None:
    """Hyper-parameters that follow the training length: the paper's value and the one used."""
    from posbench import model

    lines = [
        f"{one.config.preset}: {tied.option} = {tied.used} at L = {one.config.train.seq_len} "
        f"(paper: {tied.paper})"
        for one in ready
        for tied in model.build_posenc(one.config).tied()
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


@app.command("eval-lengths")
def eval_lengths(arguments: RunsAndOverrides = None, plugin: Plugins = None) -> None:
    """Measure trained runs at many test lengths, under one or many rescalings."""
    from posbench import launch, runs
    from posbench.evaluate import lengths
    from posbench.evaluate.plan import plan

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
    plans = [plan(run, sweeps) for run in found]
    total = sum(len(dict.fromkeys([*p.needed(), *p.wanted()])) for p in plans)
    title = f"eval-lengths {', '.join(p.run.config.preset for p in plans)}"
    with console.steps(title, total) as report:
        folders = [lengths.evaluate(p, report) for p in plans]
    print(_table([p.run.path for p in plans], folders))


def _table(run_dirs: list[Path], evaluations: list[Path]) -> str:
    """The table of exactly these evaluations."""
    from posbench.report import collect, tables

    return tables.terminal_table(collect.collect(run_dirs, only=evaluations).pooled)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Run names and overrides: an override has '=' or begins with '~' or '+'."""
    overrides = [a for a in arguments if "=" in a or a.startswith(("~", "+"))]
    return [a for a in arguments if a not in overrides], overrides


@app.command()
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
    runs_root: Annotated[str, typer.Option(help="Folder that holds the runs.")] = "runs",
) -> None:
    """Collect evaluations: lengths.csv, lengths.md, perplexity and ratio figures, and the table."""
    from posbench import runs
    from posbench.report import tables
    from posbench.report.write import write_report

    for argument in where or []:
        if "=" in argument:
            raise ConfigError(f"{argument}: report takes no overrides, only names and run folders")
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out={out}: a file of that name is in the way")
    finished, unfinished = runs.find(where or ["default"], runs_root)
    found = finished + unfinished
    if out is None:
        parents = {run.path.resolve().parent for run in found}
        if len(parents) > 1:
            raise ConfigError("--out must be given: the runs are in several folders")
        out = found[0].path.parent / "report"
    collected = write_report([run.path for run in found], out)
    print(tables.terminal_table(collected.pooled))
    for name, why in collected.skipped.items():
        console.note(f"not in the table: {name}: {why}")
    console.note(f"wrote {out}/lengths.csv lengths.md perplexity.{{png,svg}} ratio.{{png,svg}}")


@app.command("list")
def list_everything(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    plugin: Plugins = None,
) -> None:
    """Every scheme, rescaling, sampler, corpus, model preset and experiment."""
    from posbench import registry

    entries = registry.catalogue()
    if as_json:
        print(json.dumps([vars(e) for e in entries], indent=2))
        return
    print("\n".join(_listing(entries)))


def _listing(entries: "list[registry.Entry]") -> list[str]:
    """Entries by kind, wrapped to 80 columns."""
    import textwrap

    width = max(len(e.name) for e in entries) + 2
    lines: list[str] = []
    for kind in dict.fromkeys(e.kind for e in entries):
        if lines:
            lines.append("")
        option = next(e.option for e in entries if e.kind == kind)
        lines.append(f"{kind} ({option}=)")
        for e in (e for e in entries if e.kind == kind):
            about = "; ".join(x for x in (e.family, e.paper) if x and x != kind)
            text = f"{e.summary} [{about}]" if about else e.summary
            lines += textwrap.wrap(
                text, 79, initial_indent=f"  {e.name:<{width}}", subsequent_indent=" " * (width + 2)
            )
    return lines


@app.command()
def show(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME [KEY=VALUE]...",
            help="A scheme, rescaling or position sampler; where several have the name it is the "
            "scheme, and rescale=none the rescaling. Then its own options, those of the rope that "
            "a rescaling is shown on (base, rotary_fraction), and heads, head_dim, d_model, "
            "layers, layer, train_length, test_length, factor, distances=[...], positions=[...], "
            "seed, dtype.",
            autocompletion=complete.show,
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw a figure too: .png, .svg or .pdf.", show_default=False),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Paper, formula, options and numbers of a scheme, rescaling or position sampler."""
    from posbench.show import command

    print(command.show(arguments or [], as_json, plot))
    if plot is not None:
        console.note(f"wrote {plot}")


@app.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="alibi, yarn, rescale=logn ...", show_default=False),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every scheme, rescaling and position sampler.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    plugin: Plugins = None,
) -> None:
    """Check schemes, rescalings and samplers against the contract that all of them must pass."""
    from posbench.checks import names as chosen
    from posbench.checks import text

    results = chosen.results(chosen.asked(names or [], everything, plugin or []))
    if as_json:
        found = list(results)
        print(json.dumps([text.plain(result) for result in found], indent=2))
    else:
        found = text.show(results, lambda line: print(line, flush=True), text.coloured())
    if not all(result.passed for result in found):
        raise typer.Exit(1)


config = typer.Typer(
    help="Print the composed config as YAML.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(config, name="config")


@config.command("train")
def config_train(
    overrides: Overrides = None,
    multirun: Annotated[
        bool, typer.Option("--multirun", "-m", help="Print every run of a sweep.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """The settings of `posbench train` with these overrides."""
    from omegaconf import OmegaConf

    from posbench import jobs, launch, model

    documents = []
    for cfg, preset in launch.train_configs(overrides or [], multirun):
        cfg.preset = preset
        settings = jobs.run_config(cfg, preset)
        length = settings.train.seq_len
        tied = [
            f"# {t.option} is {t.used} at train.seq_len={length} (paper: {t.paper})\n"
            for t in model.build_posenc(settings).tied()
        ]
        if cfg.train.lr is None:
            tied.insert(0, f"# train.lr is {settings.train.lr:g}\n")
        documents.append(OmegaConf.to_yaml(cfg) + "".join(tied))
    print("---\n".join(documents), end="")


@config.command("eval-lengths")
def config_eval_lengths(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(autocompletion=complete.eval_lengths, show_default=False),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """The settings of `posbench eval-lengths`, one document per combination."""
    from omegaconf import OmegaConf

    from posbench import launch

    cfgs = launch.sweep_configs(overrides or [])
    print("---\n".join(OmegaConf.to_yaml(cfg) for cfg in cfgs), end="")


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
