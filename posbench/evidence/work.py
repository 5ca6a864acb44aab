"""What the plan still lacks, what that costs, and doing it in slices of some minutes.

Trainings and evaluations are processes of their own, one thread each, some side by side. When a
slice's time is over they are interrupted: a training goes on from its checkpoint the next time, an
evaluation from its finished rows. A cell counts as done without its checkpoint; a run is trained
(again) only where an evaluation is missing or another run goes on from it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from posbench import launch, overrides, runs
from posbench.errors import ConfigError, PosbenchError
from posbench.evaluate import lengths
from posbench.evaluate.plan import plan as evaluation_of
from posbench.evidence import costs, rates
from posbench.evidence.cells import Cells
from posbench.evidence.plan import Evaluation, Experiment, Job, named
from posbench.evidence.processes import Command, Start, side_by_side, started
from posbench.settings import RunConfig, TrainConfig

#: processes side by side
WORKERS = 2

Report = Callable[[str], None]


@dataclass(frozen=True)
class Todo:
    """A job that is not complete: the evaluations that it lacks, and whether it must be trained."""

    job: Job
    evals: tuple[Evaluation, ...]
    train: bool
    #: of one process
    seconds: float


def missing(
    experiments: Mapping[str, Experiment],
    cells: Cells,
    seeds: int,
    names: Sequence[str] | None = None,
    runs_root: str = "runs",
) -> list[Todo]:
    """What is left to do, in the plan's order; a run that others go on from comes before them."""
    speed = costs.Rates([m for m in map(cells.manifest, cells.ids()) if m])
    best = rates.best(cells)
    found: list[Todo] = []
    trained: set[str] = set()

    def add(job: Job, config: RunConfig, evals: Sequence[Evaluation], train: bool) -> None:
        size = costs.training(config) if train else 0.0
        size += sum(costs.evaluation(one.overrides, config) for one in evals)
        rate = speed.of(job.preset or config.preset)
        found.append(Todo(job, tuple(evals), train, size / rate))

    def first(job: Job) -> None:
        """A run that others go on from."""
        if job.run_id not in trained and job.config and not _ready(_folder(job, runs_root)):
            trained.add(str(job.run_id))
            add(job, job.config, (), True)

    for one in named(experiments, names):
        for job, base in _jobs(experiments, one, seeds, best, _begun(cells, runs_root)):
            basis = job.config or _guess(job, base)
            evals = one.evaluations(basis.preset)
            run_id = cells.find(job.key)
            if run_id is not None and cells.has(run_id, evals):
                continue
            known = cells.asked(run_id) if run_id else {}
            place = job if job.run_id else replace(job, run_id=run_id, config=basis)
            ready = place.run_id is not None and _ready(_folder(place, runs_root))
            train = not ready and job.key not in trained
            if train and base is not None:
                first(base)
            trained.add(job.key)
            add(job, basis, [e for e in evals if e.key not in known], train)
    return found


def _jobs(
    experiments: Mapping[str, Experiment],
    one: Experiment,
    seeds: int,
    best: Mapping[str, float],
    begun: Callable[[str], bool],
) -> Iterator[tuple[Job, Job | None]]:
    """The jobs of an experiment, each with the job that it goes on from."""
    if one.init is None:
        yield from ((job, None) for job in one.jobs(seeds, best, begun))
        return
    origin = replace(experiments[one.init], seeds=one.seeds)
    if origin.init is not None:
        raise ConfigError(f"experiment {one.name}: {one.init} goes on from runs itself")
    for base in origin.jobs(seeds, best, begun):
        if not one.presets or base.preset in one.presets:
            yield from ((job, base) for job in one.continued(base.key))


def _begun(cells: Cells, runs_root: str) -> Callable[[str], bool]:
    """Whether a run is there, or at least begun."""

    def begun(run_id: str) -> bool:
        if cells.manifest(run_id) is not None:
            return True
        return any(Path(runs_root).glob(f"*/{run_id}/{runs.MANIFEST}"))

    return begun


def _guess(job: Job, base: Job | None) -> RunConfig:
    """About the settings of a fine-tuning: those of its base with its own `train.` options."""
    assert base is not None and base.config is not None
    known = {f.name for f in fields(TrainConfig)}
    given = overrides.values([o for o in job.overrides if o.startswith("train.")])
    own = {k.removeprefix("train."): v for k, v in given.items()}
    train = replace(base.config.train, **{k: v for k, v in own.items() if k in known})
    return replace(base.config, train=train)


def _folder(job: Job, runs_root: str) -> Path:
    """Where a job's run is kept."""
    assert job.config is not None and job.run_id is not None
    return Path(runs_root) / job.config.name / job.run_id


def _ready(folder: Path) -> bool:
    """Whether a finished run is there with its weights."""
    try:
        run = runs.Run.open(folder)
        return run.status == "finished" and run.weights.is_file()
    except PosbenchError:
        return False


def lines(
    todo: Sequence[Todo], experiments: Mapping[str, Experiment], workers: int = WORKERS
) -> list[str]:
    """What is left and its cost, a line for each experiment and one for all."""
    found = []
    for name in experiments:
        own = [one for one in todo if one.job.experiment == name]
        if own:
            found.append(f"{name:<20} {_summary(own)}")
    if not todo:
        return ["nothing is left to do"]
    hours = sum(one.seconds for one in todo) / 3600 / workers
    return [*found, f"{'all':<20} {_summary(todo)}", f"{hours:.1f} h with {workers} side by side"]


def _summary(todo: Sequence[Todo]) -> str:
    trainings, evals = sum(one.train for one in todo), sum(len(one.evals) for one in todo)
    hours = sum(one.seconds for one in todo) / 3600
    return f"{trainings:4d} trainings {evals:5d} evaluations {hours:7.1f} h of a thread"


def plan(
    experiments: Mapping[str, Experiment],
    cells: Cells,
    seeds: int,
    names: Sequence[str] | None = None,
    runs_root: str = "runs",
) -> list[str]:
    """The plan's missing work as lines, with what the hours are reckoned from."""
    todo = missing(experiments, cells, seeds, names, runs_root)
    speed = costs.Rates([m for m in map(cells.manifest, cells.ids()) if m])
    source = "measured on finished runs" if speed.measured else "assumed, no run is finished"
    return [*lines(todo, experiments), f"at {speed.of() / 1e9:.1f}e9 operations a second, {source}"]


def run(
    experiments: Mapping[str, Experiment],
    cells: Cells,
    seeds: int,
    minutes: float,
    report: Report,
    names: Sequence[str] | None = None,
    runs_root: str = "runs",
    workers: int = WORKERS,
    start: Start = started,
) -> list[Todo]:
    """Work on the plan for some minutes; returns what is left.

    Prints the plan first. A run that diverged or failed is kept as such and not tried again; what
    fails for another reason is passed over until the next slice.
    """
    todo = missing(experiments, cells, seeds, names, runs_root)
    for line in lines(todo, experiments, workers):
        report(line)
    _join(experiments, cells, seeds, names, runs_root)
    works = [_Work(one, experiments, cells, runs_root, report) for one in todo]
    side_by_side(works, minutes * 60, workers, report, start)
    return missing(experiments, cells, seeds, names, runs_root)


def _join(
    experiments: Mapping[str, Experiment],
    cells: Cells,
    seeds: int,
    names: Sequence[str] | None,
    runs_root: str,
) -> None:
    """Count cells that are there already as those of every experiment that has their run."""
    best = rates.best(cells)
    for one in named(experiments, names):
        for job, _ in _jobs(experiments, one, seeds, best, _begun(cells, runs_root)):
            run_id = cells.find(job.key)
            if run_id is not None:
                cells.join(run_id, one.name)


class _Work:
    """One todo as a chain of commands."""

    def __init__(
        self,
        todo: Todo,
        experiments: Mapping[str, Experiment],
        cells: Cells,
        runs_root: str,
        report: Report,
    ):
        self.todo, self.experiments = todo, experiments
        self.cells, self.report = cells, report
        self.root = runs_root
        #: what no two chains may have at a time
        self.key = todo.job.key
        #: the key of what must be there before
        self.after = todo.job.base

    def __str__(self) -> str:
        job = self.todo.job
        going_on = " ".join([str(job.base), *job.overrides])
        return f"{job.experiment} {job.run_id or going_on}"

    def commands(self) -> Iterator[Command]:
        """What is to be run, one after the other; rows are kept as soon as they are there."""
        job, experiment = self.todo.job, self.experiments[self.todo.job.experiment]
        given = [*job.overrides, f"runs_root={self.root}"]
        if job.base is not None:
            given.append(f"init={self._base()}")
        ready = launch.prepared(given)
        if not _ready(ready.folder):
            yield "train", *given, "train.threads=1"
        status = self._status(ready.folder)
        if status in ("diverged", "failed"):
            self.cells.add(runs.Run.open(ready.folder), experiment.name, job.key)
        if status != "finished":
            self.report(f"{self}: {status}")
            return
        run = runs.Run.open(ready.folder)
        before = self.cells.manifest(ready.folder.name) or run.manifest
        evals: Sequence[Evaluation] = self.todo.evals
        if before.get("weights_sha256") != run.manifest["weights_sha256"]:
            evals = experiment.evaluations(ready.config.preset)  # the rows were of other weights
        self.cells.add(run, experiment.name, job.key, {})
        for one in evals:
            try:
                folder = self._evaluation(run, one)
            except PosbenchError as error:
                self.report(f"{self}: {error}")
                continue
            if not lengths.is_finished(folder):
                yield "eval-lengths", str(run.path), *one.overrides, "eval.threads=1"
            if lengths.is_finished(folder):
                self.cells.add(run, experiment.name, job.key, {folder.name: [one.key]})
            else:
                self.report(f"{self}: not evaluated: {' '.join(one.overrides)}")
        self.report(f"{self}: done")

    def _evaluation(self, run: runs.Run, one: Evaluation) -> Path:
        """The folder of an evaluation, which may not be there yet."""
        return evaluation_of(run, costs.sweeps(one.overrides)).folder

    def _base(self) -> Path:
        """The folder of the run that it goes on from; ConfigError if that is not there."""
        job = self.todo.job
        experiment = self.experiments[self.experiments[job.experiment].init or ""]
        folder = Path(self.root) / self._name(experiment) / str(job.base)
        if not _ready(folder):
            raise ConfigError(f"{folder}: not trained, and {job.experiment} goes on from it")
        return folder

    def _name(self, experiment: Experiment) -> str:
        """The name that an experiment's runs are kept under."""
        return experiment.jobs(1)[0].config.name  # type: ignore[union-attr]

    def _status(self, folder: Path) -> str:
        try:
            return runs.Run.open(folder).status
        except PosbenchError:
            return "not begun"
