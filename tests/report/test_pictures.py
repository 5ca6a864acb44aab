from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from posbench import grid
from posbench.errors import RunError
from posbench.evaluate.pictures import FILE, Pictures, Shown, write
from posbench.grid import Shape
from posbench.report.collect import collect
from posbench.report.pictures import Group, figure, gathered, write_pictures
from posbench.report.write import write_report

from .conftest import PLAIN, Runs

SMALL, LARGE = (16, 16), (48, 48)
SCORED = {2: (8, 16), 3: (1, 16, 16)}


def _shown(shape: Shape, nats: float = 2.0, regions: int = 2) -> Shown:
    """A ramp, all pixels of which cost the same but the first, and a continuation in white."""
    n = grid.count(shape)
    levels = np.stack([np.arange(n).reshape(shape) * 32 // n] * regions).astype(np.uint8)
    loss = np.full((regions, *shape), nats, dtype=np.float32)
    loss.reshape(regions, -1)[:, 0] = np.nan
    sampled = levels[:1].copy()
    sampled[(slice(None), *(slice(-k, None) for k in SCORED[len(shape)]))] = 31
    return Shown(levels, loss, sampled)


def _kept(*shapes: Shape, nats: float = 2.0) -> Pictures:
    shown: dict[Shape, Shown | str] = {shape: _shown(shape, nats) for shape in shapes}
    return Pictures(32, ["gravel", "rocket"], SCORED[len(shapes[0])], shown)


def _add(
    runs: Runs, preset: str, kept: Pictures | None, shapes: tuple[Shape, ...], **changes: Any
) -> Path:
    """A run whose evaluation of these shapes, the first that of training, keeps the pictures."""
    lengths = tuple(map(grid.count, shapes))
    changes = {"data": "photos", "tokenizer": "32 levels"} | changes
    evaluation = f"e{len(preset)}{changes.get('seed', 0)}{lengths[-1]}{preset}"
    curves: Any = {PLAIN: [7.0] * len(lengths)}
    run = runs.add(
        preset, curves, lengths=lengths, train_len=lengths[0], evaluation=evaluation, **changes
    )
    folder = run / "evals" / evaluation
    names = {str(n): grid.text(s) for n, s in zip(lengths, shapes, strict=True)}
    for name in ("lengths.csv", "blocks.csv"):
        table = pd.read_csv(folder / name, dtype=str, keep_default_na=False)
        for column in {"train_len", "test_len"} & set(table):
            table[column.replace("len", "shape")] = table[column].map(names)
        table.to_csv(folder / name, index=False)
    if kept:
        write(kept, folder / FILE)
    return run


def _figure(*dirs: Path) -> Figure:
    (group,) = gathered(collect(dirs), dirs)
    return figure(group)


def _panels(drawn: Figure) -> list[Axes]:
    """All axes but the colour bar's."""
    return drawn.axes[:-1]


def _texts(drawn: Figure) -> list[str]:
    return [text.get_text() for text in drawn.texts]


def test_a_row_for_each_scheme_in_the_order_of_the_report(runs: Runs) -> None:
    both = (SMALL, LARGE)
    dirs = [_add(runs, p, _kept(*both), both) for p in ("rope_axial", "zebra", "none", "alibi")]
    drawn = _figure(*dirs)
    panels = _panels(drawn)
    assert [len(ax.images) for ax in panels] == [1] * 24
    names = [t for t in _texts(drawn) if t in ("none", "alibi", "rope_axial", "zebra")]
    assert names == ["none", "alibi", "rope_axial", "zebra"]
    place = {t.get_text(): t.get_position()[1] for t in drawn.texts}
    assert place["none"] > place["alibi"] > place["rope_axial"] > place["zebra"]
    assert {"16x16, as in training", "48x48, the largest"} < set(_texts(drawn))
    heads = ["picture", "loss", "continued", "picture", "loss", "corner, continued"]
    assert [t for t in _texts(drawn) if t in heads] == heads
    assert any("of gravel, which varies most of 2" in t for t in _texts(drawn))


def test_panels_are_the_numbers(runs: Runs) -> None:
    shown = _shown(LARGE)
    shown.nats[0, -8:, -16:] = 5.25
    kept = _kept(SMALL, LARGE)
    kept.shapes[LARGE] = shown
    drawn = _figure(_add(runs, "rope", kept, (SMALL, LARGE)))
    panels = _panels(drawn)
    arrays = [ax.images[0].get_array() for ax in panels]
    assert np.array_equal(arrays[3], shown.levels[0])
    heat = np.ma.getmaskarray(arrays[4])
    assert heat[0, 0] and heat.sum() == 1 and np.allclose(arrays[4][1:], shown.nats[0, 1:])
    assert np.array_equal(arrays[5], shown.sampled[0, -16:, -16:])
    assert [panels[i].get_xlabel() for i in (1, 4)] == ["2.00", "5.25"]
    (box,) = (patch for patch in panels[4].patches if isinstance(patch, Rectangle))
    assert (*box.get_xy(), box.get_width(), box.get_height()) == (31.5, 39.5, 16, 8)
    (box,) = (patch for patch in panels[5].patches if isinstance(patch, Rectangle))
    assert (*box.get_xy(), box.get_width(), box.get_height()) == (-0.5, 7.5, 16, 8)


def test_all_losses_have_one_scale_and_all_pictures_another(runs: Runs) -> None:
    both = (SMALL, LARGE)
    dirs = [_add(runs, p, _kept(*both, nats=n), both) for p, n in (("none", 1.5), ("rope", 6.0))]
    panels = _panels(_figure(*dirs))
    limits = [ax.images[0].get_clim() for ax in panels]
    assert {limits[i] for i in (1, 4, 7, 10)} == {(0, 6.0)}
    assert {limits[i] for i in range(12) if i % 3 != 1} == {(0, 31)}
    heat = panels[1].images[0].get_cmap()
    grey = heat(np.linspace(0, 1, 50))[:, :3] @ [0.299, 0.587, 0.114]
    assert (np.diff(grey) < 0).all()


def test_a_scheme_that_cannot_says_why(runs: Runs) -> None:
    both = (SMALL, LARGE)
    refused = _kept(*both)
    refused.shapes[LARGE] = "unsupported_length"
    mute = _kept(*both)
    shown = mute.shapes[LARGE]
    assert isinstance(shown, Shown)
    mute.shapes[LARGE] = replace(shown, sampled=shown.sampled[:0])
    dirs = [
        _add(runs, "learned", refused, both),
        _add(runs, "t5", mute, both),
        _add(runs, "rope", _kept(SMALL), both),
        _add(runs, "zebra", None, both),
    ]
    said = [" ".join(t.get_text().split()) for ax in _panels(_figure(*dirs)) for t in ax.texts]
    unmeasured = "not among what this run was measured on"
    assert sorted(said) == sorted(
        [
            "this scheme has no positions for this shape",
            "no draw: its probabilities are not finite",
            *[unmeasured] * 3,
        ]
    )


@pytest.mark.parametrize("frames, chosen", [(4, [0, 1, 2, 3]), (32, [0, 10, 21, 31]), (3, None)])
def test_a_clip_shows_four_frames_and_ends_at_the_lower_right(
    runs: Runs, frames: int, chosen: list[int] | None
) -> None:
    shape = (frames, 16, 16)
    drawn = _figure(_add(runs, "mrope", _kept(shape), (shape,), data="clips"))
    picture, heat, last = _panels(drawn)
    sheet, levels = picture.images[0].get_array(), _shown(shape).levels[0]
    assert sheet.shape == heat.images[0].get_array().shape == (33, 33)
    corners = [sheet[y : y + 16, x : x + 16] for y in (0, 17) for x in (0, 17)]
    if chosen is None:
        assert np.ma.getmaskarray(corners[0]).all()
        corners, chosen = corners[1:], [0, 1, 2]
    for corner, frame in zip(corners, chosen, strict=True):
        assert np.array_equal(corner, levels[frame])
    assert (last.images[0].get_array() == 31).all()
    assert f"frames {' '.join(str(i + 1) for i in chosen)}" in _texts(drawn)
    (box,) = (patch for patch in heat.patches if isinstance(patch, Rectangle))
    assert (*box.get_xy(), box.get_width(), box.get_height()) == (16.5, 16.5, 16, 16)


def test_the_first_seed_and_the_largest_evaluation_are_shown(runs: Runs) -> None:
    dirs = [
        _add(runs, "rope", _kept(SMALL, LARGE, nats=1 + s), (SMALL, LARGE), seed=s) for s in (1, 0)
    ]
    small = _add(runs, "alibi", _kept(SMALL, nats=9), (SMALL,))
    (group,) = gathered(collect([*dirs, small]), [*dirs, small])
    assert list(group.runs) == ["alibi", "rope"] and group.shapes == [SMALL, LARGE]
    drawn = figure(group)
    labels = [ax.get_xlabel() for ax in _panels(drawn) if ax.get_xlabel()]
    assert labels == ["9.00", "1.00", "1.00"]
    assert any("the first seed of each" in text for text in _texts(drawn))


def test_stamps_are_drawn(runs: Runs) -> None:
    run = _add(runs, "rope", _kept(SMALL), (SMALL,), stamp="no n-gram reference, so no verdict")
    assert "no n-gram reference, so no verdict (rope)" in " ".join(_texts(_figure(run)))


@pytest.mark.parametrize("shapes", [(SMALL, LARGE), (SMALL,), ((4, 16, 16), (32, 16, 16))])
def test_nothing_is_cut_off_or_printed_over(runs: Runs, shapes: tuple[Shape, ...]) -> None:
    names = ["none", "sinusoidal_axial", "learned_axial", "mrope_interleaved", "rope_matched"]
    kept = replace(_kept(*shapes), samples=["carphone_distorted"] * 2)
    stamp = "demo: below n-gram; smoke run"
    drawn = _figure(*(_add(runs, name, kept, shapes, stamp=stamp) for name in names))
    drawn.canvas.draw()
    page = drawn.bbox
    assert page.width / drawn.dpi < 9.2
    boxes = [text.get_window_extent() for text in drawn.texts]
    boxes += [ax.get_tightbbox() for ax in drawn.axes]
    for i, box in enumerate(boxes):
        assert box.x0 >= page.x0 and box.x1 <= page.x1
        assert box.y0 >= page.y0 and box.y1 <= page.y1
        for other in boxes[:i]:
            assert not box.overlaps(other)


def test_a_report_has_a_figure_for_each_corpus(runs: Runs, tmp_path: Path) -> None:
    dirs = [
        runs.add("t5", {PLAIN: [27.0, 24.5, 26.3, 29.8, 38.3, 46.9]}),
        _add(runs, "rope", _kept(SMALL), (SMALL,)),
        _add(runs, "mrope", _kept((4, 16, 16)), ((4, 16, 16),), data="clips"),
    ]
    names = ["pictures-clips-4x16x16.png", "pictures-photos-16x16.png"]
    assert [n for n in write_report(dirs, tmp_path / "all").files if "pictures" in n] == names
    assert {path.name for path in (tmp_path / "all").glob("pic*")} == set(names)
    one = gathered(collect(dirs[:2]), dirs[:2])
    assert write_pictures(one, tmp_path / "one") == ["pictures.png"]
    content = (tmp_path / "one" / "pictures.png").read_bytes()
    assert content == (tmp_path / "all" / names[1]).read_bytes()
    assert content.startswith(b"\x89PNG")
    assert gathered(collect(dirs[:1]), dirs[:1]) == []


def test_damaged_pictures_stop_the_report_before_it_writes(runs: Runs, tmp_path: Path) -> None:
    run = _add(runs, "rope", _kept(SMALL), (SMALL,))
    (file,) = run.glob(f"evals/*/{FILE}")
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(RunError, match=r"pictures.npz is damaged: .") as caught:
        write_report([run], tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 1 and not (tmp_path / "out").exists()


def test_a_group_without_finite_losses_is_drawn() -> None:
    kept = _kept(SMALL, nats=np.inf)
    drawn = figure(Group("photos", SMALL, runs={"rope": kept}))
    assert [ax.get_xlabel() for ax in _panels(drawn)] == ["", "inf", ""]
