"""Linear layers, with the library for matrix products that is quick on this processor.

torch multiplies float32 matrices with MKL, which takes its AVX-512 code on Intel's processors
alone; with oneDNN, which torch contains too, an AMD with AVX-512 is more than twice as quick. So
there the linear layers, which are most of a step, go to oneDNN: in float32 as before, rounded
differently in the last bit or two. All else, and every other machine, is left as it is.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from posbench import machine

MKL, ONEDNN = "mkl", "onednn"


def _library() -> str:
    """`onednn`, or torch's own choice: `mkl`, empty where it has no MKL."""
    if not torch.backends.mkl.is_available():
        return ""
    wide = (
        torch.backends.cpu.get_cpu_capability() == "AVX512" and machine.vendor() == "AuthenticAMD"
    )
    known = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return ONEDNN if wide and known else MKL


#: what multiplies the float32 matrices of linear layers on this CPU
LIBRARY = _library()


class Linear(nn.Linear):
    """`torch.nn.Linear` by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + bias, as `F.linear`.

    Args:
        x: [..., I].
        weight: [O, I].
        bias: [O].

    Returns:
        [..., O].
    """
    kinds = {(t.dtype, t.device.type) for t in (x, weight)}
    if kinds != {(torch.float32, "cpu")} or LIBRARY != ONEDNN or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    out: Tensor = _by_onednn(x, weight, bias)
    return out


@torch.library.custom_op("posbench::linear", mutates_args=())
def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """An operation of its own: it has gradients, and compiled code can contain it."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


@_by_onednn.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@register_flop_formula(torch.ops.posbench.linear)
def _operations(x_shape: list[int], weight_shape: list[int], *rest: Any, **out: Any) -> int:
    """For torch's counter of floating-point operations."""
    return 2 * math.prod(x_shape) * weight_shape[0]


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    rows, read = grad.flatten(0, -2), x.flatten(0, -2)
    by_x = by_weight = by_bias = None
    if ctx.needs_input_grad[0]:
        by_x = _by_onednn(grad, weight.T, None)
    if ctx.needs_input_grad[1]:
        # the first of the two is copied, so it had better be the smaller one
        small = rows.shape[1] <= read.shape[1]
        by_weight = (
            _by_onednn(rows.T, read.T, None) if small else _by_onednn(read.T, rows.T, None).T
        )
    if ctx.needs_input_grad[2]:
        by_bias = rows.sum(0)
    return by_x, by_weight, by_bias


_by_onednn.register_autograd(_gradients, setup_context=_keep)
