"""One layer of attention twice: as the package computes it, and by a loop over pairs of tokens.

The loop knows nothing but a score and a value for every pair; its numbers are float64.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from oracles import normal, positions
from torch import Tensor

from posbench import attention
from posbench.encodings.base import Context, PositionalEncoding

#: (batch, head, query, key) -> a number or a vector
Pair = Callable[[int, int, int, int], Tensor]
TYPES = [(torch.float64, 1e-11), (torch.float32, 1e-5)]


def spread(encoding: PositionalEncoding, size: float = 0.3) -> PositionalEncoding:
    """The encoding, its parameters moved from their initial values."""
    with torch.no_grad():
        for n, parameter in enumerate(encoding.parameters()):
            parameter += size * normal(*parameter.shape, seed=100 + n).to(parameter.dtype)
    return encoding


def gaps(keys: int, batch: int = 2) -> Tensor:
    """Ascending positions [batch, keys, 1] that are not consecutive."""
    draw = torch.Generator().manual_seed(5)
    return torch.randint(1, 5, (batch, keys), generator=draw).cumsum(1)[..., None]


@dataclass
class Layer:
    """A scheme in one layer, with random input in the type of its parameters."""

    encoding: PositionalEncoding
    keys: int = 21
    layer: int = 1
    window: int | None = None
    pos: Tensor | None = None
    dtype: torch.dtype = torch.float64
    batch: int = 2
    leaves: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        shape, size = self.encoding.geometry, (self.batch, self.keys)
        self.x = normal(*size, shape.d_model, seed=4).to(self.dtype)
        heads = self.batch, shape.n_heads, self.keys, shape.head_dim
        self.q, self.k, self.v = (normal(*heads, seed=s).to(self.dtype) for s in (1, 2, 3))
        self.consecutive = [True, False] if self.pos is None else [False]
        self.pos = positions(self.keys) if self.pos is None else self.pos
        self.leaves = [self.x, self.q, self.k, self.v]

    def at(self, b: int, i: int) -> int:
        """Position of a token."""
        return int(self.pos[min(b, len(self.pos) - 1), i, 0])

    def context(self, consecutive: bool = True) -> Context:
        """A new pass, at this layer."""
        ctx = Context(consecutive).at(self.layer, self.window)
        ctx.prepared = self.encoding.prepare(self.x, self.pos, ctx)
        return ctx

    def attend(self, rows: int | None = None, consecutive: bool = False, chunk: int = 4096):
        """Output of the last queries, in chunks of so many."""
        rows = self.keys if rows is None else rows
        with pytest.MonkeyPatch.context() as patch:
            shape = self.encoding.geometry
            patch.setattr(attention, "CHUNK_ROWS", chunk)
            patch.setattr(attention, "CHUNK_SCORES", chunk * self.keys * self.batch * shape.n_heads)
            return self.encoding.attend(
                self.q[:, :, -rows:],
                self.k,
                self.v,
                self.pos[:, -rows:],
                self.pos,
                self.context(consecutive),
            )

    def dot(self, b: int, h: int, i: int, j: int) -> Tensor:
        """q . k / sqrt(K)."""
        q, k = self.q[b, h, i].double(), self.k[b, h, j].double()
        return (q * k).sum() / math.sqrt(q.shape[0])

    def loop(
        self,
        score: Pair,
        value: Pair | None = None,
        weigh: Callable[[Tensor], Tensor] = lambda scores: scores.softmax(0),
    ) -> Tensor:
        """Output of every query. `weigh` makes the weights of the keys up to the query."""
        heads = self.encoding.geometry.n_heads
        out = []
        for b in range(self.batch):
            for h in range(heads):
                for i in range(self.keys):
                    seen = range(max(0, i + 1 - (self.window or self.keys)), i + 1)
                    weights = weigh(torch.stack([score(b, h, i, j) for j in seen]))
                    values = [
                        self.v[b, h, j].double() if value is None else value(b, h, i, j)
                        for j in seen
                    ]
                    out.append(weights @ torch.stack(values))
        return torch.stack(out).reshape(self.batch, heads, self.keys, -1)

    def same(self, slow: Tensor, error: float) -> None:
        """Whatever queries and chunks, the package's output is that of the loop."""
        for consecutive in self.consecutive:
            for chunk in (1, 7, 64):
                for rows in (self.keys, 6, 1):
                    got = self.attend(rows, consecutive, chunk)
                    assert got.dtype == self.dtype
                    torch.testing.assert_close(got.double(), slow[:, :, -rows:], rtol=0, atol=error)

    def same_gradients(self, slow: Tensor, error: float = 1e-9) -> None:
        """Of all inputs that play a part and of every own parameter of this layer."""
        assert self.dtype == torch.float64
        probe = normal(*slow.shape, seed=9)
        inputs = [*self.leaves, *self.encoding.parameters()]
        wanted = torch.autograd.grad((slow * probe).sum(), inputs, allow_unused=True)
        got = torch.autograd.grad((self.attend() * probe).sum(), inputs, allow_unused=True)
        for a, b in zip(got, wanted, strict=True):
            a, b = (torch.zeros(()) if g is None else g for g in (a, b))
            torch.testing.assert_close(a.expand_as(b), b.expand_as(a), rtol=0, atol=error)

    def learning(self) -> "Layer":
        """Inputs that take gradients."""
        for leaf in self.leaves:
            leaf.requires_grad_()
        return self

    def sees_no_future(self) -> None:
        """The gradient of an output by later tokens is exactly zero; by some earlier it is not."""
        self.learning()
        out = self.attend(consecutive=True)
        for i in (0, self.keys // 2, self.keys - 1):
            grads = torch.autograd.grad(
                out[:, :, i].sum(), self.leaves, retain_graph=True, allow_unused=True
            )
            for grad in grads:
                if grad is None:
                    continue
                later = grad[:, i + 1 :] if grad.ndim == 3 else grad[:, :, i + 1 :]
                assert torch.equal(later, torch.zeros_like(later))
            assert grads[-1].abs().max() > 1e-3
