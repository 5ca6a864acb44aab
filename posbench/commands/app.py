"""The program itself, and the arguments that several commands share."""

from typing import Annotated

import typer

from posbench import __version__, complete

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
