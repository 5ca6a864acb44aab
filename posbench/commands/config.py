"""The settings of a command, composed."""

from typing import Annotated

import typer

from posbench import complete
from posbench.commands.app import Overrides, Plugins, app

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
            for t in model.tied(settings)
        ]
        if settings.train.seq_len != cfg.train.seq_len:
            tied.insert(0, f"# train.seq_len is {settings.train.seq_len} (data.shape)\n")
        if cfg.train.lr is None:
            tied.insert(0, f"# train.lr is {settings.train.lr:g}\n")
        # what init=RUN fills in is not for typing
        hidden = {"base", *(key for key in ("init", "rescale") if cfg[key] is None)}
        shown = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in hidden])
        documents.append(OmegaConf.to_yaml(shown) + "".join(tied))
    print("---\n".join(documents), end="")


@config.command("eval-lengths")
def config_eval_lengths(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Overrides of posbench eval-lengths, without runs.",
            autocompletion=complete.eval_lengths,
            show_default=False,
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """The settings of `posbench eval-lengths`, one document per combination."""
    from omegaconf import OmegaConf

    from posbench import launch

    cfgs = launch.sweep_configs(overrides or [])
    print("---\n".join(OmegaConf.to_yaml(cfg) for cfg in cfgs), end="")
