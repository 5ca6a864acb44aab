"""Evaluations of the session's run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from posbench import model as models
from posbench.evaluate import lengths
from posbench.evaluate import plan as planning


def sweep_of(rule: str = "none", options: dict[str, Any] | None = None, **evaluation: Any) -> Any:
    """A SweepConfig: one rescaling with its options, and settings of the evaluation."""
    from posbench import registry, settings

    config = settings.EvalConfig(**({"threads": 1, "device": "cpu"} | evaluation))
    rescale = registry.get("rescale", rule).Config(**(options or {}))
    return settings.SweepConfig(rescale=rescale, eval=config)


@pytest.fixture(scope="session")
def sweep() -> Callable[..., Any]:
    return sweep_of


def measured(run: Any, *sweeps: Any, **evaluation: Any) -> Path:
    """The folder of an evaluation; without sweeps the unscaled model under `evaluation`."""
    return lengths.evaluate(planning.plan(run, list(sweeps) or [sweep_of(**evaluation)]))


@pytest.fixture(scope="session")
def evaluate() -> Callable[..., Path]:
    return measured


@pytest.fixture(scope="session")
def rows() -> Callable[[Path], pd.DataFrame]:
    """The rows of an evaluation folder, every cell as it is written."""
    return lambda folder: pd.read_csv(folder / "lengths.csv", dtype=str, keep_default_na=False)


@pytest.fixture(scope="module")
def model(trained_here: Any) -> models.Decoder:
    built = models.build(trained_here.config, 256)
    models.load_weights(built, trained_here.weights)
    return built.eval()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[planning.Key]:
    """The cells that forward passes are made for."""
    made: list[planning.Key] = []
    whole = lengths._Scorer._sweep

    def counted(self: Any, key: planning.Key, encoding: Any) -> Any:
        made.append(key)
        return whole(self, key, encoding)

    monkeypatch.setattr(lengths._Scorer, "_sweep", counted)
    return made
