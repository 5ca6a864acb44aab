"""The command `posbench show`."""

import traceback
from collections.abc import Sequence
from pathlib import Path

from posbench.errors import ConfigError, PosbenchError
from posbench.overrides import values
from posbench.show.ask import find
from posbench.show.facts import as_json, described
from posbench.show.subject import subject
from posbench.show.text import text


def show(words: Sequence[str], json: bool = False, file: Path | None = None) -> str:
    """What is printed for a name and `key=value` words; the figure is drawn on the way."""
    if not words:
        raise ConfigError("NAME is missing: a scheme, rescaling or position sampler, e.g. rope")
    find(words[0])
    if file is not None:
        from posbench.show import plots

        plots.check_path(file)
    try:
        found = subject(words[0], values(words[1:]))
        facts = described(found)
        if file is not None:
            plots.plot(found, facts, file)
        return as_json(facts) if json else text(found, facts)
    except PosbenchError:
        raise
    except Exception as error:  # a plug-in's mistake, or a number that nothing can hold
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"{' '.join(words)}: {reason} ({Path(last.filename).name}:{last.lineno})"
        ) from error
