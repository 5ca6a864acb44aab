"""What a contestant is told to do, as JSON on its command line."""

import json
from dataclasses import asdict, dataclass, field

#: tokens whose loss a window of the sweep gives
SCORED = 32


@dataclass(frozen=True)
class Shape:
    """A decoder and its batches."""

    name: str
    layers: int
    width: int
    heads: int
    #: of the gated MLP, three matrices; nanoGPT has two matrices of 4 times the width
    hidden: int
    #: tokens of a sequence, sequences of a batch
    length: int
    batch: int
    vocabulary: int = 1024

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    def operations(self, weights: int) -> float:
        """Floating-point operations of a step of a model that multiplies by `weights` weights.

        Two for a multiplication and an addition, the backward pass twice the forward pass, and of
        attention the causal half of both products.
        """
        attention = self.layers * self.width * (self.length + 1)
        return 3 * 2 * self.tokens * (weights + attention)


@dataclass(frozen=True)
class Task:
    """One contestant's work."""

    #: file of this package that knows the library
    peer: str
    #: steps, sweep, survive, whole or export
    work: str
    shape: Shape
    threads: int
    #: token file: batches [N, B, L + 1], or one text [T + 1] for sweep and survive
    data: str = ""
    #: true, false, or (posbench) auto for a run of `steps` steps
    compile: str = "false"
    steps: int = 0
    #: lengths of a sweep
    lengths: list[int] = field(default_factory=list)
    #: positional scheme: rope, alibi, t5
    scheme: str = "rope"
    #: whether a window is scored in the leanest way that the library offers
    lean: bool = False
    #: bytes that the process may allocate; 0 = as many as there are
    limit: int = 0
    #: where the seconds of each length of a sweep go, one JSON list a line; or a run, or data
    out: str = ""
    #: folder of a nanoGPT checkout
    checkout: str = ""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Task":
        given = json.loads(text)
        return cls(**{**given, "shape": Shape(**given["shape"])})
