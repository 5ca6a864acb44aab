"""Linear layers by oneDNN, against torch's own in float64; oneDNN is there on every x86."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from posbench import linear as module
from posbench import machine
from posbench.linear import MKL, ONEDNN, Linear, linear

needs_onednn = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="torch has no oneDNN here",
)


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """All goes to oneDNN; the calls are counted."""
    monkeypatch.setattr(module, "LIBRARY", ONEDNN)
    calls: list[int] = []
    operation: Any = module._by_onednn

    def counted(*arguments: Tensor) -> Tensor:
        calls.append(1)
        return operation(*arguments)

    monkeypatch.setattr(module, "_by_onednn", counted)
    return calls


def _inputs(shape: tuple[int, ...], out: int, bias: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(out + len(shape))
    shapes = [shape, (out, shape[-1]), *([(out,)] if bias else [])]
    return [torch.randn(s, generator=generator).requires_grad_() for s in shapes]


def _gradients(product, inputs: list[Tensor], by: Tensor) -> list[Tensor]:
    out = product(*inputs)
    return [out, *torch.autograd.grad((out * by.to(out.dtype)).sum(), inputs)]


@needs_onednn
@pytest.mark.parametrize(
    ("shape", "out", "bias"),
    [*itertools.product([(7, 24), (3, 5, 24), (2, 3, 4, 24), (1, 24)], [8, 24, 40], [0, 1])],
)
def test_result_and_gradients(onednn: list[int], shape: tuple[int, ...], out: int, bias: int):
    """More inputs than outputs, as many and fewer: the copied side of the weight's gradient."""
    inputs = _inputs(shape, out, bool(bias))
    by = torch.randn(*shape[:-1], out, generator=torch.Generator().manual_seed(9))
    found = _gradients(linear, inputs, by)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    for a, b in zip(found, _gradients(F.linear, exact, by), strict=True):
        assert a.shape == b.shape and a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
    assert onednn == [1] * 3  # the layer, its input's gradient, its weight's


@needs_onednn
def test_views_without_copies_of_ones_own(onednn: list[int]) -> None:
    x = torch.randn(6, 10, 24, generator=torch.Generator().manual_seed(1)).transpose(0, 1)
    weight = torch.randn(24, 8, generator=torch.Generator().manual_seed(2)).T
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        linear(x[:, -2:], weight), F.linear(x[:, -2:], weight), rtol=1e-5, atol=1e-5
    )
    assert len(onednn) == 2


@needs_onednn
def test_only_the_gradients_that_are_asked_for(onednn: list[int]) -> None:
    x, weight, bias = _inputs((5, 24), 8, True)
    linear(x.detach(), weight, bias.detach()).sum().backward()
    assert x.grad is None and bias.grad is None
    torch.testing.assert_close(weight.grad, x.detach().sum(0).expand(8, -1))


@needs_onednn
@pytest.mark.slow
def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one graph, with other operations around it."""
    monkeypatch.setattr(module, "LIBRARY", ONEDNN)
    x, weight, bias = _inputs((2, 16, 24), 8, True)
    layer = Linear(24, 8)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)

    def work(x: Tensor) -> Tensor:
        return F.silu(layer(x * 2)).square().sum()

    compiled = torch.compile(work, fullgraph=True, dynamic=False)
    found = torch.autograd.grad(compiled(x), [x, layer.weight, layer.bias])
    plain = torch.autograd.grad(work(x), [x, layer.weight, layer.bias])
    for a, b in zip(found, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@needs_onednn
def test_torchs_counter_counts_all_three_products(onednn: list[int]) -> None:
    inputs = _inputs((3, 5, 24), 8, True)
    with FlopCounterMode(display=False) as counter:
        linear(*inputs).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 15 * 24 * 8 and len(onednn) == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_torchs_own(onednn: list[int], dtype: torch.dtype) -> None:
    x, weight = torch.ones(3, 4, dtype=dtype), torch.ones(2, 4, dtype=dtype)
    assert torch.equal(linear(x, weight), F.linear(x, weight)) and not onednn


def test_autocast_still_casts(onednn: list[int]) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(torch.ones(3, 4), torch.ones(2, 4)).dtype == torch.bfloat16
    assert not onednn


@pytest.mark.parametrize(
    ("mkl", "vendor", "wide", "there", "expected"),
    [
        (True, "AuthenticAMD", "AVX512", True, ONEDNN),
        (True, "AuthenticAMD", "AVX2", True, MKL),
        (True, "GenuineIntel", "AVX512", True, MKL),
        (True, "", "AVX512", True, MKL),
        (True, "AuthenticAMD", "AVX512", False, MKL),
        (False, "AuthenticAMD", "AVX512", True, ""),
    ],
)
def test_which_library(
    monkeypatch: pytest.MonkeyPatch, mkl: bool, vendor: str, wide: str, there: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: there)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: wide)
    monkeypatch.setattr(machine, "vendor", lambda: vendor)
    assert module._library() == expected


def test_a_manifest_says_which() -> None:
    from posbench.runs import environment

    assert environment()["matrix_products"] == module.LIBRARY
