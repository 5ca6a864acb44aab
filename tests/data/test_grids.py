"""Pictures and clips as tokens: regions in raster order, targets that no shape moves."""

from typing import Any, ClassVar

import numpy as np
import pytest

from posbench import grid
from posbench.data import grids
from posbench.data.corpora.grid import GridCorpus, Sample, Sides
from posbench.errors import ConfigError, DataError


def numbered(number: int, *shape: int) -> np.ndarray:
    """Levels that say where they come from, as far as 200 levels can."""
    index = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    return ((index * 37 + number * 11) % 200).astype(np.uint8)


class Small(GridCorpus):
    """Three pictures a side, of different sizes."""

    name = "small"
    smallest = (4, 4)
    shapes = ((4, 4), (8, 6))
    unit, independent = "picture", False
    sizes: ClassVar[list[tuple[int, ...]]] = [(17, 13), (8, 6), (9, 20)]

    class Config(GridCorpus.Config):
        largest = (8, 6)

    def make(self, files: dict[str, bytes]) -> Sides:
        return {}

    def sides(self) -> Sides:
        return {
            side: [
                Sample(f"{side}{i}", f"{side}{i}", numbered(10 * n + i, *size))
                for i, size in enumerate(self.sizes)
            ]
            for n, side in enumerate(("train", "validation", "test"))
        }


class Film(Small):
    """Clips of six frames, two of which show one scene."""

    name = "film"
    smallest = (2, 3, 4)
    shapes = ((2, 3, 4), (6, 3, 4))
    sizes: ClassVar[list[tuple[int, ...]]] = [(7, 5, 6), (6, 3, 4), (6, 3, 9)]

    class Config(GridCorpus.Config):
        largest = (6, 3, 4)

    def sides(self) -> Sides:
        made = super().sides()
        made["test"][1] = Sample("test1", "test0", made["test"][1].values)
        return made


def dataset(cls: type[Small] = Small, shape: tuple[int, ...] = (4, 4)) -> grids.GridDataset:
    return grids.load(cls(cls.Config(shape=list(shape), levels=200)))


def slow_windows(values: np.ndarray, corner: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    """Tokens of the region that ends at a corner, by loops."""
    starts = [c - n + 1 for c, n in zip(corner, shape, strict=True)]
    found = []
    for offset in np.ndindex(*shape):
        found.append(int(values[tuple(s + o for s, o in zip(starts, offset, strict=True))]))
    return found


@pytest.mark.parametrize("cls, shape", [(Small, (4, 4)), (Film, (2, 3, 4))])
def test_a_batch_holds_regions_of_the_training_samples(cls: Any, shape: Any) -> None:
    data = dataset(cls, shape)
    regions = {
        tuple(slow_windows(values, tuple(np.add(start, shape) - 1), shape))
        for values in data.train
        for start in np.ndindex(*(np.subtract(values.shape, shape) + 1))
    }
    seen = set()
    for step in range(40):
        inputs, labels = data.training_batch(shape, 5, 0, step)
        assert inputs.shape == labels.shape == (5, grid.count(shape) - 1)
        assert np.array_equal(inputs[:, 1:], labels[:, :-1])
        for row in np.concatenate([inputs, labels[:, -1:]], axis=1):
            assert tuple(row) in regions
            seen.add(tuple(row))
    assert len(seen) > 30
    again, _ = data.training_batch(shape, 5, 0, 7)
    assert np.array_equal(again, data.training_batch(shape, 5, 0, 7)[0])
    assert not np.array_equal(again, data.training_batch(shape, 5, 1, 7)[0])


def test_every_picture_is_drawn_as_often_whatever_its_size() -> None:
    data = dataset()
    data.train[:] = [np.full(size, i, dtype=np.uint8) for i, size in enumerate(Small.sizes)]
    drawn = np.concatenate([data.training_batch((4, 4), 50, 0, s)[0][:, 0] for s in range(30)])
    assert np.allclose(np.bincount(drawn) / len(drawn), 1 / 3, atol=0.05)


def test_validation_is_fixed_and_spread_over_all_samples() -> None:
    data = dataset()
    data.validation = [np.full(size, i, dtype=np.uint8) for i, size in enumerate(Small.sizes)]
    inputs, _ = data.validation_windows((4, 4), 30)
    rooms = np.array([14 * 10, 5 * 3, 6 * 17])
    assert len(inputs) == 30
    share = np.bincount(inputs[:, 0], minlength=3) / 30
    assert np.allclose(share, rooms / rooms.sum(), atol=0.05)
    assert len(data.validation_windows((4, 4), 10**6)[0]) == rooms.sum()


@pytest.mark.parametrize(
    "cls, train, shapes, scored",
    [
        (Small, (4, 4), [(4, 4), (4, 6), (8, 4), (5, 5), (8, 6)], (2, 4)),
        (Film, (2, 3, 4), [(2, 3, 4), (3, 3, 4), (6, 3, 4)], (1, 3, 4)),
    ],
)
def test_the_same_tokens_are_scored_at_every_shape(
    cls: Any, train: Any, shapes: Any, scored: Any
) -> None:
    """Against loops: each label is the pixel at its place, each input the pixel before it."""
    data = dataset(cls, train)
    found = {}
    for shape in shapes:
        for window in data.target_windows(shape, None, None):
            values = data.test[window.document]
            corner = np.unravel_index(window.end, values.shape)
            tokens = slow_windows(values, tuple(map(int, corner)), shape)
            assert window.inputs.tolist() == tokens[:-1]
            assert window.shape == shape
            labels = []
            for offset in np.ndindex(*scored):  # the corner of the region, in raster order
                at = tuple(c - m + 1 + o for c, m, o in zip(corner, scored, offset, strict=True))
                labels.append(int(values[at]))
            assert window.labels.tolist() == labels
            for place, label in zip(window.scored, labels, strict=True):
                assert tokens[place + 1] == label
            key = window.document, window.block
            assert found.setdefault(key, labels) == labels
        contexts = window.scored + 1
        assert data.mean_context(shape) == pytest.approx(contexts.mean())
    assert len(found) == len(data.targets.documents) * data.targets.blocks


def test_target_regions_do_not_overlap() -> None:
    data = dataset()
    for document in data.targets.documents:
        seen = np.zeros(data.test[document.id].shape, dtype=int)
        for end in document.ends:
            row, column = np.unravel_index(end, seen.shape)
            seen[row - 7 : row + 1, column - 5 : column + 1] += 1
        assert seen.max() == 1
        assert seen.sum() == len(document.ends) * 48
    assert data.targets.blocks == 1  # as many as the smallest picture holds


def test_two_views_of_one_scene_are_scored_once() -> None:
    assert sorted(dataset(Film, (2, 3, 4)).test) == ["test1", "test2"]


def test_a_vocabulary_of_levels_is_kept_and_read_back(tmp_path: Any) -> None:
    from posbench.data.tokenizer import Tokenizer

    data = dataset()
    data.tokenizer.save(tmp_path / "tokenizer.json")
    back = Tokenizer.load(tmp_path / "tokenizer.json")
    assert back.vocab_size == 200 and back.sha256 == data.tokenizer.sha256
    assert back.token_bytes().tolist() == [1] * 200


@pytest.mark.parametrize(
    "given, words",
    [
        (["9x6"], "eval.shapes=9x6: the targets of data=small allow from 4x4 to 8x6"),
        (["3x4"], "eval.shapes=3x4"),
        (["4"], "eval.shapes=4: needs 2 extents, such as 16x16"),
        (["4x4x4"], "needs 2 extents"),
        (["4xx4"], "needs 2 extents"),
        ([], "at least one shape"),
    ],
)
def test_shapes_that_cannot_be_measured_are_refused(given: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        dataset().test_shapes(given, None)


def test_lengths_are_refused_for_pictures() -> None:
    with pytest.raises(ConfigError, match=r"eval\.shapes=\[4x4,8x6\]"):
        dataset().test_shapes(None, [128])


def test_a_sample_smaller_than_a_region_is_refused() -> None:
    class Tiny(Small):
        sizes: ClassVar[list[tuple[int, ...]]] = [(5, 5)]

    with pytest.raises(DataError, match=r"data=small: test0 is 5x5, smaller than .* 8x6"):
        dataset(Tiny)
    with pytest.raises(DataError, match=r"no sample holds a region of data\.shape=40x4"):
        dataset().training_batch((40, 4), 2, 0, 0)


def test_coordinates_are_in_raster_order() -> None:
    assert grid.coordinates((2, 3))[0].tolist() == [list(at) for at in np.ndindex(2, 3)]
    assert grid.coordinates((2, 2, 3))[0].tolist() == [list(at) for at in np.ndindex(2, 2, 3)]
    assert grid.coordinates((4,))[0].tolist() == [[0], [1], [2], [3]]
