"""Takes turns with the contestants; what comes out is numbers by name, ready for JSON."""

import contextlib
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from peers.environments import plain
from peers.speed.bench import LIMIT, LONG_RUN, OURS, PLAIN, PRODUCT, Bench, busy
from peers.speed.task import Shape, Task
from peers.speed.workers import Worker, WorkerError, side_by_side
from posbench.bench.alternate import alternate


@dataclass(frozen=True)
class Contestant:
    name: str
    task: Task


def contestants(shape: Shape, threads: int, data: str, checkout: str) -> list[Contestant]:
    """Who trains a shape, posbench first."""
    ours = Task("ours", "steps", shape, threads, data, steps=LONG_RUN)
    found = [Contestant(OURS, replace(ours, compile="auto")), Contestant(PLAIN, ours)]
    for title, peer in (
        ("x-transformers", "x_transformers"),
        ("transformers Llama", "transformers"),
        ("nanoGPT", "nanogpt"),
    ):
        task = Task(peer, "steps", shape, threads, data, checkout=checkout)
        found.append(Contestant(title, task))
        found.append(Contestant(f"{title}, torch.compile", replace(task, compile="true")))
    return found


@contextlib.contextmanager
def started(
    bench: Bench, who: list[Contestant], rows: dict[str, dict[str, Any]], warm: int = 0
) -> Iterator[dict[str, Worker]]:
    """Ready workers by name, one after the other so that none disturbs another's compiling.

    `warm` steps follow the first one before anything is measured.
    """
    workers: dict[str, Worker] = {}
    with contextlib.ExitStack() as stack:
        for one in who:
            bench.say(f"  {one.name} ...")
            try:
                worker = bench.worker(one.task, f"{one.task.work} {one.name} {one.task.shape.name}")
                stack.callback(worker.close)
                for _ in range(warm):
                    worker()
            except WorkerError as error:
                rows[one.name] = {"reason": plain(str(error))}
                continue
            workers[one.name] = worker
            rows[one.name] = {"samples": [], **worker.ready}
        bench.idle.append(busy([w.process.pid for w in workers.values()]))
        yield workers


def turns(
    workers: dict[str, Callable[[], float]], rounds: int, rows: dict[str, dict[str, Any]]
) -> None:
    """Samples of all, in seconds; who fails on the way keeps a reason instead."""

    def failed(name: str, error: Exception) -> None:
        rows[name] = {"reason": plain(str(error))}

    for name, samples in alternate(workers, rounds, failed).items():
        rows[name]["samples"] = samples


def exported(bench: Bench, shape: Shape, lengths: tuple[int, ...] = ()) -> str:
    """File of the batches of a shape, or of a text that is longer than the longest length."""
    out = str(bench.folder / f"{'text' if lengths else shape.name}.npy")
    task = Task("ours", "export", shape, bench.threads, steps=bench.size.batches, out=out)
    found = bench.one(replace(task, lengths=list(lengths)), "export")
    if found["vocabulary"] != shape.vocabulary:
        raise WorkerError(f"{found['corpus']} has {found['vocabulary']} tokens")
    bench.corpus = found["corpus"]
    return out


def train(bench: Bench, shape: Shape) -> dict[str, Any]:
    """Training steps of all, and for the first shape two workers against the fastest peers."""
    bench.say(f"training, {shape.name}")
    data = exported(bench, shape)
    who = contestants(shape, bench.threads, data, bench.checkout)
    who = [one for one in who if bench.size.compiled or one.task.compile != "true"]
    product = Contestant(PRODUCT, Task("product", "steps", shape, bench.threads))
    rows: dict[str, dict[str, Any]] = {}
    with started(bench, [*who, product], rows, warm=2) as workers:
        for name, worker in workers.items():
            worker.steps = 10 if name == PRODUCT else bench.size.steps[shape.name]
        turns(dict(workers), bench.size.rounds, rows)
        for row in rows.values():
            if "weights" in row:
                row["operations"] = shape.operations(row["weights"])
        found = {"shape": vars(shape), "rows": rows, "steps": bench.size.steps[shape.name]}
        if shape is bench.size.shapes[0]:
            found["packing"] = packed(bench, who[0].task, workers, rows)
    return found


def peers(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Rows with samples that are other libraries'."""
    own = OURS, PLAIN, PRODUCT
    return {name: row for name, row in rows.items() if name not in own and row.get("samples")}


def fastest(rows: dict[str, dict[str, Any]], cost: Callable[[dict[str, Any]], float]) -> str:
    """The peer that costs least; empty where none ran."""
    return min(peers(rows), key=lambda name: cost(rows[name]), default="")


def rivals(rows: dict[str, dict[str, Any]]) -> list[str]:
    """The peer with the fastest step as its documentation shows, and the fastest of all."""
    plain_ones = {name: row for name, row in rows.items() if not row.get("compiled")}
    found = fastest(plain_ones, median), fastest(rows, median)
    return [name for name in dict.fromkeys(found) if name]


def median(row: dict[str, Any]) -> float:
    return statistics.median(row["samples"])


def total(row: dict[str, Any], steps: int) -> float:
    """Seconds of a run: its first step, compiling included, and the others at the median."""
    return float(row["first"]) + (steps - 1) * median(row)


def packed(
    bench: Bench, task: Task, workers: dict[str, Worker], rows: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Tokens per second of two posbench workers that share the cores, and of the fastest peers."""
    bench.say("  two workers side by side ...")
    count, tokens = bench.size.steps[task.shape.name], task.shape.tokens
    half = replace(task, threads=max(1, bench.threads // 2))
    with contextlib.ExitStack() as stack:
        pair: list[Worker] = []
        try:
            for _ in range(2):
                pair.append(bench.worker(half, "packing"))
                stack.callback(pair[-1].close)
            side_by_side(pair, 2)

            def together() -> float:
                return sum(tokens / seconds for seconds in side_by_side(pair, count))

            def alone(name: str) -> Callable[[], float]:
                return lambda: tokens / workers[name]()

            subjects = {OURS: together, **{name: alone(name) for name in rivals(rows)}}
            rates = alternate(subjects, bench.size.rounds)
        except WorkerError as error:
            return {"reason": plain(str(error))}
        firsts = [worker.first for worker in pair]
        compiled = pair[0].ready["compiled"]
    return {"threads": half.threads, "firsts": firsts, "compiled": compiled, "rates": rates}


def sweep(bench: Bench, shape: Shape) -> dict[str, Any]:
    """One window at each length, scored on its last tokens."""
    bench.say("sweep")
    size = bench.size
    task = Task("ours", "sweep", shape, bench.threads, exported(bench, shape, size.lengths))
    task = replace(task, lengths=list(size.lengths))
    lean = replace(task, peer="transformers", lean=True)
    rows = swept(
        bench,
        {
            OURS: task,
            "transformers Llama": replace(lean, lean=False),
            "transformers Llama, logits_to_keep": lean,
            "x-transformers": replace(task, peer="x_transformers"),
        },
        min(size.rounds, 3),
    )
    return {"lengths": list(size.lengths), "shape": vars(shape), "rows": rows}


def swept(bench: Bench, tasks: dict[str, Task], rounds: int) -> dict[str, dict[str, Any]]:
    """Seconds of sweeps, `lengths` by length."""
    logs = {name: bench.folder / f"sweep {task.scheme} {name}" for name, task in tasks.items()}
    rows: dict[str, dict[str, Any]] = {}
    who = [Contestant(name, replace(task, out=str(logs[name]))) for name, task in tasks.items()]
    with started(bench, who, rows) as workers:
        for log in logs.values():
            log.unlink(missing_ok=True)
        turns(dict(workers), rounds, rows)
    for name, row in rows.items():
        if "samples" in row:
            lines = logs[name].read_text(encoding="utf-8").splitlines()
            row["lengths"] = [json.loads(line) for line in lines]
    return rows


def longest(bench: Bench, shape: Shape, scheme: str) -> dict[str, Any]:
    """x-transformers' own path for a bias as far as it goes, and posbench there."""
    bench.say(f"longest length, {scheme}")
    size, text = bench.size, bench.folder / "text.npy"
    tried = [n for n in size.lengths if n >= size.shortest]
    task = Task("x_transformers", "survive", shape, bench.threads, str(text), lengths=tried)
    task = replace(task, scheme=scheme, limit=LIMIT)
    found: dict[str, Any] = {"scheme": scheme, "limit": LIMIT, "tried": tried}
    try:
        said, ended = bench.said(task, "survive")
    except (WorkerError, subprocess.TimeoutExpired) as error:
        return {**found, "reason": plain(str(error))}
    survived = [line for line in said if "length" in line]
    stopped = next((line["stopped"] for line in said if "stopped" in line), ended)
    found |= {"stopped": plain(stopped)}
    if not survived:
        return {**found, "reason": "no length survived"}
    length, seconds = survived[-1]["length"], survived[-1]["seconds"]
    ours = replace(task, peer="ours", work="sweep", lengths=[length])
    rows = swept(bench, {OURS: ours}, rounds=3)
    return {**found, "length": length, "seconds": seconds, "row": rows[OURS]}


def whole(bench: Bench, trained: dict[str, Any]) -> dict[str, Any]:
    """One run of posbench as `train` does it, and one of the peer that should be done first."""
    steps, rows = bench.size.whole, trained["rows"]
    shape = Shape(**trained["shape"])
    name = fastest(rows, lambda row: total(row, steps))
    if not name:
        return {"reason": "no peer ran"}
    data = str(bench.folder / f"{shape.name}.npy")
    tasks = {
        one.name: replace(one.task, work="whole", steps=steps, out=str(bench.folder / "run"))
        for one in contestants(shape, bench.threads, data, bench.checkout)
        if one.name in (OURS, name)
    }
    found: dict[str, Any] = {"steps": steps, "peer": name, "tokens": steps * shape.tokens}
    for title, task in tasks.items():
        bench.say(f"whole run, {title} ...")
        began = time.perf_counter()
        try:
            found[title] = bench.one(task, f"whole {title}")
        except (WorkerError, subprocess.TimeoutExpired) as error:
            return {**found, "reason": plain(str(error))}
        found[title]["process"] = time.perf_counter() - began
    return found


def everything(bench: Bench) -> dict[str, Any]:
    """All of it, in the order of the report."""
    size = bench.size
    small = size.shapes[0]
    trained = [train(bench, shape) for shape in size.shapes]
    found = {
        "training": trained,
        "whole": whole(bench, trained[0]),
        "sweep": sweep(bench, small),
        "longest": [longest(bench, small, scheme) for scheme in ("alibi", "t5")],
    }
    about = {"versions": bench.versions, "idle": bench.idle, "corpus": bench.corpus}
    return {**found, **about}
