"""What there is to gain past L, from runs of the plan that were trained longer.

A row of T tokens is compared with the shortest-trained of them that saw T tokens in training: of
the same preset where there is one, else of the preset that is best at T; of the same seed. Presets
whose runs all pass the gate at their own length come first, and without one there is a line but no
headroom: what an undertrained run fails to gain says nothing. As `eval.long`, without measuring
anything again, since all score the same frozen targets.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from posbench.evaluate import protocols, verdicts
from posbench.evaluate.plan import LONG, PLAIN
from posbench.report.collect import Collected
from posbench.report.pooling import Losses, aligned, pool
from posbench.report.sections import records

#: what must be the same for two rows to score the same tokens
_TARGETS = ["data", "tokenizer", "targets_hash", "test_len"]
#: what tells the blocks of a row from others
_PLACE = ["run_id", "eval_id", "rescale", "factor", "options", "protocol", "test_len"]


def joined(collected: Collected, longs: Sequence[Collected]) -> Collected:
    """Rows with headroom and share, blocks of protocol `trained_long`, pooled anew.

    `long_preset` says whose run stands beside a row, `long_passed` whether it tells of headroom.
    """
    if not longs:
        return collected
    known = pd.concat([one.rows for one in longs], ignore_index=True)
    theirs = pd.concat([one.blocks for one in longs], ignore_index=True)
    rows = collected.rows
    found, whose = [collected.blocks], {}
    behind = dict(tuple(theirs.groupby(_PLACE, sort=False)))
    frozen = rows[_frozen(rows)].drop_duplicates(["run_id", "eval_id", "test_len"])
    for row in records(frozen):
        if (reference := _reference(row, known)) is not None:
            blocks = behind[tuple(reference[name] for name in _PLACE)]
            place = {name: row[name] for name in ("run_id", "eval_id")}
            found.append(blocks.assign(**place, protocol=LONG))
            whose[row["run_id"], row["test_len"]] = reference["preset"], reference["passed"]
    blocks = pd.concat(found, ignore_index=True)
    losses, judged = Losses(rows, blocks), records(rows)
    for row in judged:
        of = whose.get((row["run_id"], row["test_len"]), ("", True))
        row["long_preset"], row["long_passed"] = of
        if row["status"] != "ok" or pd.isna(row["b"]):
            continue
        if not row["long_passed"]:
            continue
        kinds = losses.of(row), losses.reference(row, "crop"), losses.reference(row, LONG)
        if three := aligned(*([one] for one in kinds)):
            row |= verdicts.measured(three[0], three[1], row["b"], three[2])
            if row["verdict"]:
                row["verdict"] = verdicts.verdict(row)
    new = {
        name: [row[name] for row in judged]
        for name in [*verdicts.COLUMNS, "verdict", "long_preset", "long_passed"]
    }
    rows = rows.assign(**new)
    return replace(collected, rows=rows, blocks=blocks, losses=losses, pooled=pool(rows, losses))


def _frozen(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Rows past L on the frozen targets."""
    same = rows["protocol"] == protocols.SAME_TARGETS
    return same & (rows["test_len"] > rows["train_len"])


def _reference(row: dict[str, object], known: pd.DataFrame) -> dict[str, object] | None:
    """The row of the run that was trained longer."""
    fits = (known["status"] == "ok") & (known["rescale"] == PLAIN) & _frozen_at(known)
    for name in _TARGETS:
        fits &= known[name] == row[name]
    fits &= known["train_len"] > row["train_len"]
    found = known[fits]
    if found.empty:
        return None
    found = found[found["train_len"] == found["train_len"].min()]
    sound = found.groupby("preset")["passed"].transform("all")
    found = (found[sound] if sound.any() else found).assign(passed=bool(sound.any()))
    best = found.groupby("preset")["nll"].mean().idxmin()
    own = row["preset"] if row["preset"] in set(found["preset"]) else best
    found = found[(found["preset"] == own) & (found["seed"] == row["seed"])]
    return records(found)[0] if len(found) else None


def _frozen_at(known: pd.DataFrame) -> "pd.Series[bool]":
    """Rows of lengths that were trained at."""
    same = known["protocol"] == protocols.SAME_TARGETS
    return same & (known["test_len"] <= known["train_len"])
