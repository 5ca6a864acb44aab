"""attention.csv against a forward pass written by hand, uniform attention, whose rows it has."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from oracles import alibi_slopes, normal, positions, rule, scheme, theta, tiny_model, turned
from torch import Tensor

from posbench import model as models
from posbench import train
from posbench.encodings.base import Context
from posbench.evaluate import attention
from posbench.evaluate.attention import Sharpness, sharpness, weights_of
from posbench.model import Decoder

Evaluate = Callable[..., Path]
Sweep = Callable[..., Any]
HEADS, K = 2, 32


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x**2).mean(-1, keepdim=True).add(1e-6).sqrt() * weight


def by_hand(model: Decoder, name: str, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Scores, -inf in the future, and weights [H, T, T] of every layer for tokens [T], float64."""
    own = {n: p.detach().double() for n, p in model.named_parameters()}
    width = own["embedding.weight"].shape[1]
    x, length = own["embedding.weight"][ids] * math.sqrt(width), len(ids)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    found = []
    for layer in range(len(model.blocks)):
        p = {n.removeprefix(f"blocks.{layer}."): w for n, w in own.items()}
        h = rms(x, p["attention_norm.weight"])
        q, k, v = (
            (h @ p[f"attention.{n}_proj.weight"].T).unflatten(1, (HEADS, -1)).transpose(0, 1)
            for n in "qkv"
        )
        size = q.shape[2]
        if name == "rope":
            q, k = (turned(y[None], positions(length), theta(size))[0] for y in (q, k))
        scores = torch.einsum("hik,hjk->hij", q, k) / math.sqrt(size)
        if name == "alibi":
            slopes = torch.tensor(alibi_slopes(HEADS), dtype=torch.float64)
            scores = scores - slopes[:, None, None] * distance
        scores = scores.masked_fill(distance < 0, -math.inf)
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        found.append((scores, weights))
        y = torch.einsum("hij,hjk->ihk", weights, v).flatten(1)
        x = x + y @ p["attention.o_proj.weight"].T
        h = rms(x, p["mlp_norm.weight"])
        gate = h @ p["mlp.gate_proj.weight"].T
        up = h @ p["mlp.up_proj.weight"].T
        x = x + (gate / (1 + (-gate).exp()) * up) @ p["mlp.down_proj.weight"].T
    return found


@pytest.fixture(scope="module", params=["rope", "alibi"])
def run(
    request: Any, settings_of: Callable[..., Any], text_data: Any, tmp_path_factory: Any
) -> Any:
    """A run of a few steps, L = 64."""
    config = settings_of(request.param, train={"steps": 30, "lr": 5e-3})
    return train.run(config, tmp_path_factory.mktemp("sharp") / "run", text_data)


def test_the_table_is_what_a_pass_by_hand_gives(
    run: Any, corpus: Path, text_data: Any, evaluate: Evaluate
) -> None:
    folder = evaluate(run, lengths=[64, 128, 256], docs=3, blocks=4)
    table = pd.read_csv(folder / "attention.csv", keep_default_na=False)
    assert list(table.columns) == attention.COLUMNS
    assert table[["test_len", "layer"]].to_numpy().tolist() == [
        [64, 0],
        [64, 1],
        [256, 0],
        [256, 1],
    ]
    assert set(table["n_windows"]) == {8} and set(table["rescale"]) == {"none"}
    model = models.build(run.config, 256)
    models.load_weights(model, run.weights)
    places = [(d.id, e) for d in text_data.targets.documents[:3] for e in d.ends[:3]][:8]
    for length in (64, 256):
        seen = []
        for document, end in places:
            text = (corpus / document).read_bytes()[end - length : end]
            seen.append(by_hand(model, run.config.posenc.name, torch.tensor(list(text))))
        for layer in (0, 1):
            scores = torch.stack([one[layer][0][:, -K:] for one in seen])
            weights = torch.stack([one[layer][1][:, -K:] for one in seen]).numpy()
            terms = np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1)), 0)
            entropy = -terms.sum(-1)
            most = np.log(np.arange(length - K + 1, length + 1))
            (row,) = table[(table["test_len"] == length) & (table["layer"] == layer)].itertuples()
            assert row.max_logit == pytest.approx(float(scores.max()), rel=1e-4)
            assert row.entropy == pytest.approx(entropy.mean(), rel=1e-4)
            assert row.entropy_share == pytest.approx((entropy / most).mean(), rel=1e-4)


def test_every_rescaling_and_no_other_protocol(
    trained: Any, evaluate: Evaluate, sweep: Sweep
) -> None:
    few = {"docs": 2, "blocks": 1, "lengths": [64, 128, 256]}
    rules = [("none", {}), ("yarn", {"factor": 4}), ("window", {}), ("first_key_masked", {})]
    sweeps = [sweep(name, options, **few) for name, options in rules]
    folder = evaluate(trained, *sweeps, sweep("none", protocol="prefix", **few))
    table = pd.read_csv(folder / "attention.csv", keep_default_na=False)
    assert table.groupby(["rescale", "test_len"]).size().to_dict() == {
        (name, length): 2 for name, _ in rules for length in (64, 256)
    }
    assert set(table["n_windows"]) == {2}
    assert set(table.loc[table["rescale"] == "yarn", "factor"].astype(str)) == {"4"}
    at = table.set_index(["rescale", "test_len", "layer"]).sort_index()
    columns = ["max_logit", "entropy", "entropy_share"]
    assert at.loc[("window", 64), columns].equals(at.loc[("none", 64), columns])
    for name in ("yarn", "window", "first_key_masked"):
        assert (at.loc[("none", 256), "entropy"] != at.loc[(name, 256), "entropy"]).all()
    assert not (evaluate(trained, lengths=[128], docs=1, blocks=1) / "attention.csv").exists()


UNIFORM = [
    ("none", {}, lambda i: i + 1),
    ("window", {}, lambda i: min(i + 1, 16)),
    ("window", {"sinks": 4}, lambda i: min(i + 1, 20)),
    ("first_key_masked", {}, lambda i: max(i, 1)),
]


@pytest.mark.parametrize(("name", "options", "visible"), UNIFORM)
def test_uniform_attention_has_the_logarithm_of_the_visible_keys(
    name: str, options: dict[str, Any], visible: Callable[[int], int]
) -> None:
    model = tiny_model("none", train_length=16)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.q_proj.weight.zero_()
    encoding = rule(name, **options).applied(model.posenc, 16, 50)
    inputs = [torch.randint(61, (50,), generator=torch.Generator().manual_seed(s)) for s in (1, 2)]
    found = sharpness(model, encoding, inputs, 20)
    wanted = np.mean([math.log(visible(i)) for i in range(30, 50)])
    assert sorted(found) == [0, 1]
    for one in found.values():
        columns = one.columns()
        assert columns["max_logit"] == 0
        assert columns["entropy"] == pytest.approx(wanted, rel=1e-6)
        assert columns["entropy_share"] == pytest.approx(1, rel=1e-6)


def test_a_layer_with_a_window_and_another_scheme() -> None:
    """Scores 0 in a windowed layer of its own: ln 7 there, ln of all keys in the other."""
    options = {"pattern": ["none", "none+logn"]}
    model = tiny_model("layers", options=options, window=[7, None], train_length=16)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.q_proj.weight.zero_()
    found = sharpness(model, model.posenc, [torch.arange(40)], 3)
    assert found[0].columns()["entropy"] == pytest.approx(math.log(7), rel=1e-6)
    assert found[1].columns()["entropy"] == pytest.approx(np.mean(np.log([38, 39, 40])), rel=1e-6)


def test_one_visible_key_has_no_share() -> None:
    one = Sharpness()
    one.add(torch.tensor([[2.0, -math.inf]]), torch.tensor([[1.0, 0.0]]))
    assert one.columns() == {"max_logit": 2.0, "entropy": 0.0, "entropy_share": None}
    one.add(torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5, 0.5]]))
    columns = one.columns()
    assert columns["entropy"] == pytest.approx(math.log(2) / 2)
    assert columns["entropy_share"] == pytest.approx(1)


# --- normalisations of a scheme's own -------------------------------------------------------------


def causal(rows: int, keys: int) -> Tensor:
    hidden = torch.arange(keys - rows, keys)[:, None] < torch.arange(keys)
    return (2 * normal(2, 4, rows, keys)).masked_fill(hidden, -math.inf)


@pytest.mark.parametrize(("rows", "keys"), [(5, 19), (11, 11)])
@torch.no_grad()
def test_weights_of_stick_breaking_are_the_products(rows: int, keys: int) -> None:
    scores, pos = causal(rows, keys), positions(keys)
    found = weights_of(
        scheme("stick_breaking"), scores, 8, pos[:, keys - rows :], pos, Context(True)
    )
    for b, h, r in torch.cartesian_prod(*map(torch.arange, (2, 4, rows))).tolist():
        i, left, wanted = keys - rows + r, 1.0, [0.0] * keys
        for j in range(i - 1, -1, -1):
            share = 1 / (1 + math.exp(-float(scores[b, h, r, j])))
            wanted[j], left = share * left, left * (1 - share)
        wanted[i] = left
        assert found[b, h, r].tolist() == pytest.approx(wanted, abs=1e-12)


@torch.no_grad()
def test_what_a_normalisation_adds_to_the_values_is_no_weight() -> None:
    scores, pos = causal(6, 21), positions(21)
    shaw = scheme("shaw").double()
    found = weights_of(shaw, scores, 8, pos[:, 15:], pos, Context(True))
    torch.testing.assert_close(found, scores.softmax(-1), rtol=0, atol=1e-12)


@torch.no_grad()
def test_attention_of_another_kind_has_no_rows() -> None:
    model = tiny_model("path")
    assert sharpness(model, model.posenc, [torch.arange(20)], 4) == {}
    fox = tiny_model("fox")
    assert len(sharpness(fox, fox.posenc, [torch.arange(20)], 4)) == 2
