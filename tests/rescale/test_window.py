"""The reference `window` against slow loops, against models that have windows, and as rows."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from oracles import bias_of, normal, positions, rule, scheme, shape, tiny_model, tokens
from torch import Tensor

from posbench import model as models
from posbench import registry
from posbench.encodings.base import Context, PositionalEncoding
from posbench.errors import ConfigError, UnsupportedRescale
from posbench.evaluate import lengths
from posbench.evaluate import plan as planning
from posbench.settings import EvalConfig, Geometry, SweepConfig

L = 10


def slow(
    encoding: PositionalEncoding, q: Tensor, k: Tensor, v: Tensor, sinks: int, window: int = L
) -> Tensor:
    """Softmax over the last `window` keys and the first `sinks`, one query and head at a time."""
    rows, keys = q.shape[2], k.shape[2]
    pos = positions(keys)
    q, k = encoding.rotate(q, k, pos[:, keys - rows :], pos, Context(True))
    bias, out = bias_of(encoding), torch.empty_like(v[:, :, :rows])
    for b, h, r in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        i = keys - rows + r
        seen = [j for j in range(i + 1) if j < sinks or i - j < window]
        scores = [
            float(q[b, h, r] @ k[b, h, j]) / math.sqrt(v.shape[3]) + float(bias(h, i - j))
            for j in seen
        ]
        weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
        out[b, h, r] = weights @ v[b, h, seen]
    return out


@pytest.mark.parametrize("name", ["none", "rope", "alibi", "t5"])
@pytest.mark.parametrize("sinks", [0, 1, 4, 13])
@pytest.mark.parametrize(("rows", "keys"), [(33, 33), (3, 33), (12, 12)])
@torch.no_grad()
def test_attention_is_the_loop(name: str, sinks: int, rows: int, keys: int) -> None:
    trained = scheme(name).double()
    q, k, v = normal(2, 4, rows, 8, seed=1), normal(2, 4, keys, 8, seed=2), normal(2, 4, keys, 8)
    encoding = rule("window", sinks=sinks).applied(trained, L, keys)
    pos = positions(keys)
    for consecutive in (True, False):
        got = encoding.attend(q, k, v, pos[:, keys - rows :], pos, Context(consecutive))
        torch.testing.assert_close(got, slow(trained, q, k, v, sinks), rtol=0, atol=1e-9)


TEXT = [n for n in registry.names("posenc") if 1 in registry.get("posenc", n).axes]


@pytest.mark.parametrize("name", [n for n in TEXT if n != "learned"])
@pytest.mark.parametrize("own", [None, [4, None], [64, 12]])
@torch.no_grad()
def test_without_sinks_it_is_a_model_with_windows(name: str, own: Any) -> None:
    """Also where layers have windows of their own: the shorter one counts."""
    shorter = [min(w or L, L) for w in own or [L, L]]
    there = tiny_model(name, window=shorter).double()
    here = tiny_model(name, window=own).double()
    ids = tokens(3 * L)
    got = here.hidden(ids, rule("window").applied(here.posenc, L, 3 * L))
    torch.testing.assert_close(got, there.hidden(ids), rtol=0, atol=1e-12)
    assert float((got - here.hidden(ids)).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["rope", "fox", "cope", "stick_breaking", "sinusoidal", "layers"])
@torch.no_grad()
def test_sinks_that_are_every_key_are_no_window(name: str) -> None:
    model = tiny_model(name).double()
    ids, plain = tokens(3 * L), model.hidden(tokens(3 * L))
    every = rule("window", sinks=3 * L).applied(model.posenc, L, 3 * L)
    torch.testing.assert_close(model.hidden(ids, every), plain, rtol=0, atol=1e-10)
    few = rule("window", sinks=4).applied(model.posenc, L, 3 * L)
    assert float((model.hidden(ids, few) - plain).abs().max()) > 1e-3


@pytest.mark.parametrize("sinks", [0, 4])
@torch.no_grad()
def test_with_a_rescaling_both_act(sinks: int) -> None:
    trained = scheme("rope", shape(32, 4, L)).double()
    options = {"window": {"sinks": sinks}, "yarn": {"factor": 4}}
    both = rule("stack", parts=["window", "yarn"], options=options).applied(trained, L, 33)
    yarn = rule("yarn", factor=4).applied(trained, L, 33)
    q, k, v = (normal(1, 4, 33, 8, seed=s) for s in (1, 2, 3))
    scaled = q * yarn.logit_scale(positions(33), positions(33), Context(True))
    got = both.attend(q, k, v, positions(33), positions(33), Context(True))
    torch.testing.assert_close(got, slow(yarn, scaled, k, v, sinks), rtol=0, atol=1e-9)


@pytest.mark.parametrize("sinks", [0, 4])
@pytest.mark.parametrize("posenc", ["logn", "ssmax"])
@torch.no_grad()
def test_a_temperature_counts_the_keys_that_are_seen(posenc: str, sinks: int) -> None:
    trained = scheme("stack", shape(32, 4, L), parts=["none", posenc]).double()
    q, k, v = (normal(1, 4, 33, 8, seed=s) for s in (1, 2, 3))
    seen = torch.arange(1.0, 34, dtype=torch.float64).clamp(max=L + sinks)
    scale = seen.log() / (math.log(L) if posenc == "logn" else 1)
    windowed = rule("window", sinks=sinks).applied(trained, L, 33)
    got = windowed.attend(q, k, v, positions(33), positions(33), Context(True))
    plain = scheme("none", shape(32, 4, L)).double()
    wanted = slow(plain, q * scale[:, None], k, v, sinks)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match=r"rescale\.sinks=-1: must be at least 0"):
        rule("window", sinks=-1)
    path = scheme("path", shape(32, 4, L))
    with pytest.raises(UnsupportedRescale, match="path cannot be rescaled by window: .* attention"):
        rule("window", sinks=4).applied(path, L, 2 * L)
    grid = scheme("rope_axial", Geometry(32, 2, 2, 16, 0, (4, 4)))
    with pytest.raises(UnsupportedRescale, match="positions here have several"):
        rule("window").applied(grid, 16, 64)


# --- rows -----------------------------------------------------------------------------------------


def swept(sinks: int, **evaluation: Any) -> SweepConfig:
    config = registry.get("rescale", "window").Config(sinks=sinks)
    chosen = {"docs": 3, "blocks": 2, "threads": 1, "device": "cpu", **evaluation}
    return SweepConfig(rescale=config, eval=EvalConfig(**chosen))


def test_rows_are_those_of_a_model_with_windows(
    trained: Any, monkeypatch: pytest.MonkeyPatch, copy_run: Callable[..., Any]
) -> None:
    """L = 64; the same weights in a model whose layers have a window of 64."""

    def rows(run: Any, *sweeps: SweepConfig) -> pd.DataFrame:
        folder: Path = lengths.evaluate(planning.plan(run, list(sweeps)))
        return pd.read_csv(folder / "lengths.csv", keep_default_na=False)

    chosen = {"lengths": [64, 128, 256]}
    found = rows(trained, swept(0, **chosen), swept(4, **chosen), swept(0, protocol="prefix"))
    assert list(found["rescale"]) == ["window"] * 9 and set(found["status"]) == {"ok"}
    assert list(found["options"]) == [""] * 3 + ["sinks=4"] * 3 + [""] * 3
    assert list(found["protocol"][:6]) == ["same_targets"] * 6
    assert found["nll"][0] == found["nll"][3]  # T = L is the trained model
    assert abs(found["nll"][2] - found["nll"][5]) > 1e-4
    build = models.build

    def windowed(config: Any, vocab: int) -> models.Decoder:
        own = dataclasses.replace(config.model, window=[64, 64])
        return build(dataclasses.replace(config, model=own), vocab)

    monkeypatch.setattr(models, "build", windowed)
    plain = SweepConfig(rescale=registry.get("rescale", "none").Config(), eval=swept(0).eval)
    plain.eval.lengths = [64, 128, 256]
    other = rows(copy_run(trained, root="other"), plain)
    assert other["nll"].to_numpy() == pytest.approx(found["nll"][:3].to_numpy(), abs=1e-6)
