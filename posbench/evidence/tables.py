"""The tables of the evidence, from cells alone: equal cells give equal bytes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from posbench.evaluate import protocols
from posbench.evaluate.plan import PLAIN
from posbench.evaluate.references import STAMP
from posbench.evidence import rates, summary, work
from posbench.evidence.cells import Evidence
from posbench.evidence.plan import Experiment
from posbench.files import write_atomic
from posbench.report import distances, tasks
from posbench.report.collect import Collected, model_hash
from posbench.report.compare import tested
from posbench.report.pooling import FAMILY
from posbench.report.sections import records, stamp_parts

#: of a fine-tuning, in its manifest
FACTS = ("target", "aim", "tax")
CONFIGURATION = ["preset", "positions", "data", "tokenizer", "train_len"]
#: what every line says of its rows
STATED = ["tier", "track", "n_docs", "n_targets", "n_seeds", "stamp"]
#: of a row and of the one that it is held against
OF_BOTH = ["nll", "gain", "verdict", "stamp"]
PLACE = [*CONFIGURATION, "rescale", "factor", "options", "protocol", "test_len", "ratio"]


def write(evidence: Evidence, out: Path, seeds: int, runs_root: str = "runs") -> list[str]:
    """Write every table into a folder; the names of the files."""
    found = {
        "verdicts.csv": verdicts(evidence),
        "references.csv": references(evidence),
        "sensitivity.csv": sensitivity(evidence),
        "probes.csv": probes(evidence),
        "distances.csv": by_distance(evidence),
        "extension.csv": extension(evidence),
        "rates.csv": rates.table(evidence.cells),
    }
    for name, table in found.items():
        write_atomic(out / name, table.to_csv(index=False, lineterminator="\n").encode())
    write_atomic(out / "status.md", status(evidence, out, seeds, runs_root))
    return [*found, "status.md", *summary.write(evidence, out)]


def _evaluated(evidence: Evidence) -> Iterator[tuple[Experiment, Collected]]:
    """The experiments that have rows."""
    for name, experiment in evidence.experiments.items():
        if experiment.evals and evidence.evaluated(name):
            yield experiment, evidence.collected(name)


def _tasks(rows: pd.DataFrame) -> "pd.Series[bool]":
    return rows["protocol"] == protocols.GENERATED


def _tabled(lines: Sequence[Any], columns: Sequence[str]) -> pd.DataFrame:
    parts = [line for line in lines if len(line)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*columns])


def verdicts(evidence: Evidence) -> pd.DataFrame:
    """The tidy columns of every row on text, seeds pooled, with what is not in the rows of one run.

    `nll_median` is over documents and seeds, for rows that explode. `rate` says where the learning
    rate is from: `grid` (the best one of rates.csv), `base`, or `given` by the experiment.
    """
    decided, parts = rates.best(evidence.cells), []
    for experiment, found in _evaluated(evidence):
        pooled = found.pooled[~_tasks(found.pooled)]
        configs = {m["run_id"]: m["config"] for m in evidence.manifests(experiment.name)}
        words = {
            row["model"]: _rate(
                rates.multiple(configs[row["run_id"]]),
                decided.get(experiment.like or row["preset"]),
            )
            for row in records(found.rows.drop_duplicates(FAMILY))
        }
        named = pooled.assign(experiment=experiment.name, rate=pooled["model"].map(words))
        parts.append(named[["experiment", "rate", *found.columns, "nll_median", "n_seeds"]])
    return _tabled(parts, ["experiment", "rate", *PLACE, "n_seeds"])


def _rate(multiple: float, best: float | None) -> str:
    """Where a learning rate is from."""
    if multiple == best:
        return "grid"
    return "base" if multiple == 1 else "given"


def references(evidence: Evidence) -> pd.DataFrame:
    """Loss of `crop`, `window`, the n-gram model and the runs trained longer, a line each.

    Nats per token on the frozen targets, for every configuration and test length. `stamp` is that
    of the runs in the line; of `trained_long` that of the run trained longer, whose preset is
    `reference_preset`.
    """
    lines = []
    for experiment, found in _evaluated(evidence):
        rows = found.pooled
        kept = rows["protocol"].eq(protocols.SAME_TARGETS) & rows["status"].eq("ok")
        for row in records(rows[kept]):
            what = {"experiment": experiment.name}
            what |= {name: row[name] for name in [*CONFIGURATION, *STATED, "test_len"]}
            interval = row["nll"], row["nll_lo"], row["nll_hi"]
            if row["rescale"] == "window":
                lines.append(_reference(what, f"window {row['options']}".strip(), *interval))
            if row["rescale"] == PLAIN:
                lines.append(_reference(what, "crop", row["crop_nll"]))
                lines.append(_reference(what, "ngram", row["ngram_nll"]))
                longer = row["long_nll"], row["long_lo"], row["long_hi"]
                whose = {"reference_preset": row.get("long_preset", "")}
                whose["stamp"] = "" if row.get("long_passed", True) else STAMP
                lines.append(_reference(what | whose, "trained_long", *longer))
    columns = [
        "experiment", *CONFIGURATION, *STATED, "test_len", "reference", "reference_preset",
        "nll", "lo", "hi",
    ]  # fmt: skip
    table = pd.DataFrame(lines, columns=columns)
    return table[table["nll"].notna()].drop_duplicates(ignore_index=True)


def _reference(what: dict[str, Any], name: str, *interval: float) -> dict[str, Any]:
    return what | dict(zip(["reference", "nll", "lo", "hi"], [name, *interval], strict=False))


def sensitivity(evidence: Evidence) -> pd.DataFrame:
    """What a changed option does: loss with and without it, difference paired by document and seed.

    Also both gains over crop and both verdicts, so that a sign that changes is seen.
    """
    lines = []
    for experiment, found in _evaluated(evidence):
        for name in experiment.against:
            if evidence.evaluated(name):
                mine = _against(experiment, found, evidence.collected(name))
                lines += [{"against": name, **line} for line in mine]
    columns = [
        "experiment", "against", *PLACE, *STATED, "nll", "nll_without", "difference", "lo", "hi",
        "gain", "gain_without", "verdict", "verdict_without", "stamp_without",
    ]  # fmt: skip
    return pd.DataFrame(lines, columns=columns)


def _against(
    experiment: Experiment, found: Collected, other: Collected
) -> Iterator[dict[str, Any]]:
    """The rows that have a counterpart without what the experiment tries.

    That is the same place, or the unscaled one where a rescaling is what is tried.
    """
    known = {tuple(row[name] for name in PLACE): row for row in records(other.pooled)}
    plain = {"rescale": PLAIN, "factor": "", "options": ""}
    for row in records(found.pooled):
        places = ([one[name] for name in PLACE] for one in (row, row | plain))
        without = next((known[place] for place in map(tuple, places) if place in known), None)
        if without is None or row["status"] != "ok" or without["status"] != "ok":
            continue
        sides = [(row, found), (without, other)]
        losses = [{s: own.losses.of(place) for s, place in one["members"]} for one, own in sides]
        common = sorted(losses[0].keys() & losses[1].keys())
        if common:
            test = records(tested([pd.DataFrame(one) for one in losses], common, [(0, 1)]))[0]
            yield {
                "experiment": experiment.name,
                **{name: row[name] for name in [*PLACE, *STATED, "nll", "gain", "verdict"]},
                **{name: test[name] for name in ("n_seeds", "difference", "lo", "hi")},
                **{f"{name}_without": without[name] for name in OF_BOTH},
            }


def probes(evidence: Evidence) -> pd.DataFrame:
    """Accuracy of generated tasks by test length: its distribution over seeds.

    Beside it the mean loss, the mean share of windows that are all right (`exact`), and `solved`,
    the share of seeds that have at least nine in ten of them all right. `learned` is the share of
    seeds that read right nine tokens in ten at L.
    """
    parts = []
    names = ["tier", "data", "preset", "positions", "rescale", "factor", "train_len", "test_len"]
    for experiment, found in _evaluated(evidence):
        rows = found.rows[_tasks(found.rows) & (found.rows["status"] == "ok")]
        if rows.empty:
            continue
        rows = rows.assign(learned=rows["run_id"].isin(tasks.learned(rows)))
        table = rows.groupby(names, sort=False).agg(
            chance=("chance", "mean"),
            n_seeds=("accuracy", "count"),
            nll=("nll", "mean"),
            accuracy=("accuracy", "mean"),
            least=("accuracy", "min"),
            median=("accuracy", "median"),
            largest=("accuracy", "max"),
            exact=("exact", "mean"),
            solved=("exact", lambda x: (x >= tasks.SOLVED).mean()),
            learned=("learned", "mean"),
        )
        parts.append(table.reset_index().assign(experiment=experiment.name))
    columns = [
        "experiment", *names, "chance", "n_seeds", "nll", "accuracy", "least", "median", "largest",
        "exact", "solved", "learned",
    ]  # fmt: skip
    return _tabled(parts, columns)[columns]


def by_distance(evidence: Evidence) -> pd.DataFrame:
    """Probes by how far back the source of an answer lies, seeds pooled; a line each bucket.

    Accuracy of tasks, and the gain of an earlier copy (`repeat`) in nats per token.
    """
    parts = []
    for experiment, found in _evaluated(evidence):
        lines = distances.by_distance(found, evidence.runs(experiment.name))
        if len(lines):
            own = distances.pooled(lines).drop(columns=["model", "base"])
            parts.append(own.assign(experiment=experiment.name))
    table = _tabled(parts, ["experiment", *distances.CURVE[:7], *distances.BUCKET])
    return table[["experiment", *(name for name in table if name != "experiment")]]


def extension(evidence: Evidence) -> pd.DataFrame:
    """Fine-tunings: loss at the target length by step, and what they cost at the first length.

    `target` is that length, `aim` the base run's loss there from its last L tokens. Over seeds:
    mean, least and largest; `tax` is the mean loss at L after less that before, in the
    line of the last step.
    """
    parts = []
    for name, experiment in evidence.experiments.items():
        if experiment.init is None or not evidence.runs(name):
            continue
        log = evidence.log(name)
        log = log[log["target_loss"].notna()]
        curves = log.groupby(["preset", "step"], sort=False)
        last = log.groupby("preset")["step"].max()
        table = curves.agg(
            n_seeds=("target_loss", "count"),
            target_loss=("target_loss", "mean"),
            least=("target_loss", "min"),
            largest=("target_loss", "max"),
        )
        table = table.reset_index().assign(experiment=name)
        of = {what: table["preset"].map(_means(evidence.manifests(name), what)) for what in FACTS}
        of["tax"] = of["tax"].where(table["step"] == table["preset"].map(last))
        tiers = {m["preset"]: m["tier"] for m in evidence.manifests(name)}
        standing = {preset: _standing(evidence, name, preset) for preset in tiers}
        of["tier"], of["stamp"] = table["preset"].map(tiers), table["preset"].map(standing)
        parts.append(table.assign(**of))
    columns = [
        "experiment", "tier", "stamp", "preset", "target", "aim", "step", "n_seeds",
        "target_loss", "least", "largest", "tax",
    ]  # fmt: skip
    return _tabled(parts, columns)[columns]


def _standing(evidence: Evidence, name: str, preset: str) -> str:
    """The stamps of the rows of a preset's runs."""
    if not evidence.evaluated(name):
        return ""
    rows = evidence.collected(name).pooled
    return "; ".join(stamp_parts(rows["stamp"][rows["preset"] == preset]))


def _means(manifests: Sequence[dict[str, Any]], fact: str) -> dict[str, float]:
    """Mean over seeds of a fact of fine-tunings, by preset."""
    known: dict[str, list[float]] = {}
    for manifest in manifests:
        value = manifest.get("extension", {}).get(fact)
        if value is not None:
            known.setdefault(manifest["preset"], []).append(value)
    return {preset: sum(values) / len(values) for preset, values in known.items()}


def status(evidence: Evidence, out: Path, seeds: int, runs_root: str = "runs") -> str:
    """How much of the plan is in, as Markdown."""
    left = work.missing(evidence.experiments, evidence.cells, seeds, None, runs_root)
    lines = [
        "# How much of the plan is in",
        "",
        f"Asked for are {seeds} seeds, or as many as an experiment says. A finished run that lacks "
        "an evaluation is among those that are missing.",
        "",
        "| experiment | runs | seeds | missing | diverged or failed | about |",
        "|---|---:|---:|---:|---:|---|",
    ]
    total, lacking = 0, 0
    for name, experiment in evidence.experiments.items():
        manifests = evidence.manifests(name)
        finished = [m for m in manifests if m["status"] == "finished"]
        lost = len(manifests) - len(finished)
        missing = sum(one.job.experiment == name for one in left)
        counts = sorted(Counter(model_hash(m["config"], m["plugins"]) for m in finished).values())
        least, most = (counts[0], counts[-1]) if counts else (0, 0)
        number = str(most) if least == most else f"{least}-{most}"
        total, lacking = total + len(finished), lacking + missing
        lines.append(
            f"| {name} | {len(finished)} | {number} | {missing} | {lost} | {experiment.about} |"
        )
    lines += ["", f"{total} runs are in, {lacking} are missing."]
    decided = rates.best(evidence.cells)
    which = ", ".join(f"{preset} x{multiple:g}" for preset, multiple in sorted(decided.items()))
    lines.append(
        f"Learning rates by the grid: {which}; all others at the base rate."
        if decided
        else "Learning rates: all at the base rate, the grid is not complete for any scheme."
    )
    claims = out / "claims.csv"
    if claims.is_file():
        verdict = pd.read_csv(claims, dtype=str, keep_default_na=False)["verdict"]
        said = ", ".join(f"{n} {word}" for word, n in sorted(Counter(verdict).items()))
        lines.append(f"Claims: {len(verdict)}, of which {said}.")
    return "\n".join(lines) + "\n"
