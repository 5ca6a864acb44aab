"""Answers of the tasks as an evaluation counts them: right ones are right, wrong ones wrong."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from data.solvers import NAMES, Solver, cases, spelled, task
from data.test_tasks import others
from oracles import run_config

from posbench import model as models
from posbench import registry
from posbench.data.corpora.task import Task
from posbench.evaluate import score


def test_every_task_is_among_the_cases() -> None:
    known = [n for n in registry.names("data") if issubclass(registry.get("data", n), Task)]
    assert known == NAMES


@cases
@pytest.mark.parametrize("wrong", [0, 1])
def test_an_answer_counts_if_it_is_what_the_solver_says(
    name: str,
    options: dict[str, Any],
    length: int,
    solve: Solver,
    wrong: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model is replaced by a solver that says one other symbol of the kind where `wrong`."""
    data = task(name, **options)
    symbols = spelled(data, range(data.tokenizer.vocab_size))
    ids = {symbol: i for i, symbol in enumerate(symbols)}

    def answers(tokens: list[int], places: list[int]) -> torch.Tensor:
        before = spelled(data, tokens)
        said = [solve(before[: place + 1]) for place in places]
        if wrong:
            said[-1] = others(said[-1], data)[0]
        return 9.0 * F.one_hot(torch.tensor([ids[s] for s in said]), len(ids)).float()

    def streams(model: Any, posenc: Any, inputs: Any, pos: Any, scored: Any) -> list[torch.Tensor]:
        return [
            torch.stack([answers(row, places.tolist()) for row in inputs.tolist()])
            for places in scored
        ]

    model = models.build(run_config("none"), len(ids))
    monkeypatch.setattr(score, "_streams", streams)
    monkeypatch.setattr(model, "logits", lambda hidden: hidden)
    windows = data.target_windows((length,), 32, None)
    blocks = score.score(model, model.posenc, windows, data.tokenizer.token_bytes(), 4096, 1e12)
    assert len(blocks) == 32
    assert [b.correct for b in blocks] == [b.tokens - wrong for b in blocks]
    assert all((b.nats > 8) == bool(wrong) for b in blocks)
