"""Sinusoidal and learned embeddings."""

import math

import pytest
import torch
from oracles import positions, scheme, shape

from posbench.errors import ConfigError
from posbench.settings import Geometry


def row(m, width, base=10000.0):
    """One row of the table, written out."""
    out = []
    for p in range(width // 2):
        angle = m / base ** (2 * p / width)
        out += [math.sin(angle), math.cos(angle)]
    return out


@pytest.mark.parametrize("base", [10000.0, 100.0])
@pytest.mark.parametrize("width", [2, 32, 130])
def test_sinusoidal_rows(width, base):
    at = [0, 1, 77, 5000, 10**6]
    table = scheme("sinusoidal", Geometry(width, 1, 1, 64), base=base).table(torch.tensor(at))
    wanted = torch.tensor([row(m, width, base) for m in at], dtype=torch.float64)
    torch.testing.assert_close(table, wanted, rtol=0, atol=1e-9)


def test_sinusoidal_identities():
    table = scheme("sinusoidal").table(torch.arange(50))
    torch.testing.assert_close(table.pow(2).sum(1), torch.full((50,), 16.0).double())
    products = table @ table.T
    torch.testing.assert_close(products[5:, 5:], products[:-5, :-5])
    assert table[0].tolist() == [0.0, 1.0] * 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sinusoidal_is_added_in_the_type_of_the_stream(dtype):
    encoding = scheme("sinusoidal").to(dtype)
    x = torch.ones(2, 9, 32, dtype=dtype)
    out = encoding.embed(x, positions(9, 1000))
    wanted = torch.tensor([row(m, 32) for m in range(1000, 1009)], dtype=torch.float64)
    assert out.dtype == dtype
    limit = {"rtol": 0, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(out, x + wanted.to(dtype), **limit)


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
@pytest.mark.parametrize("rms", [None, 0.25, 2.0])
def test_tables_have_the_stated_rms(name, rms):
    encoding = scheme(name, shape(128, 4, 256), **({} if rms is None else {"rms": rms}))
    with torch.no_grad():
        table = encoding.embed(torch.zeros(1, 256, 128), positions(256))
    found = float(table.pow(2).mean().sqrt())
    wanted = math.sqrt(0.5) if rms is None else rms
    assert encoding.config.rms == wanted
    assert found == pytest.approx(wanted, rel=1e-5 if name == "sinusoidal" else 0.02)


def test_learned_rows_are_looked_up():
    encoding = scheme("learned")
    pos = torch.tensor([[3, 0, 39], [1, 1, 2]])[..., None]
    x = torch.ones(2, 3, 32)
    out = encoding.embed(x, pos)
    for b in range(2):
        for t in range(3):
            assert torch.equal(out[b, t], 1 + encoding.table[pos[b, t, 0]])


def test_learned_is_undefined_past_the_training_length():
    encoding = scheme("learned", shape(train_length=24))
    assert encoding.max_length == 24
    assert tuple(encoding.table.shape) == (24, 32)
    encoding.embed(torch.zeros(1, 24, 32), positions(24))
    with pytest.raises(IndexError):
        encoding.embed(torch.zeros(1, 25, 32), positions(25))


def test_sinusoidal_refusals():
    with pytest.raises(ConfigError, match=r"model.d_model=33: .*even width"):
        scheme("sinusoidal", shape(33, 3))
    with pytest.raises(ConfigError, match=r"posenc.base=1: must be above 1"):
        scheme("sinusoidal", base=1)


def test_rows_past_the_training_length_stay_as_they_were_drawn():
    encoding = scheme("learned", shape(train_length=24), size=40)
    assert encoding.max_length == 40 and encoding.table.shape == (40, 32)
    encoding.embed(torch.zeros(1, 24, 32), positions(24)).sum().backward()
    assert bool(encoding.table.grad[:24].all()) and not bool(encoding.table.grad[24:].any())
    assert float(encoding.table[24:].detach().pow(2).mean().sqrt()) == pytest.approx(0.7, abs=0.1)
    with pytest.raises(ConfigError, match=r"posenc\.size=23: must be at least 24, the positions"):
        scheme("learned", shape(train_length=24), size=23)
