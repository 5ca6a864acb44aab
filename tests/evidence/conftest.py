"""A small plan on the tiny corpus, worked through in this process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from posbench.evidence import plan as planning
from posbench.evidence import work
from posbench.evidence.cells import Cells, Evidence
from posbench.evidence.work import Todo

SHORT = ("rescale=[none,window]", "eval.lengths=[64,128]", "eval.device=cpu")


@dataclass
class Ended:
    """A command that has ended."""

    done: Any

    def poll(self) -> int:
        return int(self.done.code)

    def stop(self) -> None:
        raise AssertionError("there is nothing to stop")

    def word(self) -> str:
        return str(self.done.err)


@dataclass
class Worked:
    """A plan, its cells, and what was done for them."""

    root: Path
    experiments: dict[str, planning.Experiment]
    command: Callable[..., Any]
    cells: Cells = field(init=False)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cells = Cells(self.root / "cells")

    @property
    def runs_root(self) -> str:
        return str(self.root / "runs")

    @property
    def evidence(self) -> Evidence:
        """As a later process reads it."""
        return Evidence(Cells(self.root / "cells"), self.experiments)

    def start(self, command: tuple[str, ...]) -> Ended:
        self.commands.append(command)
        return Ended(self.command(*command))

    def work(self, names: Sequence[str] | None = None, minutes: float = 5) -> list[Todo]:
        """A slice of work with a fresh look at the cells."""
        self.cells = Cells(self.root / "cells")
        self.commands.clear()
        self.said.clear()
        how = {"runs_root": self.runs_root, "start": self.start}
        return work.run(self.experiments, self.cells, 1, minutes, self.said.append, names, **how)

    def missing(self, names: Sequence[str] | None = None) -> list[Todo]:
        """What is left, as a later process sees it."""
        cells = Cells(self.root / "cells")
        return work.missing(self.experiments, cells, 1, names, self.runs_root)


def experiment(name: str, train: Sequence[str], *evals: Sequence[str], **more: Any) -> Any:
    """An experiment of one seed, unless told otherwise."""
    found = tuple(planning.Evaluation(tuple(one)) for one in evals)
    return planning.Experiment(name, "a test", tuple(train), found, **{"seeds": 1} | more)


@pytest.fixture(scope="session")
def make_experiment() -> Callable[..., Any]:
    return experiment


@pytest.fixture
def small_plan(tmp_path: Path, tiny: list[str], anywhere: Callable[..., Any]) -> Worked:
    """Two schemes, and a fine-tuning of one of them; nothing is done yet."""
    core = experiment("core", [*tiny, "posenc=rope,alibi"], SHORT)
    longer = ["rescale=pi", "rescale.factor=2", "train.seq_len=128", "train.steps=3"]
    more = ["train.target_every=1", "train.threads=1"]
    tuned = experiment(
        "tuned", [*longer, *more], ("eval.lengths=[64,128]",), init="core", presets=("rope",)
    )
    return Worked(tmp_path, {"core": core, "tuned": tuned}, anywhere)


@pytest.fixture(scope="session")
def worked(
    tmp_path_factory: pytest.TempPathFactory, tiny: list[str], anywhere: Callable[..., Any]
) -> Worked:
    """A plan of every kind of experiment, all of it done. Not to be changed."""
    sweep = [*tiny, "train.steps=20"]
    task = [one for one in sweep if not one.startswith("data")]
    plan = [
        experiment("core", [*sweep, "posenc=rope,alibi"], SHORT, seeds=3, long=("long",)),
        experiment(
            "long",
            [*sweep, "posenc=rope,alibi", "train.seq_len=128", "train.batch_size=2"],
            ("eval.lengths=[64,128]",),
            seeds=3,
        ),
        experiment(
            "normed",
            [*sweep, "posenc=rope", "model.qk_norm=true"],
            SHORT,
            seeds=2,
            against=("core",),
        ),
        experiment("tasks", [*task, "data=copy"], ("eval.lengths=[64,128]",), seeds=3),
        experiment(
            "tuned",
            ["rescale=pi", "rescale.factor=2", "train.seq_len=128", "train.steps=4"]
            + ["train.target_every=2"],
            ("eval.lengths=[64,128]",),
            init="core",
            presets=("rope",),
            seeds=2,
        ),
    ]
    made = Worked(tmp_path_factory.mktemp("worked"), {one.name: one for one in plan}, anywhere)
    made.work()
    return made
