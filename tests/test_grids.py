"""Runs on pictures and clips through the command: shapes, what is scored, refusals, the table.

One file: its tests share the same few runs.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from helpers import refused

from posbench import model as models
from posbench import runs
from posbench.report import collect, sections

Command = Callable[..., Any]

#: two corpora of pictures and clips whose pixels follow from their neighbours
PLUGIN = '''
import numpy as np
from dataclasses import dataclass, field
from typing import ClassVar
from posbench.data.corpora.grid import GridCorpus, Sample
from posbench.registry import register


@register
class {name}(GridCorpus):
    """Sheets of stripes."""

    family = "picture"
    smallest = {smallest}
    shapes = ({smallest}, {largest})
    unit, independent = "{unit}", False

    @dataclass
    class Config(GridCorpus.Config):
        largest: ClassVar[tuple[int, ...]] = {largest}
        shape: list[int] = field(default_factory=lambda: list({smallest}))
        levels: int = 8

    def make(self, files):
        return {{}}

    def sides(self):
        draw = np.random.default_rng(0)
        def one(side, i):
            at = np.indices({size}).sum(0) + i
            noise = draw.integers(0, 2, {size})
            return Sample(f"{{side}}{{i}}", f"{{side}}{{i}}", ((at + noise) % 8).astype(np.uint8))
        sides = ("train", "validation", "test")
        return {{side: [one(side, i) for i in range(3)] for side in sides}}
'''
SHEETS = {
    "name": "Sheets", "smallest": (4, 4), "largest": (8, 8), "unit": "picture",
    "size": (16, 17),
}  # fmt: skip
REELS = {
    "name": "Reels", "smallest": (2, 4, 4), "largest": (5, 4, 4), "unit": "clip",
    "size": (10, 8, 4),
}  # fmt: skip
TINY = [
    "model.d_model=48", "model.n_layers=2", "model.n_heads=2", "train.batch_size=4",
    "train.val_windows=8", "train.threads=1", "train.device=cpu", "train.steps=8",
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("corpora")
    made = {}
    for name, fields in (("sheets", SHEETS), ("reels", REELS)):
        made[name] = folder / f"{name}.py"
        made[name].write_text(PLUGIN.format(**fields))
    return made


@pytest.fixture
def grids(posbench: Command, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, with both corpora as plug-ins."""
    monkeypatch.setenv("POSBENCH_PLUGINS", "")
    monkeypatch.setenv("PYTHONPATH", "")

    def call(*arguments: str) -> Any:
        known = [a for path in files.values() for a in ("--plugin", str(path))]
        return posbench(*arguments, *known)

    return call


def trained(grids: Command, *overrides: str) -> list[runs.Run]:
    done = grids("train", *TINY, *overrides)
    assert done.code == 0, done.err
    name = next((o.removeprefix("name=") for o in overrides if o.startswith("name=")), "default")
    return runs.find([name], "runs")[0]


def table(run: runs.Run) -> pd.DataFrame:
    (file,) = run.path.glob("evals/*/lengths.csv")
    return pd.read_csv(file, keep_default_na=False)


def by_hand(run: runs.Run, shape: tuple[int, ...], raster: bool) -> list[float]:
    """Nats of the scored pixels, one forward pass a pixel, with positions written out by loops."""
    data = runs.load_dataset(run)
    model = models.build(run.config, data.tokenizer.vocab_size).eval()
    models.load_weights(model, run.weights)
    smallest = data.corpus.smallest
    part = (1, *smallest[1:]) if len(shape) == 3 else (smallest[0] // 2, smallest[1])
    found = []
    for document in data.targets.documents:
        values = data.test[document.id]
        for end in document.ends[: data.blocks]:
            corner = np.unravel_index(end, values.shape)
            start = [int(c) - n + 1 for c, n in zip(corner, shape, strict=True)]
            places = list(np.ndindex(*shape))
            levels = [int(values[tuple(np.add(start, at))]) for at in places]
            for offset in np.ndindex(*part):
                at = tuple(n - m + o for n, m, o in zip(shape, part, offset, strict=True))
                number = places.index(at)
                pos = [[i] for i in range(number)] if raster else [list(p) for p in places[:number]]
                with torch.inference_mode():
                    out = model(torch.tensor([levels[:number]]), torch.tensor([pos]))
                found.append(float(F.cross_entropy(out[0, -1], torch.tensor(levels[number]))))
    return found


@pytest.mark.parametrize(
    "scheme, raster", [("rope_axial", False), ("t5_axial", False), ("rope", True)]
)
def test_rows_are_those_of_a_slow_loop(grids: Command, scheme: str, raster: bool) -> None:
    (run,) = trained(grids, "data=sheets", f"posenc={scheme}")
    assert grids("eval-lengths", "default", "eval.shapes=[4x4,5x7,8x8,4x8]").code == 0
    rows = table(run)
    assert list(rows["test_shape"]) == ["4x4", "4x8", "5x7", "8x8"]
    assert set(rows["train_shape"]) == {"4x4"} and set(rows["status"]) == {"ok"}
    assert list(rows["test_len"]) == [16, 32, 35, 64] and len(set(rows["targets_hash"])) == 1
    for row in rows.itertuples():
        nats = by_hand(run, tuple(map(int, row.test_shape.split("x"))), raster)
        assert len(nats) == int(row.n_targets) == 3 * 4 * 8
        assert float(row.nll) == pytest.approx(np.mean(nats), abs=1e-5)
    assert float(rows["base_nll"][3]) == float(rows["nll"][0])


def test_clips_are_scored_on_their_last_frame(grids: Command) -> None:
    (run,) = trained(grids, "data=reels", "posenc=mrope")
    assert grids("eval-lengths", "default").code == 0
    rows = table(run)
    assert list(rows["test_shape"]) == ["2x4x4", "5x4x4"]
    for row in rows.itertuples():
        nats = by_hand(run, tuple(map(int, row.test_shape.split("x"))), raster=False)
        assert float(row.nll) == pytest.approx(np.mean(nats), abs=1e-5)


def test_an_added_shape_leaves_the_other_rows_as_they_were(grids: Command) -> None:
    (run,) = trained(grids, "data=sheets", "posenc=rope_axial")
    rule = ["rescale=[none,pi]", "rescale.factor=[2,auto]"]
    assert grids("eval-lengths", "default", *rule, "eval.shapes=[8x8,4x4]").code == 0
    before = table(run)
    for folder in run.path.glob("evals/*"):
        folder.rename(run.path / "aside")
    assert grids("eval-lengths", "default", *rule, "eval.shapes=[4x4,6x5,8x8]").code == 0
    after = table(run)
    kept = after[after["test_shape"] != "6x5"].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, before)
    scale = after.set_index(["factor", "test_shape"])["scale"]
    assert scale["auto", "6x5"] == 1.5 and scale["auto", "4x4"] == scale["", "8x8"] == 1
    assert scale["2", "4x4"] == 2


def test_only_the_axis_that_grows_is_rescaled(grids: Command) -> None:
    """On clips pi@2 halves the frames' frequencies, and pi@2 axes=all those of all axes."""
    (run,) = trained(grids, "data=reels", "posenc=rope_axial")
    rule = ["rescale=pi", "rescale.factor=2"]
    done = grids("eval-lengths", "default", *rule)
    assert done.code == 0, done.err
    assert grids("eval-lengths", "default", *rule, "rescale.axes=all").code == 0
    files = sorted(run.path.glob("evals/*/lengths.csv"))
    rows = {pd.read_csv(f, keep_default_na=False)["options"][0]: pd.read_csv(f) for f in files}
    assert set(rows) == {"", "axes=all"}
    assert (rows[""]["nll"] != rows["axes=all"]["nll"]).all()


def test_a_table_of_positions_refuses_larger_shapes_by_name(grids: Command) -> None:
    (run,) = trained(grids, "data=sheets", "posenc=learned_axial")
    done = grids("eval-lengths", "default")
    assert done.code == 0 and "len" in done.out
    assert list(table(run)["status"]) == ["ok", "unsupported_length"]


@pytest.mark.parametrize(
    "given, words",
    [
        (
            ["data=sheets", "train.seq_len=32"],
            ["train.seq_len=32", "data.shape=[4, 4]", "16 tokens"],
        ),
        (["data=sheets", "data.shape=[4]"], ["data.shape=[4]", "2 extents"]),
        (["data=sheets", "data.shape=[4,9]"], ["data.shape=[4, 9]", "8x8"]),
        (["data=sheets", "data.levels=1"], ["data.levels=1", "2 to 256"]),
        (["data=sheets", "posenc=rope_axial", "positions=randomized"], ["positions=randomized"]),
        (
            ["data=sotu", "posenc=rope_axial"],
            ["posenc=rope_axial", "2 or 3 axes", "data=sotu has 1"],
        ),
    ],
)
def test_contradictions_are_refused_before_a_run(
    grids: Command, given: list[str], words: list[str]
) -> None:
    refused(grids("train", *TINY, *given), *words)


@pytest.mark.parametrize(
    "given, words",
    [
        (["eval.lengths=[64]"], ["eval.lengths", "eval.shapes=[4x4,8x8]"]),
        (["eval.shapes=[9x8]"], ["eval.shapes=9x8", "4x4 to 8x8"]),
        (["eval.shapes=[16]"], ["eval.shapes=16", "2 extents"]),
        (["eval.protocol=prefix"], ["eval.protocol=prefix", "same_targets only"]),
        (["eval.blocks=99"], ["eval.blocks=99"]),
    ],
)
def test_what_cannot_be_measured_is_refused(
    grids: Command, given: list[str], words: list[str]
) -> None:
    trained(grids, "data=sheets", "posenc=none")
    refused(grids("eval-lengths", "default", *given), *words)


def test_a_training_shape_below_what_is_scored_has_no_reference(grids: Command) -> None:
    (run,) = trained(grids, "data=sheets", "posenc=none", "data.shape=[2,8]")
    assert grids("eval-lengths", "default").code == 0
    rows = table(run)
    assert set(rows["status"]) == {"ok"} and set(rows["base_nll"]) == {""}


def test_shapes_are_refused_for_texts(trained: Any, anywhere: Command) -> None:
    refused(anywhere("eval-lengths", str(trained.path), "eval.shapes=[4x4]"), "eval.shapes", "text")


def test_the_table_has_a_section_for_every_choice_of_axes(grids: Command) -> None:
    trained(grids, "data=sheets", "posenc=none,rope_axial", "-m")
    shapes = "eval.shapes=[4x4,4x8,8x4,8x8,6x6]"
    done = grids("eval-lengths", "default", shapes)
    assert done.code == 0
    found = runs.find(["default"], "runs")[0]
    made = sections.sections(collect.collect([run.path for run in found]).pooled)
    names = {section.keys["growing"]: section for section in made}
    assert list(names) == ["columns", "rows", "rows and columns"]
    assert list(names["columns"].shapes.values()) == ["4x4", "4x8"]
    assert list(names["rows"].shapes.values()) == ["4x4", "8x4"]
    assert list(names["rows and columns"].shapes.values()) == ["4x4", "6x6", "8x8"]
    own = {e.preset: e.cells for e in names["rows"].entries}
    other = {e.preset: e.cells for e in names["columns"].entries}
    assert own["rope_axial"][32].nll != other["rope_axial"][32].nll
    assert own["rope_axial"][16] == other["rope_axial"][16]
    for words in (
        "more rows and columns",
        "more columns",
        "3 pictures",
        "over regions",
        "6x6 2.25x",
    ):
        assert words in done.out, words
    assert max(map(len, done.out.splitlines())) <= 80


def test_shapes_of_equally_many_tokens_stay_apart(grids: Command) -> None:
    (run,) = trained(grids, "data=sheets", "posenc=rope_axial", "data.shape=[4,8]")
    assert grids("eval-lengths", "default", "eval.shapes=[4x8,8x4,6x8,8x6]").code == 0
    made = sections.sections(collect.collect([run.path]).pooled)
    shown = {s.keys["growing"]: list(s.shapes.values()) for s in made}
    assert shown == {"rows": ["4x8", "6x8"], "rows: 8x4": ["8x4", "8x6"]}
    rows = table(run).set_index("test_shape")
    cells = {s.shapes[n]: c for s in made for e in s.entries for n, c in e.cells.items()}
    assert {shape: cell.nll for shape, cell in cells.items()} == dict(rows["nll"].astype(float))


def test_a_stack_that_sees_the_index_is_rescaled_by_it(grids: Command) -> None:
    """[mrope,fox] takes one axis only: on pictures it is what [rope,fox] is."""
    both = ["posenc=stack", "data=sheets", "model.n_layers=1"]
    (mine,) = trained(grids, *both, "posenc.parts=[mrope,fox]", "name=mine")
    (other,) = trained(grids, *both, "posenc.parts=[rope,fox]", "name=other")
    assert grids("eval-lengths", "mine", "rescale=[none,pi]").code == 0
    assert grids("eval-lengths", "other", "rescale=[none,pi]").code == 0
    one, two = table(mine), table(other)
    assert list(one["scale"]) == list(two["scale"]) == [1, 1, 1, 4]
    assert one["nll"].to_numpy() == pytest.approx(two["nll"].to_numpy(), abs=1e-6)


def test_seeds_are_pooled_over_regions(grids: Command) -> None:
    found = trained(grids, "data=sheets", "posenc=rope_axial", "seed=0,1", "-m")
    assert grids("eval-lengths", "default").code == 0
    pooled = collect.collect([run.path for run in found]).pooled
    assert set(pooled["n_seeds"]) == {2} and set(pooled["interval_over"]) == {"regions"}
    rows = [table(run) for run in found]
    nll = [np.mean([float(r["nll"][i]) for r in rows]) for i in range(2)]
    assert pooled["nll"].to_numpy() == pytest.approx(nll, abs=1e-12)
    assert pooled["nll_lo"].notna().all()


def test_no_verdict_and_the_reason_in_the_manifest(grids: Command) -> None:
    (run,) = trained(grids, "data=sheets", "posenc=none")
    assert grids("eval-lengths", "default").code == 0
    rows = table(run)
    assert set(rows["verdict"]) == {""} and set(rows["stamp"]) == {
        "no n-gram reference, so no verdict"
    }
    (file,) = run.path.glob("evals/*/manifest.json")
    manifest = json.loads(file.read_text())
    assert manifest["interval_over"] == "regions" and not manifest["gate"]["passed"]
    assert math.isclose(float(rows["bpb"][0]), float(rows["nll"][0]) / math.log(2))


def test_a_glob_takes_what_fits_the_data(grids: Command) -> None:
    text = grids("config", "train", "data=sotu", "posenc=glob(al*)", "-m").out
    assert text.count("preset: ") == 1 and "preset: alibi\n" in text
    both = grids("config", "train", "data=sheets", "posenc=glob(al*)", "-m").out
    assert both.count("preset: ") == 2 and "preset: alibi_axial\n" in both
    refused(grids("train", "data=sotu", "posenc=glob(*_axial)", "-m"), "_axial", "data=sotu has 1")
