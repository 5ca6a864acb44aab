"""What a bench measured, and its JSON.

    {"schema": 1, "kind": "posbench bench",
     "environment": {"cpu": .., "cores": .., "torch": .., "posbench": .., "time": .., ...},
     "settings": {"train": {..}, "eval": {..}, "startup": {..}},   of the parts that were run
     "measurements": [{"name": .., "unit": "s", "samples": [..], "reference": ..,
                       "yardstick": .., "facts": {..}}, ..],
     "notes": ["..", ..]}

Element i of `samples` is of round i. `reference` names the measurement that the ratio in the table
is formed with, `yardstick` the one that tells how fast the machine was in the same rounds.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posbench.bench.statistics import Ratio, median, paired
from posbench.errors import ConfigError
from posbench.files import write_json

SCHEMA, KIND = 1, "posbench bench"
SECONDS, BYTES = "s", "bytes"
#: how a step is run, the last part of its name
EAGER, COMPILED = "eager", "compiled"


@dataclass
class Measurement:
    """Samples of one quantity; names are paths, e.g. `train/rope/compiled`."""

    name: str
    unit: str
    samples: list[float]
    reference: str = ""
    yardstick: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return median(self.samples)


@dataclass
class Result:
    """Everything that one call of `posbench bench` measured."""

    environment: dict[str, Any]
    settings: dict[str, dict[str, Any]]
    measurements: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def get(self, name: str) -> Measurement | None:
        """The measurement of that name, if there is one."""
        return next((m for m in self.measurements if m.name == name), None)

    def ratio(self, one: Measurement) -> Ratio | None:
        """A measurement over its reference; None where that is missing or itself."""
        reference = self.get(one.reference)
        if reference is None or reference is one:
            return None
        return paired(one.samples, reference.samples)

    def plain(self) -> dict[str, Any]:
        """The JSON object."""
        return {"schema": SCHEMA, "kind": KIND, **dataclasses.asdict(self)}

    def write(self, path: Path) -> None:
        """Write the JSON object to a file."""
        write_json(path, self.plain())

    @classmethod
    def read(cls, path: Path, option: str) -> "Result":
        """A result from its file; ConfigError where the file holds none."""
        where = f"{option}={path}"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{where}: cannot be read ({error.strerror})") from None
        except ValueError:
            raise ConfigError(f"{where}: not a result of posbench bench (no JSON)") from None
        if not isinstance(stored, dict) or stored.get("kind") != KIND:
            raise ConfigError(f"{where}: not a result of posbench bench")
        if stored.get("schema") != SCHEMA:
            raise ConfigError(
                f"{where}: written by another version of posbench (schema "
                f"{stored.get('schema')}, here {SCHEMA})"
            )
        try:
            found = [Measurement(**m) for m in stored["measurements"]]
            result = cls(dict(stored["environment"]), dict(stored["settings"]), found)
            result.notes = [str(note) for note in stored["notes"]]
            if not all(map(_sound, found)):
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError(f"{where}: a damaged result of posbench bench") from None
        return result


def _sound(one: Measurement) -> bool:
    """Whether a measurement that was read can be computed with."""
    numbers = all(isinstance(x, int | float) and x > 0 for x in one.samples)
    return isinstance(one.name, str) and bool(one.samples) and numbers
