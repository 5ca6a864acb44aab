"""The first key hidden, against slow loops, and as rows."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from oracles import bias_of, normal, positions, rule, scheme, shape, tiny_model, tokens
from torch import Tensor

from posbench import registry
from posbench.encodings.base import Context, PositionalEncoding
from posbench.errors import UnsupportedRescale
from posbench.evaluate import lengths
from posbench.evaluate import plan as planning
from posbench.settings import EvalConfig, Geometry, SweepConfig

L = 10


def slow(encoding: PositionalEncoding, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax over keys 1 .. i of query i, over key 0 of query 0."""
    rows, keys = q.shape[2], k.shape[2]
    pos = positions(keys)
    q, k = encoding.rotate(q, k, pos[:, keys - rows :], pos, Context(True))
    bias, out = bias_of(encoding), torch.empty_like(v[:, :, :rows])
    for b, h, r in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        i = keys - rows + r
        seen = list(range(1, i + 1)) or [0]
        scores = [
            float(q[b, h, r] @ k[b, h, j]) / math.sqrt(v.shape[3]) + float(bias(h, i - j))
            for j in seen
        ]
        weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
        out[b, h, r] = weights @ v[b, h, seen]
    return out


@pytest.mark.parametrize("name", ["none", "rope", "alibi", "t5"])
@pytest.mark.parametrize(("rows", "keys"), [(33, 33), (3, 33), (7, 7), (1, 1)])
@torch.no_grad()
def test_attention_is_the_loop(name: str, rows: int, keys: int) -> None:
    trained = scheme(name).double()
    q, k, v = normal(2, 4, rows, 8, seed=1), normal(2, 4, keys, 8, seed=2), normal(2, 4, keys, 8)
    encoding = rule("first_key_masked").applied(trained, L, keys)
    pos = positions(keys)
    for consecutive in (True, False):
        got = encoding.attend(q, k, v, pos[:, keys - rows :], pos, Context(consecutive))
        torch.testing.assert_close(got, slow(trained, q, k, v), rtol=0, atol=1e-9)


TEXT = [n for n in registry.names("posenc") if 1 in registry.get("posenc", n).axes]


@pytest.mark.parametrize("name", [n for n in TEXT if n != "path"])
@pytest.mark.parametrize("window", [None, [4, None]])
@torch.no_grad()
def test_the_first_token_reaches_itself_alone(name: str, window: Any) -> None:
    """Of every scheme: another first token changes nothing behind it, and what is behind counts."""
    model = tiny_model(name, window=window).double()
    encoding = rule("first_key_masked").applied(model.posenc, 40, 40)
    ids = tokens(40, batch=1)
    other = ids.clone()
    other[0, 0] = (ids[0, 0] + 1) % 61
    one, two = (model.hidden(x, encoding)[0] for x in (ids, other))
    assert float((one[1:] - two[1:]).abs().max()) < 1e-12
    assert float((one[0] - two[0]).abs().max()) > 1e-3
    assert float((model.hidden(ids)[0, 1:] - one[1:]).abs().max()) > 1e-3


def test_refusals() -> None:
    with pytest.raises(UnsupportedRescale, match="path cannot be rescaled by first_key_masked"):
        rule("first_key_masked").applied(scheme("path", shape(32, 4, L)), L, 2 * L)
    grid = scheme("rope_axial", Geometry(32, 2, 2, 16, 0, (4, 4)))
    with pytest.raises(UnsupportedRescale, match="positions here have several"):
        rule("first_key_masked").applied(grid, 16, 64)


def test_rows_below_and_beyond_the_training_length(trained: Any) -> None:
    names = ("none", "first_key_masked")
    evaluation = EvalConfig(docs=2, blocks=2, lengths=[64, 128], threads=1, device="cpu")
    sweeps = [SweepConfig(registry.get("rescale", n).Config(), evaluation) for n in names]
    evaluate: Callable[..., Path] = lengths.evaluate
    found = pd.read_csv(evaluate(planning.plan(trained, sweeps)) / "lengths.csv")
    assert found["rescale"].tolist() == ["none"] * 2 + ["first_key_masked"] * 2
    assert set(found["status"]) == {"ok"} and found["options"].isna().all()
    nll = found["nll"].to_numpy()
    assert (abs(nll[:2] - nll[2:]) > 1e-5).all()
