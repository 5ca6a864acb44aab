"""Cells of one function are measured once, and every row is as if it had been measured alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers import files

from posbench import registry
from posbench.evaluate import lengths
from posbench.evaluate import plan as planning

Evaluate = Callable[..., Path]
Rows = Callable[[Path], pd.DataFrame]
Sweep = Callable[..., Any]
FEW = {"docs": 3, "blocks": 2}


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Rescaling and longest window of every sweep of forward passes but those of stride 1."""
    made: list[tuple[str, int]] = []
    whole = lengths._Scorer._score

    def counted(self: Any, key: planning.Key, encoding: Any, chosen: list[tuple[int]]) -> Any:
        if key.protocol != "stride1":
            made.append((key.rule, *max(chosen)))
        return whole(self, key, encoding, chosen)

    monkeypatch.setattr(lengths._Scorer, "_score", counted)
    return made


def test_equal_rescalings_share_their_sweeps(
    trained: Any, sweep: Sweep, swept: list[tuple[str, int]], evaluate: Evaluate, rows: Rows
) -> None:
    chosen = {"lengths": [64, 128, 256], **FEW}
    rules = [
        sweep("none", **chosen), sweep("pi", **chosen), sweep("ntk", **chosen),
        sweep("yarn", {"factor": 1}, **chosen), sweep("dynamic_ntk", **chosen),
        sweep("self_extend", {"group": 1}, **chosen), sweep("pi", {"factor": 2}, **chosen),
    ]  # fmt: skip
    folder = evaluate(trained, *rules)
    assert swept == [
        ("none", 64), ("none", 128), ("none", 256), ("pi@auto", 128), ("pi@auto", 256),
        ("ntk@auto", 128), ("ntk@auto", 256), ("pi@2", 64), ("pi@2", 256),
    ]  # fmt: skip
    table = rows(folder)
    assert len(table) == 7 * 3 and set(table["status"]) == {"ok"}
    nll = table["nll"].to_numpy().reshape(7, 3)
    assert (nll[:, 0] == [*[nll[0, 0]] * 6, nll[6, 0]]).all()  # pi@2 alone is another one at L
    assert (nll[3] == nll[0]).all() and (nll[5] == nll[0]).all() and (nll[4] == nll[2]).all()
    assert nll[6, 1] == nll[1, 1]  # pi@2 and pi@auto at 2 L
    assert len({*nll[:, 1]}) == 3 and len({*nll[:, 2]}) == 4


def test_sharing_changes_no_byte(
    trained: Any,
    trained_here: Any,
    copy_run: Callable[..., Any],
    sweep: Sweep,
    evaluate: Evaluate,
    swept: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = {"lengths": [64, 128], **FEW}
    rules = [
        sweep(rule, protocol=protocol, **chosen)
        for rule in ("none", "ntk", "dynamic_ntk", "yarn")
        for protocol in ("same_targets", "nonoverlapping")
    ]
    shared = evaluate(trained, *rules)
    n = len(swept)
    monkeypatch.setattr(lengths, "signature", lambda encoding: None)
    alone = evaluate(copy_run(trained_here, root="alone"), *rules)
    assert (n, len(swept) - n) == (2 * (2 + 1 + 0 + 1), 2 * 4 * 2)
    assert files(shared) == files(alone)


def test_prefix_shares_whole_passes(
    trained: Any, sweep: Sweep, swept: list[tuple[str, int]], evaluate: Evaluate, rows: Rows
) -> None:
    chosen = {"lengths": [64, 256], "protocol": "prefix", **FEW}
    plain = evaluate(trained, sweep("none", **chosen))
    swept.clear()
    folder = evaluate(trained, sweep("yarn", {"factor": 1}, **chosen))
    # the unscaled base of the row at L; the gate's T = L was kept by the first evaluation
    assert swept == [("none", 256)]
    assert list(rows(folder)["nll"]) == list(rows(plain)["nll"])


def test_a_sweep_that_goes_on_shares_with_what_it_had(
    trained: Any, sweep: Sweep, swept: list[tuple[str, int]], evaluate: Evaluate
) -> None:
    rules = [sweep(rule, lengths=[64, 128], **FEW) for rule in ("ntk", "dynamic_ntk")]

    def stop(item: str) -> None:
        if "dynamic_ntk" in item:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        lengths.evaluate(planning.plan(trained, rules), stop)
    before = list(swept)
    evaluate(trained, *rules)
    assert swept == before == [("none", 64), ("ntk@auto", 128)]


def test_refusals_are_not_shared_with_numbers(
    trained: Any, sweep: Sweep, evaluate: Evaluate, rows: Rows
) -> None:
    """yarn@auto at T = L is `none`, but under `prefix` it is refused."""
    chosen = {"lengths": [64], "protocol": "prefix", **FEW}
    table = rows(evaluate(trained, sweep("none", **chosen), sweep("yarn", **chosen)))
    assert list(table["status"]) == ["ok", "unsupported_protocol"]


class Hiding(registry.get("rescale", "none")):  # type: ignore[misc]
    """A plug-in's rule: the trained encoding but for one odd attribute."""

    label = "hiding"
    options: list[str] = []
    hidden: Any = None

    def applied(self, encoding: Any, train_length: int, test_length: int) -> Any:
        return encoding.replace(hidden=self.hidden, rotate=self.hidden(encoding.rotate))


def halved(rotate: Callable[..., Any]) -> Callable[..., Any]:
    return lambda q, k, *rest: tuple(x / 2 for x in rotate(q, k, *rest))


def test_a_plug_in_whose_difference_hides_is_measured_on_its_own(
    trained: Any, sweep: Sweep, swept: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = planning.plan(trained, [sweep("none", lengths=[64, 128], **FEW)])
    (plain, protocol), *_ = todo.rows
    hiding = Hiding(plain.config)
    hiding.hidden = halved
    todo.rows.append((hiding, protocol))
    table = pd.read_csv(lengths.evaluate(todo) / "lengths.csv")
    assert swept == [("none", 64), ("none", 128), ("hiding", 64), ("hiding", 128)]
    assert (table["nll"][:2].to_numpy() != table["nll"][2:].to_numpy()).all()
