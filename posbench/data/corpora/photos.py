"""Photographs: pictures in which a larger crop shows more of the same scene."""

import io
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import ClassVar

import numpy as np

from posbench.data.corpora.grid import GridCorpus, Sample, Sides
from posbench.registry import register

#: an animal, a texture and a machine; and an everyday object of ordinary size, for validation
_HELD_OUT = {"chelsea": "test", "gravel": "test", "rocket": "test", "coffee": "validation"}


@register
class Photos(GridCorpus):
    """Eleven of scikit-image's pictures in grey, 300 to 1,411 pixels a side; three are held out.

    Grey is the luma of Rec. 601 in whole numbers, (19595 R + 38470 G + 7471 B + 32768) // 65536.
    Nothing is scaled. Only files of the wheel are read; nothing is downloaded. Group = picture.
    """

    family = "picture"
    paper = "package scikit-image 0.26.0; CC0 or public domain"
    package = "skimage"
    distribution = "scikit-image"
    extra = "vision"
    files = (
        "data/astronaut.png",
        "data/brick.png",
        "data/camera.png",
        "data/chelsea.png",
        "data/coffee.png",
        "data/coins.png",
        "data/grass.png",
        "data/gravel.png",
        "data/hubble_deep_field.jpg",
        "data/retina.jpg",
        "data/rocket.jpg",
    )
    sha256 = "ab53a72297f170efb31cf916f3416d57cae7bdfb892ca4a8a5c9f648efdc1d48"
    install = "pip install scikit-image==0.26.0"
    smallest = (16, 16)
    shapes = ((16, 16), (24, 24), (32, 32), (48, 48))
    unit = "picture"
    independent = False

    @dataclass
    class Config(GridCorpus.Config):
        """Settings of `data=photos`."""

        largest: ClassVar[tuple[int, ...]] = (48, 48)

        shape: list[int] = field(default_factory=lambda: [16, 16])

    def make(self, files: dict[str, bytes]) -> Sides:
        """Whole pictures; the id is the file's stem."""
        from PIL import Image

        sides: Sides = {"train": [], "validation": [], "test": []}
        for file, content in files.items():
            try:
                values = np.asarray(Image.open(io.BytesIO(content)).convert("L"))
            except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
                raise self.damaged(file) from error
            name = PurePosixPath(file).stem
            sides[_HELD_OUT.get(name, "train")].append(Sample(name, name, values))
        return sides
