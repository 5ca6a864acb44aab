"""Track `val_tuned`: factors and constants chosen on validation documents at the test length.

With `eval.tune=true` every rescaling that is given several values of an option is also measured on
targets of the validation documents, cut by the rule of the frozen ones for each test length. The
option set with the least loss there is chosen, and a row of track `val_tuned` repeats its row on
the test targets, which have no part in the choice, as `yarn@tuned`. The rows of every option set
stay beside it, track `strict`. A length that no validation document holds has no choice; on how
many documents the others rest is in tuning.csv.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd

from posbench import grid
from posbench.data import targets
from posbench.data.dataset import Dataset
from posbench.evaluate import protocols, statistics
from posbench.evaluate.plan import VALIDATION, Cell, Key, Plan
from posbench.grid import Shape

FILE = "tuning.csv"
TRACK = "val_tuned"
#: in the place of a factor: chosen anew at every length, as the column `chosen` says
TUNED = "tuned"
COLUMNS = [
    "run_id", "rescale", "factor", "options", "test_len", "val_nll", "n_docs", "n_blocks", "chosen",
    "status",
]  # fmt: skip


def validation(todo: Plan, shape: Shape) -> Plan | None:
    """The plan on targets of the validation documents that hold this length; None without any."""
    data, longest = todo.data, grid.count(shape)
    assert isinstance(data, Dataset)
    tokens = {f"{i:05}": document for i, document in enumerate(data.validation)}
    if not targets.fit([len(document) for document in data.validation], longest)[0]:
        return None
    hashes = {"tokenizer_sha256": data.tokenizer.sha256, "content_sha256": data.content_sha256}
    built = targets.build(data.name, tokens, longest=longest, **hashes)
    own = replace(data, test={d.id: tokens[d.id] for d in built.documents}, targets=built)
    docs = min(todo.eval.docs or len(built.documents), len(built.documents))
    return replace(todo, data=own, eval=replace(todo.eval, docs=docs), long=None)


def documents(todo: Plan) -> dict[int, int]:
    """Test length -> validation documents that the choice is made on; empty without one."""
    plans = {grid.count(shape): validation(todo, shape) for shape in todo.shapes if todo.eval.tune}
    return {T: (own.eval.docs or 0) if own else 0 for T, own in plans.items()}


def note(todo: Plan) -> str:
    """Which lengths have few validation documents, or none; "" where all have enough."""
    found = documents(todo)
    few = [f"{n} of {T} tokens" for T, n in found.items() if 0 < n < targets.DOCUMENTS]
    none = [str(T) for T, n in found.items() if not n]
    lines = [f"chosen on {', '.join(few)}, fewer than {targets.DOCUMENTS}"] if few else []
    lines += [f"no choice at {', '.join(none)} tokens"] if none else []
    return f"val_tuned: validation documents: {'; '.join(lines)}" if lines else ""


def loss(cell: Cell) -> float:
    """Nats per token; infinite where there is none."""
    if cell.status != "ok":
        return math.inf
    return statistics.summed([b.nats for b in cell.blocks], [b.tokens for b in cell.blocks])


def chosen(todo: Plan, cells: dict[Key, Cell]) -> dict[tuple[str, Shape], Key | None]:
    """(rescaling, length) -> the validation cell of the least loss, the first of equals."""
    found: dict[tuple[str, Shape], Key | None] = {}
    for name, rows in todo.choices().items():
        for shape in todo.shapes:
            best = min((Key(row, VALIDATION, shape) for row in rows), key=lambda k: loss(cells[k]))
            found[name, shape] = best if math.isfinite(loss(cells[best])) else None
    return found


def rows(
    todo: Plan, cells: dict[Key, Cell], made: dict[Key, dict[str, Any]], blank: Callable[..., Any]
) -> list[dict[str, Any]]:
    """The rows of the track: those `made` of the option sets that were chosen, under one name.

    Without a choice `blank(key)`, which is a row without numbers, and the reason as its status.
    """
    found, rules = [], todo.rules()
    for (name, shape), key in chosen(todo, cells).items():
        own: dict[str, Any] = {"track": TRACK, "factor": TUNED, "options": ""}
        if key is None:
            first = Key(todo.choices()[name][0], VALIDATION, shape)
            own = blank(on_test(first)) | own | {"status": cells[first].status}
        else:
            rule = rules[key.rule]
            words = [f"factor={rule.factor}"] if rule.factor else []
            own = made[on_test(key)] | own | {"chosen": " ".join([*words, *rule.options])}
        found.append(own)
    return found


def on_test(key: Key) -> Key:
    """The cell of the same option set and length on the test targets."""
    return replace(key, protocol=protocols.SAME_TARGETS)


def table(todo: Plan, cells: dict[Key, Cell]) -> pd.DataFrame:
    """Losses on the validation documents of every option set and length, and which were chosen."""
    rules, best = todo.rules(), set(chosen(todo, cells).values())
    found = []
    for key in todo.tuning_keys():
        rule, cell = rules[key.rule], cells[key]
        found.append(
            {
                "run_id": todo.run.manifest["run_id"],
                **rule.columns(),
                "test_len": key.length,
                "val_nll": loss(cell) if cell.status == "ok" else None,
                "n_docs": len({b.document for b in cell.blocks}),
                "n_blocks": len(cell.blocks),
                "chosen": key in best,
                "status": cell.status,
            }
        )
    return pd.DataFrame(found, columns=COLUMNS)
