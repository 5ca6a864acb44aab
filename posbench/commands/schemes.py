"""What there is, what it computes, and whether it holds."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posbench import complete, console
from posbench.commands.app import Plugins, app

if TYPE_CHECKING:
    from posbench import registry


@app.command("list", short_help="Schemes, rescalings, samplers, corpora and presets.")
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


@app.command(short_help="Paper, formula, options and numbers of a scheme.")
def show(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME [KEY=VALUE]...",
            help="A scheme, rescaling or position sampler; where several have the name it is the "
            "scheme, and rescale=none the rescaling. Then its own options, those of the rope that "
            "a rescaling is shown on (base, rotary_fraction), and heads, head_dim, d_model, "
            "layers, layer, train_length, test_length (or shape=16x16, test_shape), factor, "
            "distances=[...], positions=[...], seed, dtype.",
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


@app.command(short_help="Test schemes against the contract that all must pass.")
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
