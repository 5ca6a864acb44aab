"""Pictures and clips as tokens: training regions, and frozen targets for every test shape.

A region is read in raster order (frames in time order), one level a token. Its first tokens have no
context, and its last one is only predicted: a region of T tokens has T - 1 inputs. What is scored
is part of the smallest region, the lower half of a picture's and the last frame of a clip's; a
larger region ends at the same corner and reaches further up, to the left, or back in time. So the
same tokens are scored at every shape, with more context.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from posbench import grid
from posbench.data.corpora.grid import GridCorpus, Sample
from posbench.data.targets import TargetDocument, Targets, spread
from posbench.data.tokenizer import LevelTokenizer, Tokenizer
from posbench.data.windows import Window
from posbench.errors import ConfigError, DataError
from posbench.grid import Shape

#: most regions of one picture or clip among the targets
REGIONS = 32
Levels = npt.NDArray[np.uint8]


@dataclass
class GridDataset:
    """A corpus of pictures or clips ready for training and evaluation.

    It has the protocol same_targets alone, and no n-gram reference.

    train, validation   levels of each sample, uint8 [rows, columns] or [frames, rows, columns]
    test                sample id -> levels of the samples in `targets`, in that order
    scored              offsets [n, A] of the scored tokens from the last token of a region, <= 0
    """

    name: str
    config: Any
    corpus: GridCorpus
    tokenizer: Tokenizer
    train: list[Levels]
    validation: list[Levels]
    test: dict[str, Levels]
    targets: Targets
    scored: npt.NDArray[np.int64]
    content_sha256: str
    split: dict[str, Any]
    _known: dict[Shape, list[Levels]] = field(default_factory=dict, repr=False)

    @property
    def alphabet(self) -> str:
        """Name of the vocabulary: `32 levels`."""
        return f"{self.config.levels} levels"

    @property
    def interval_over(self) -> str:
        """What intervals run over: the held-out samples, or regions where those are few."""
        return f"{self.corpus.unit}s" if self.corpus.independent else "regions"

    @property
    def blocks(self) -> int:
        """Regions of a sample that an evaluation reads unless it says otherwise."""
        return min(16, self.targets.blocks)

    def training_batch(
        self, shape: Shape, batch_size: int, seed: int, step: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Inputs and next tokens [B, T - 1] of a batch; a pure function of (seed, step).

        Uniform over the training samples, and over the regions of this shape inside the one drawn.
        """
        samples = self._training(shape)
        draws = np.random.PCG64([seed, step]).random_raw(2 * batch_size).reshape(2, batch_size)
        chosen = [samples[int(n)] for n in draws[0] % np.uint64(len(samples))]
        rooms = np.array([_room(values, shape) for values in chosen], dtype=np.uint64)
        return _cut(chosen, (draws[1] % rooms).astype(np.int64), shape)

    def _training(self, shape: Shape) -> list[Levels]:
        """The training samples that hold a region of a shape, looked for once."""
        if shape not in self._known:
            self._known[shape] = _holding(self.train, shape, self.corpus.origin)
        return self._known[shape]

    def validation_windows(
        self, shape: Shape, n: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Inputs and next tokens of at most n fixed regions, evenly spaced over all there are."""
        samples = _holding(self.validation, shape, self.corpus.origin)
        before = np.cumsum([0, *(_room(values, shape) for values in samples)])
        n = min(n, int(before[-1]))
        places = (2 * np.arange(n) + 1) * before[-1] // (2 * n)
        numbers = np.searchsorted(before, places, side="right") - 1
        return _cut([samples[i] for i in numbers], places - before[numbers], shape)

    def test_shapes(self, given: list[str] | None, lengths: list[int] | None) -> list[Shape]:
        """The test shapes that are asked for, by their number of tokens; ConfigError for others."""
        if lengths is not None:
            example = ",".join(map(grid.text, self.corpus.shapes))
            raise ConfigError(
                f"eval.lengths: data={self.name} is measured by shapes; use eval.shapes=[{example}]"
            )
        least, most = self.corpus.smallest, self.corpus.largest
        if given is None:
            found = list(self.corpus.shapes)
        else:
            found = [grid.parse("eval.shapes", text, len(most)) for text in given]
        for shape in found:
            if not self.reaches(shape):
                raise ConfigError(
                    f"eval.shapes={grid.text(shape)}: the targets of data={self.name} allow from "
                    f"{grid.text(least)} to {grid.text(most)}"
                )
        if not found:
            raise ConfigError("eval.shapes=[]: give at least one shape")
        return sorted(set(found), key=lambda shape: (grid.count(shape), shape))

    def reaches(self, shape: Shape) -> bool:
        """Whether a region of this shape holds what is scored, and the targets have room for it."""
        least, most = self.corpus.smallest, self.corpus.largest
        return all(low <= n <= high for low, n, high in zip(least, shape, most, strict=True))

    def target_windows(
        self, shape: Shape, docs: int | None, blocks: int | None
    ) -> Iterator[Window]:
        """Protocol `same_targets`: per region its T - 1 inputs, the scored tokens predicted."""
        corner = np.array(shape) - 1
        scored = np.ravel_multi_index(tuple((corner + self.scored).T), shape) - 1
        for document in self.targets.documents[:docs]:
            values = self.test[document.id]
            for number, end in enumerate(document.ends[:blocks]):
                tokens = _region(values, end, shape)
                labels = tokens[scored + 1]
                yield Window(document.id, number, end, tokens[:-1], labels, scored, shape)

    def mean_context(self, shape: Shape) -> float:
        """Mean number of tokens that a scored token is predicted from."""
        corner = np.array(shape) - 1
        return float(np.ravel_multi_index(tuple((corner + self.scored).T), shape).mean())


def load(corpus: GridCorpus) -> GridDataset:
    """The dataset of a corpus; DataError where a region does not fit into its samples."""
    sides = corpus.sides()
    tokenizer = LevelTokenizer(corpus.config.levels)
    content = corpus.content_sha256()
    # of one group, which may show one scene twice, the last by name
    groups = {s.group: s for s in sides["test"]}
    held_out = {s.id: s.values for s in sides["test"] if groups[s.group] is s}
    scored = _scored(corpus.smallest)
    targets = Targets(
        corpus.name,
        tokenizer.sha256,
        content,
        grid.count(corpus.largest),
        len(scored),
        _target_documents(corpus, held_out),
    )
    return GridDataset(
        name=corpus.name,
        config=corpus.config,
        corpus=corpus,
        tokenizer=tokenizer,
        train=[sample.values for sample in sides["train"]],
        validation=[sample.values for sample in sides["validation"]],
        test={document.id: held_out[document.id] for document in targets.documents},
        targets=targets,
        scored=scored,
        content_sha256=content,
        split=_summary(sides),
    )


def _scored(smallest: Shape) -> npt.NDArray[np.int64]:
    """Offsets [n, A] of what is scored from a region's last token, in raster order.

    The lower half of a picture's smallest region, the last frame of a clip's.
    """
    part = (1, *smallest[1:]) if len(smallest) > 2 else (smallest[0] // 2, *smallest[1:])
    places = np.stack(np.unravel_index(np.arange(grid.count(part)), part), axis=1)
    return (places - (np.array(part) - 1)).astype(np.int64)


def _target_documents(corpus: GridCorpus, held_out: Mapping[str, Levels]) -> list[TargetDocument]:
    """The last tokens of regions of the largest shape that do not overlap, far apart first.

    Equally many of every sample, as many as the smallest one holds and `REGIONS` at most.
    """
    ends = {}
    for name in sorted(held_out):
        values, largest = held_out[name], corpus.largest
        if any(n < most for n, most in zip(values.shape, largest, strict=True)):
            raise DataError(
                f"{corpus.origin}: {name} is {grid.text(values.shape)}, smaller than the largest "
                f"test region, {grid.text(largest)}"
            )
        tiles = [range(m - 1, n, m) for n, m in zip(values.shape, largest, strict=True)]
        corners = np.stack(np.meshgrid(*tiles, indexing="ij"), axis=-1).reshape(-1, len(largest))
        flat = np.ravel_multi_index(tuple(corners.T), values.shape)
        ends[name] = [int(flat[i]) for i in spread(len(flat))]
    blocks = min(REGIONS, *map(len, ends.values())) if len(ends) > 1 else REGIONS
    names = list(ends)
    return [TargetDocument(names[i], ends[names[i]][:blocks]) for i in spread(len(names))]


def _room(values: Levels, shape: Shape) -> int:
    """Regions of a shape in a sample."""
    return math.prod(max(0, n - m + 1) for n, m in zip(values.shape, shape, strict=True))


def _holding(samples: list[Levels], shape: Shape, origin: str) -> list[Levels]:
    """The samples that hold a region of a shape; DataError where none does."""
    found = [values for values in samples if _room(values, shape)]
    if not found:
        largest = max((values.shape for values in samples), default=())
        raise DataError(
            f"{origin}: no sample holds a region of data.shape={grid.text(shape)}; the largest is "
            f"{grid.text(largest)}"
        )
    return found


def _cut(
    samples: list[Levels], places: npt.NDArray[np.int64], shape: Shape
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """One region of each sample, by its number in raster order: inputs, next tokens [n, T - 1]."""
    found = np.empty((len(samples), grid.count(shape)), dtype=np.int64)
    for row, (values, place) in enumerate(zip(samples, places, strict=True)):
        rooms = np.array(values.shape) - shape + 1
        last = np.array(np.unravel_index(int(place), tuple(rooms))) + shape - 1
        found[row] = _region(values, int(np.ravel_multi_index(tuple(last), values.shape)), shape)
    return found[:, :-1], found[:, 1:]


def _region(values: Levels, last: int, shape: Shape) -> npt.NDArray[np.int64]:
    """Tokens [T] of the region of a shape that ends with the token of this raster index."""
    corner = np.unravel_index(last, values.shape)
    cut = tuple(slice(c + 1 - n, c + 1) for c, n in zip(corner, shape, strict=True))
    return values[cut].astype(np.int64).ravel()


def _summary(sides: Mapping[str, list[Sample]]) -> dict[str, Any]:
    """What a manifest says about the split."""
    digest = hashlib.sha256()
    for side, samples in sides.items():
        for sample in samples:
            digest.update(f"{side}\t{sample.id}\t{grid.text(sample.values.shape)}\n".encode())
    counts = {
        side: {"documents": len(samples), "tokens": sum(s.values.size for s in samples)}
        for side, samples in sides.items()
    }
    return {**counts, "contiguous": False, "sha256": digest.hexdigest()}
