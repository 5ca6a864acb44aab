"""Generated tasks: training windows, and test windows of every length.

Nothing is stored. A training batch is a function of (seed, step), a test window of (length,
number), and the two draw from streams of their own. A test window holds one instance of exactly T
tokens; in training the instances of all lengths up to L take turns, each at the start of its window
and with filler after it (which nothing that is scored can see), so that a model cannot get by with
one fixed distance. Only answers are scored.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from posbench import grid, settings
from posbench.data.corpora.task import FILLER, Example, Task
from posbench.data.targets import TargetDocument, Targets
from posbench.data.tokenizer import SymbolTokenizer, Tokenizer
from posbench.data.windows import Tokens, Window
from posbench.errors import ConfigError
from posbench.grid import Shape

#: test windows of a length, a power of two
WINDOWS = 256
#: longest test length
LONGEST = 65_536
#: label of a token that training does not score (what torch's cross entropy leaves out)
UNSCORED = -100
#: streams of random numbers
_TRAIN, _VALIDATION, _TEST = range(3)
#: test windows that stand for the generator in the content hash
_SAMPLE = 4


@dataclass
class TaskDataset:
    """A task ready for training and evaluation.

    It has the protocol `generated` alone, no n-gram reference and no crop. Every test window counts
    as a document of its own.
    """

    #: the protocol of `target_windows`
    protocol: ClassVar[str] = "generated"

    name: str
    config: Any
    task: Task
    tokenizer: Tokenizer
    targets: Targets
    content_sha256: str
    split: dict[str, Any]

    @property
    def alphabet(self) -> str:
        """Name of the vocabulary: `37 symbols`."""
        return f"{self.tokenizer.vocab_size} symbols"

    @property
    def interval_over(self) -> str:
        """What intervals run over."""
        return "windows"

    @property
    def blocks(self) -> int:
        """One block a window."""
        return 1

    @property
    def chance(self) -> float:
        """Accuracy of a guess among the symbols that can be an answer."""
        return self.task.chance

    @property
    def shortest(self) -> int:
        """Shortest length that holds an instance."""
        return self.task.shortest

    def training_batch(
        self, shape: Shape, batch_size: int, seed: int, step: int
    ) -> tuple[Tokens, Tokens]:
        """Inputs, and next tokens or UNSCORED [B, L]; a pure function of (seed, step)."""
        longest = self._checked("train.seq_len", grid.count(shape))
        draw = np.random.default_rng([_TRAIN, seed, step])
        shortest = self.shortest if self.config.mixed else longest
        lengths = draw.integers(shortest, longest + 1, size=batch_size).tolist()
        examples = [self.task.example(n, draw.random(), draw) for n in lengths]
        return self._stacked(examples, longest)

    def validation_windows(self, shape: Shape, n: int) -> tuple[Tokens, Tokens]:
        """Inputs, and next tokens or UNSCORED [n, L] of fixed instances of length L."""
        length = self._checked("train.seq_len", grid.count(shape))
        return self._stacked([self._example(_VALIDATION, length, i) for i in range(n)], length)

    def test_shapes(self, given: list[str] | None, lengths: list[int] | None) -> list[Shape]:
        """The test lengths that are asked for, as shapes (T,), ascending; none where left open."""
        if given is not None:
            raise ConfigError(f"eval.shapes: data={self.name} has one axis; use eval.lengths")
        return [(self._checked("eval.lengths", length),) for length in sorted(set(lengths or []))]

    def reaches(self, shape: Shape) -> bool:
        """Whether there are instances of that length."""
        return self.shortest <= grid.count(shape) <= LONGEST

    def target_windows(
        self, shape: Shape, docs: int | None, blocks: int | None
    ) -> Iterator[Window]:
        """Protocol `generated`: the instances of exactly T tokens, their answers scored."""
        length = grid.count(shape)
        for document in self.targets.documents[:docs]:
            example = self._example(_TEST, length, int(document.id))
            tokens = self._ids(example)
            answers = np.array(example.answers if example.tested is None else example.tested)
            yield Window(
                document.id,
                0,
                int(answers[-1]),
                tokens[:-1],
                tokens[answers],
                answers - 1,
                distance=example.distance,
            )

    def mean_context(self, shape: Shape) -> float:
        """Mean number of tokens that a scored token is predicted from: alike in all windows."""
        window = next(self.target_windows(shape, 1, None))
        return float(window.scored.mean()) + 1

    def _example(self, stream: int, length: int, number: int) -> Example:
        """A fixed instance. Any first 2^k numbers have one in each of 2^k equal shares of depth."""
        draw = np.random.default_rng([stream, length, number])
        share = int(f"{number % WINDOWS:08b}"[::-1], 2)
        return self.task.example(length, (share + draw.random()) / WINDOWS, draw)

    def _ids(self, example: Example) -> Tokens:
        (ids,) = self.tokenizer.encode([" ".join(example.symbols)])
        return ids.astype(np.int64)

    def _stacked(self, examples: list[Example], length: int) -> tuple[Tokens, Tokens]:
        """Inputs, filler after each instance, and labels [n, length]."""
        inputs = np.zeros((len(examples), length), dtype=np.int64)
        labels = np.full_like(inputs, UNSCORED)
        for row, example in enumerate(examples):
            tokens, answers = self._ids(example), np.array(example.answers)
            inputs[row, : len(tokens) - 1] = tokens[:-1]
            labels[row, answers - 1] = tokens[answers]
        return inputs, labels

    def _checked(self, option: str, length: int) -> int:
        """The length; ConfigError, naming the option, where there are no such instances."""
        if not self.reaches((length,)):
            raise ConfigError(
                f"{option}={length}: instances of data={self.name} with these options have from "
                f"{self.shortest} to {LONGEST} tokens"
            )
        return length


def load(task: Task) -> TaskDataset:
    """The dataset of a task."""
    tokenizer = SymbolTokenizer([*FILLER, *task.own])
    documents = [TargetDocument(f"{n:03}", [0]) for n in range(WINDOWS)]
    targets = Targets(task.name, tokenizer.sha256, "", LONGEST, 0, documents)
    made = TaskDataset(task.name, task.config, task, tokenizer, targets, "", {"contiguous": False})
    made.content_sha256 = _content(made)
    made.targets = Targets(**{**vars(targets), "content_sha256": made.content_sha256})
    return made


def _content(made: TaskDataset) -> str:
    """SHA-256 of the task's options and of a few instances: names the generator, numpy's included.

    `mixed` is left out: it changes training alone, and runs with and without are to be compared.
    """
    options = {k: v for k, v in settings.changed(made.config).items() if k != "mixed"}
    digest = hashlib.sha256(f"{sorted(options.items())}".encode())
    for length in (made.shortest, made.shortest + 61):
        for number in range(_SAMPLE):
            example = made._example(_TEST, length, number)
            digest.update(f"{example.symbols}{example.answers}{example.tested}".encode())
    return digest.hexdigest()
