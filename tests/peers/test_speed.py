"""The speed bench's contestants: models, loops, counting and processes; nothing is timed."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from peers.speed import __main__ as driver
from peers.speed import loop, nanogpt, ours, report, transformers, x_transformers
from peers.speed.bench import QUICK, Bench
from peers.speed.task import SCORED, Shape, Task
from peers.speed.workers import WorkerError

SHAPE = Shape("tiny", layers=2, width=64, heads=2, hidden=128, length=48, batch=2, vocabulary=50)
#: the interface of nanoGPT's model.py around something small
CHECKOUT = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class GPTConfig:
    block_size: int = 1
    vocab_size: int = 1
    n_layer: int = 1
    n_head: int = 1
    n_embd: int = 1
    dropout: float = 0.5
    bias: bool = True

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config.dropout == 0 and not config.bias
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        assert device_type == "cpu"
        return torch.optim.SGD(self.parameters(), lr=learning_rate)

    def forward(self, idx, targets=None):
        logits = self.lm_head(self.embedding(idx))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
"""


@pytest.fixture
def task(tmp_path):
    """Steps on batches that repeat one token after the other, which is soon learned."""
    data = tmp_path / "batches.npy"
    row = np.arange(SHAPE.length + 1) % SHAPE.vocabulary
    np.save(data, np.tile(row, (3, SHAPE.batch, 1)))
    (tmp_path / "model.py").write_text(CHECKOUT, encoding="utf-8")
    checkout = str(tmp_path)
    return Task("", "steps", SHAPE, 1, str(data), steps=50, lengths=[48, 64], checkout=checkout)


def text(length: int) -> torch.Tensor:
    return torch.randint(0, SHAPE.vocabulary, (length + 1,), generator=torch.manual_seed(1))


def test_a_task_survives_the_command_line(task):
    assert Task.read(task.text()) == task


@pytest.mark.parametrize("library", [ours, transformers, x_transformers, nanogpt])
def test_steps_learn(library, task):
    steps = library.start(task)
    first = float(steps.step())
    for _ in range(20):
        last = float(steps.step())
    assert last < first - (0.01 if library is nanogpt else 1)
    assert steps.tokens == 96 and steps.facts["compiled"] is False


def test_the_models_are_of_one_size(task):
    """What is multiplied is equal; they differ in the parameters of norms at most."""
    facts = [library.start(task).facts for library in (ours, transformers, x_transformers)]
    blocks = 2 * (4 * 64 * 64 + 3 * 64 * 128)
    assert [f["weights"] for f in facts] == 3 * [blocks + 50 * 64]
    assert all(f["weights"] <= f["parameters"] < f["weights"] + 1000 for f in facts)


def test_operations_are_those_that_torch_counts(task):
    """Against torch's counter on attention as it is written out, which does the whole square."""
    torch.manual_seed(0)
    model = transformers.build(task, SHAPE.length)
    model.set_attn_implementation("eager")
    inputs = text(SHAPE.length)[:-1].expand(SHAPE.batch, -1)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=inputs, labels=inputs, use_cache=False).loss.backward()
    whole, causal = 2 * SHAPE.length**2, SHAPE.length * (SHAPE.length + 1)
    surplus = 3 * 2 * SHAPE.batch * SHAPE.layers * SHAPE.width * (whole - causal)
    assert counter.get_total_flops() - surplus == SHAPE.operations(
        loop.sizes(model, task)["weights"]
    )


@pytest.mark.parametrize("scheme", ["rope", "alibi", "t5"])
def test_posbench_scores_the_last_tokens(scheme, task):
    """Against its own whole forward pass, position by position."""
    from posbench import model as models

    there = replace(task, scheme=scheme)
    window = text(64)
    with torch.inference_mode():
        found = float(ours.scorer(there)(window))
        model = models.build(ours.settings(there), SHAPE.vocabulary).eval()
        logits = model(window[None, :-1])[0].double().log_softmax(-1)
    by_hand = [float(-logits[t, window[t + 1]]) for t in range(64 - SCORED, 64)]
    assert found == pytest.approx(np.mean(by_hand), abs=1e-5)


@pytest.mark.parametrize("library", [transformers, x_transformers])
def test_peers_score_the_same_tokens(library, task):
    """A change of any other token's label changes nothing; of a scored one it does."""
    score = library.scorer(task)
    window = text(64)
    changed = window.clone()
    changed[-1] = (window[-1] + 1) % SHAPE.vocabulary
    with torch.inference_mode():
        value, other = float(score(window)), float(score(changed))
    assert value == pytest.approx(np.log(SHAPE.vocabulary), abs=0.6) and value != other


def test_the_two_ways_of_llama_agree(task):
    """With a first token that both read, the guide's way and the lean one are one number."""
    window = text(64)
    with torch.inference_mode():
        torch.manual_seed(0)
        lean = float(transformers.scorer(replace(task, lean=True))(window[1:]))
        torch.manual_seed(0)
        guided = transformers.scorer(task)(window)
    assert float(guided) == pytest.approx(lean, abs=1e-6)


def test_a_sweep_logs_every_length(task, tmp_path):
    np.save(tmp_path / "text.npy", text(64).numpy())
    there = replace(task, data=str(tmp_path / "text.npy"), out=str(tmp_path / "log"))
    seen = []
    steps = loop.sweep(there, lambda window: seen.append(window) or torch.tensor(1.0))
    steps.step()
    steps.step()
    assert [len(w) for w in seen] == [49, 65, 49, 65] and steps.tokens == 112
    assert torch.equal(seen[0], seen[1][-49:])
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert [len(json.loads(line)) for line in lines] == [2, 2]
    with pytest.raises(ValueError, match="length 48"):
        loop.sweep(there, lambda window: torch.tensor(float("nan"))).step()


def test_the_longest_length_is_the_last_that_fits(task, tmp_path):
    np.save(tmp_path / "text.npy", text(64).numpy())
    there = replace(task, data=str(tmp_path / "text.npy"), lengths=[16, 32, 64])

    def score(window):
        if len(window) > 40:
            raise RuntimeError("you tried to allocate 2147483648 bytes\nmore")
        return torch.tensor(0.0)

    found = list(loop.survive(there, score))
    assert [line.get("length") for line in found] == [16, 32, None, 32]
    assert report.refusal(found[2]["stopped"]) == "a tensor of 2.0 GiB was refused"
    whole = list(loop.survive(there, lambda w: torch.tensor(0.0)))
    assert [line.get("length") for line in whole] == [16, 32, 64, 64]
    assert [*loop.survive(replace(there, lengths=[64]), score)] == [found[2]]


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on private memory is Linux's")
def test_a_process_is_held_to_its_limit():
    """In a child: this process would keep the limit."""
    command = "from peers.speed.worker import bounded; import torch; bounded(2 << 30)\n"
    command += "try: torch.ones(3 << 28); print('all')\nexcept RuntimeError: print('refused')"
    env = {"PYTHONPATH": str(Path(driver.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", command], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"


def test_a_worker_serves_steps(task, tmp_path):
    """The whole way through a process, nanoGPT's with a checkout."""
    pythons = {"nanogpt": Path(sys.executable)}
    bench = Bench(pythons, {"product": "not wanted"}, tmp_path, 1, QUICK)
    with pytest.raises(WorkerError, match="not wanted"):
        bench.worker(Task("product", "steps", SHAPE, 1), "x")
    served = bench.worker(replace(task, peer="nanogpt"), "x")
    try:
        assert served.tokens == 96 and served.ready["torch"] == torch.__version__
        assert served() > 0
    finally:
        served.close()
    found = bench.one(replace(task, peer="nanogpt", work="whole", steps=7), "x")
    assert 0 < found["loss"] < 5 and found["seconds"] > 0
    assert bench.versions["nanogpt"]["library"] == "local checkout"


def test_different_builds_of_torch_are_no_comparison(tmp_path):
    bench = Bench({}, {}, tmp_path, 1, QUICK)
    bench._met("ours", {"torch": "2.13", "library": "1"})
    with pytest.raises(SystemExit, match="torch differs"):
        bench._met("transformers", {"torch": "2.12", "library": "1"})
