import math
import re
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posbench import registry
from posbench.report.collect import collect
from posbench.report.figures import _figure, perplexity_figure, ratio_figure
from posbench.report.panels import PERPLEXITY, RATIO, Quantity
from posbench.report.sections import PRESETS, RESCALINGS
from posbench.report.style import DASHDOT, DASHED, REFERENCE, SOLID, rescale_style, scheme_style

from .conftest import PLAIN, Runs, demo_curves
from .crossed import add
from .test_pooling import made

CURVE = [27.0, 24.5, 26.3, 29.8, 38.3, 46.9]


def _texts(figure: Figure) -> str:
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return "\n".join([*(text.get_text() for text in figure.texts), *legends])


def _line(ax: Axes, color: str, points: int) -> list[float]:
    found = [x for x in ax.lines if x.get_color() == color and len(x.get_xdata()) == points]
    return [float(y) for y in found[0].get_ydata()]


@pytest.mark.parametrize("quantity", [PERPLEXITY, RATIO])
def test_panels_show_schemes_then_each_rescaled_run(
    demo_rows: pd.DataFrame, quantity: Quantity
) -> None:
    figure = _figure(demo_rows, quantity)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["trained schemes", "rope, rescaled", "rope_matched, rescaled"]
    assert len({ax.get_ylim() for ax in figure.axes}) == 1
    texts = _texts(figure)
    for name in (
        "t5",
        "learned",
        "rope, unscaled",
        "pi@8",
        "dynamic_ntk",
        "n-gram",
        "crop of rope",
    ):
        assert re.search(rf"^{name}$", texts, re.M), name
    assert "tier demo" in texts and "learned (unsupported from 256)" in texts
    for ax in figure.axes:
        ax.figure.canvas.draw()
        labels = [label.get_text() for label in ax.get_xticklabels()]
        assert labels == ["64", "128", "256", "512", "1k", "2k"]
        assert [text.get_text() for text in ax.texts] == ["L = 128"]


def test_lines_are_the_numbers(demo_rows: pd.DataFrame) -> None:
    curve = [float(v) for v in demo_curves()["t5"][PLAIN]]
    color = scheme_style("t5").color
    assert _line(_figure(demo_rows, PERPLEXITY).axes[0], color, 6) == pytest.approx(curve)
    ratio = [v / curve[1] for v in curve]
    assert _line(_figure(demo_rows, RATIO).axes[0], color, 6) == pytest.approx(ratio)


def test_the_run_that_was_trained_longer_is_one_line(runs: Runs) -> None:
    """Also where two runs name the same one."""
    dirs, parts = made(runs, {128: 0.0, 512: 0.0, 1024: 0.02}, headroom=0.3)
    own, long = ({T: parts[f"{kind}{T}"] for T in (128, 512, 1024)} for kind in ("", "long"))
    dirs += add(runs, "alibi", own, parts["crop"], parts["short"], long)
    rows = collect(dirs).pooled
    for quantity, unit in ((PERPLEXITY, 0.0), (RATIO, parts["crop"].mean())):
        figure = _figure(rows, quantity)
        (ax,) = figure.axes
        values = [math.exp(long[T].mean() - unit) for T in sorted(long)]
        assert _line(ax, REFERENCE, 3) == pytest.approx(values)
        assert len([x for x in ax.lines if x.get_color() == REFERENCE]) == 2  # and the n-gram model
        assert ax.get_ylim()[0] < min(values)
        assert re.search("^trained_long$", _texts(figure), re.M)


def test_what_explodes_is_cut_and_marked(runs: Runs) -> None:
    dirs = [runs.add("alibi", {PLAIN: CURVE}), runs.add("t5", {PLAIN: CURVE})]
    dirs.append(runs.add("sinusoidal", {PLAIN: [27.0, 25.0, 30.0, 40.0, 1e5, 1e5]}))
    figure = _figure(collect(dirs).pooled, PERPLEXITY)
    (ax,) = figure.axes
    low, high = ax.get_ylim()
    assert low < 24 and 47 < high < 500
    color = scheme_style("sinusoidal").color
    triangles = [x for x in ax.lines if x.get_color() == color and x.get_marker() == "^"]
    assert [round(float(x.get_xdata()[0])) for x in triangles] == [1024, 2048]
    assert all(low < float(x.get_ydata()[0]) < high for x in triangles)
    assert "Triangles at the top edge" in _texts(figure)


@pytest.mark.parametrize("quantity", [PERPLEXITY, RATIO])
def test_nothing_is_cut_off_or_printed_over(demo_rows: pd.DataFrame, quantity: Quantity) -> None:
    figure = _figure(demo_rows, quantity)
    figure.canvas.draw()
    page = figure.bbox
    boxes = [text.get_window_extent() for text in figure.texts]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    boxes += [ax.get_tightbbox() for ax in figure.axes]
    for i, box in enumerate(boxes):
        assert box.x0 >= page.x0 and box.x1 <= page.x1
        assert box.y0 >= page.y0 and box.y1 <= page.y1
        for other in boxes[:i]:
            assert not box.overlaps(other)


def test_a_stamp_is_drawn(runs: Runs) -> None:
    run = runs.add("rope", {PLAIN: CURVE}, stamp="demo: below n-gram; smoke run")
    texts = _texts(_figure(collect([run]).pooled, RATIO))
    assert "demo: below n-gram (rope)" in texts and "smoke run (rope)" in texts


@pytest.mark.parametrize("docs", [1, 22])
def test_files_are_png_and_svg_without_dates(runs: Runs, tmp_path: Path, docs: int) -> None:
    rows = collect([runs.add("rope", {PLAIN: CURVE}, docs=docs)]).pooled
    perplexity_figure(rows, tmp_path / "deep" / "v1.2")
    ratio_figure(rows, tmp_path / "deep" / "ratio")
    names = sorted(path.name for path in (tmp_path / "deep").iterdir())
    assert names == ["ratio.png", "ratio.svg", "v1.2.png", "v1.2.svg"]
    assert (tmp_path / "deep" / "v1.2.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "deep" / "v1.2.svg").read_text()
    assert "<svg" in svg and "dc:date" not in svg


def test_rows_without_numbers_make_a_figure(runs: Runs, tmp_path: Path) -> None:
    rows = collect([runs.add("rope", {PLAIN: ["out_of_memory"] * 6})]).pooled
    perplexity_figure(rows, tmp_path / "empty")
    assert (tmp_path / "empty.svg").is_file()


def test_styles_are_distinct_and_stable() -> None:
    schemes = [scheme_style(name) for name in (*PRESETS, "rope_matched")]
    rules = [rescale_style(name, "8") for name in RESCALINGS if name != "none"]
    for styles in (schemes, rules):
        assert len({style.color for style in styles}) == len(styles)
        assert len({style.marker for style in styles}) == len(styles)
    assert rescale_style("yarn", "8").dash == SOLID
    assert rescale_style("yarn", "auto").dash == DASHED
    assert rescale_style("dynamic_ntk", "").dash == DASHDOT
    assert scheme_style("my_own") == scheme_style("my_own") != scheme_style("another_one")


def test_nothing_that_comes_with_posbench_looks_like_another() -> None:
    schemes = [scheme_style(name) for name in registry.options("posenc")]
    assert len(set(schemes)) == len(schemes) > 30
    rules = [rescale_style(name, "") for name in registry.names("rescale") if name != "none"]
    assert len(set(rules)) == len(rules) > 15
