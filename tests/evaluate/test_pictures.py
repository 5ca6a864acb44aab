import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from data.grids import vision

from posbench import grid, registry, runs, settings, train
from posbench import model as models
from posbench.data.corpora.grid import GridCorpus
from posbench.data.grids import GridDataset, load
from posbench.data.windows import Window
from posbench.errors import RunError
from posbench.evaluate import pictures
from posbench.evaluate.pictures import FILE, Pictures, Shown, continued, read, write
from posbench.seeds import seeded

SMALL, LARGE = (16, 16), (18, 20)


def _config(posenc: str, positions: str = "standard", **model: Any) -> settings.RunConfig:
    return settings.RunConfig(
        posenc=registry.get("posenc", posenc).Config(),
        positions=registry.get("positions", positions).Config(),
        data=registry.get("data", "photos").Config(),
        model=settings.ModelConfig(**({"d_model": 32, "n_layers": 2, "n_heads": 2} | model)),
        train=settings.TrainConfig(
            steps=3, batch_size=2, val_windows=2, threads=1, device="cpu", compile=False
        ),
    )


def _model(posenc: str, **model: Any) -> models.Decoder:
    """A model as it starts, with weights that make its predictions differ."""
    built = models.build(_config(posenc, **model), 32).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=seeded(1, "test"))
    return built


def _window(shape: tuple[int, int] = (6, 7), part: tuple[int, int] = (2, 3)) -> Window:
    """A region of random levels whose lower right corner is scored."""
    tokens = np.random.default_rng(3).integers(0, 32, math.prod(shape))
    places = np.arange(len(tokens)).reshape(shape)[-part[0] :, -part[1] :].ravel()
    return Window("d", 0, 99, tokens[:-1], tokens[places], places - 1, shape)


def _whole(window: Window) -> np.ndarray:
    return np.append(window.inputs, window.labels[-1]).reshape(window.shape)


@pytest.fixture(scope="module")
def photos() -> GridDataset:
    corpus: GridCorpus = registry.get("data", "photos")(_config("none").data)
    return load(corpus)


@pytest.fixture(scope="module")
def evaluated(
    tmp_path_factory: pytest.TempPathFactory, photos: GridDataset, evaluate: Callable[..., Path]
) -> Callable[..., tuple[runs.Run, Path]]:
    """Trains a run on photos and measures it: the run and its evaluation folder."""
    root = tmp_path_factory.mktemp("photos")
    shapes = [grid.text(SMALL), grid.text(LARGE)]

    def make(posenc: str, positions: str = "standard") -> tuple[runs.Run, Path]:
        folder = root / f"{posenc}-{positions}"
        train.run(_config(posenc, positions), folder, photos, argv=[])
        run = runs.Run.open(folder)
        return run, evaluate(run, shapes=shapes, blocks=2, draws=2)

    return make


@vision
@pytest.mark.parametrize(
    "posenc, positions", [("rope_axial", "standard"), ("rope", "randomized"), ("t5", "standard")]
)
def test_losses_of_the_scored_pixels_are_the_nats_of_the_table(
    evaluated: Callable[..., tuple[runs.Run, Path]], posenc: str, positions: str
) -> None:
    _, folder = evaluated(posenc, positions)
    blocks = pd.read_csv(folder / "blocks.csv").set_index(["test_shape", "block", "document"])
    kept = read(folder / FILE, 2)
    assert list(kept.shapes) == [SMALL, LARGE] and kept.scored == (8, 16) and kept.levels == 32
    assert sorted(kept.samples) == ["chelsea", "gravel", "rocket"]
    for shape, shown in kept.shapes.items():
        assert isinstance(shown, Shown) and shown.nats.shape == (3, *shape)
        assert [int(np.isnan(n).sum()) for n in shown.nats] == [1, 1, 1]
        assert np.isnan(shown.nats[:, 0, 0]).all()
        for sample, nats in zip(kept.samples, shown.nats, strict=True):
            wanted = blocks.loc[(grid.text(shape), 0, sample), "nats"]
            assert nats[-8:, -16:].sum() == pytest.approx(wanted, rel=1e-5)


@vision
def test_regions_are_those_of_the_pictures_and_only_what_is_scored_is_drawn(
    evaluated: Callable[..., tuple[runs.Run, Path]], photos: GridDataset
) -> None:
    _, folder = evaluated("none")
    kept = read(folder / FILE, 2)
    spread = []
    for i, sample in enumerate(kept.samples):
        (document,) = (d for d in photos.targets.documents if d.id == sample)
        picture = photos.test[sample]
        row, column = divmod(document.ends[0], picture.shape[1])
        for shape, shown in kept.shapes.items():
            assert isinstance(shown, Shown)
            top, left = row + 1 - shape[0], column + 1 - shape[1]
            region = picture[top : row + 1, left : column + 1]
            assert np.array_equal(shown.levels[i], region)
            other = shown.sampled[i] != region
            assert other.any() and not other[:-8].any() and not other[:, :-16].any()
        spread.append(region[-8:, -16:].std())
    assert spread == sorted(spread, reverse=True)


@vision
def test_a_shape_without_positions_says_so_and_what_is_not_measured_is_left_out(
    evaluated: Callable[..., tuple[runs.Run, Path]], evaluate: Callable[..., Path], sweep: Any
) -> None:
    run, folder = evaluated("learned")
    kept = read(folder / FILE, 2)
    assert isinstance(kept.shapes[SMALL], Shown) and kept.shapes[LARGE] == "unsupported_length"
    other = evaluate(run, sweep("pi", shapes=[grid.text(LARGE)], blocks=1, docs=2))
    kept = read(other / FILE, 2)
    assert list(kept.shapes) == [SMALL] and len(kept.samples) == 2


def test_an_evaluation_of_text_keeps_no_pictures(trained: Any, evaluate: Any) -> None:
    folder = evaluate(trained, lengths=[64], docs=2, blocks=1)
    assert (folder / "blocks.csv").is_file() and not (folder / FILE).exists()


def test_a_loss_is_that_of_a_model_that_reads_only_what_came_before() -> None:
    model, window = _model("rope_axial"), _window()
    nats = pictures._nats(model, model.posenc, window, 1).ravel()
    tokens, pos = torch.as_tensor(_whole(window)).reshape(1, -1), model.positions((6, 7))
    for i in (1, 2, 8, 20, 41):
        with torch.no_grad():
            logits = model(tokens[:, :i], pos[:, :i])[0, -1].double()
        assert nats[i] == pytest.approx(-float(logits.log_softmax(0)[tokens[0, i]]), rel=1e-5)


@pytest.mark.parametrize(
    "posenc", ["none", "sinusoidal_axial", "alibi", "alibi_axial", "rope_axial", "fox", "path"]
)
def test_a_continuation_is_that_of_whole_passes(posenc: str) -> None:
    model, window = _model(posenc, window=[9, None]), _window()
    shape, tokens = (6, 7), _whole(window).ravel()
    uniform = torch.rand(6, dtype=torch.float64, generator=seeded(5, "d:99")).numpy()
    for place, u in zip(window.scored, uniform, strict=True):
        with torch.no_grad():
            pos = model.positions(shape)[:, : place + 1]
            logits = model(torch.as_tensor(tokens[None, : place + 1]), pos)[0, -1]
        p = np.exp(logits.double().numpy())
        tokens[place + 1] = int((np.cumsum(p / p.sum()) <= u).sum())
    (drawn,) = continued(model, model.posenc, [window], seed=5)
    assert drawn.tolist() == tokens.reshape(shape).tolist()
    assert np.array_equal(drawn, continued(model, model.posenc, [window], seed=5)[0])
    assert not np.array_equal(drawn, continued(model, model.posenc, [window], seed=6)[0])


def test_a_model_that_is_certain_is_followed() -> None:
    """Its next level is the last one plus 1: of pixels that are given and of those it drew."""
    model = models.build(_config("none", tied=False), 32).eval()
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.zero_()
        model.embedding.weight.copy_(torch.eye(32))
        model.head.weight.copy_(1000 * torch.eye(32).roll(1, 0))
    window = _window()
    region = _whole(window)
    drawn = continued(model, model.posenc, [window, window], seed=0)
    assert len(drawn) == 2
    for row in (4, 5):
        region[row, 4:] = [(region[row, 3] + i) % 32 for i in (1, 2, 3)]
    assert np.array_equal(drawn[0], region) and np.array_equal(drawn[1], region)


def test_draws_follow_the_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    model, window = _model("none"), _window((30, 40), (29, 40))
    p = torch.tensor([0.0, 0.6, 0.0, 0.3, 0.1])
    monkeypatch.setattr(model, "logits", lambda x: p.log().expand(len(x), 1, 5).nan_to_num(-1e9))
    drawn = continued(model, model.posenc, [window], seed=0)[0, 1:]
    share = np.bincount(drawn.ravel(), minlength=5) / drawn.size
    assert share[[0, 2]].tolist() == [0, 0]
    assert np.abs(share - p.numpy()).max() < 4 * math.sqrt(0.6 * 0.4 / drawn.size)


def test_a_model_that_is_not_finite_draws_nothing() -> None:
    model = _model("none")
    with torch.no_grad():
        model.head.weight[3] = torch.nan
    assert continued(model, model.posenc, [_window()], seed=0).shape == (0, 6, 7)


def _kept() -> Pictures:
    levels = np.arange(12, dtype=np.uint8).reshape(1, 3, 4)
    shown = Shown(levels, levels.astype(np.float32), levels[:0])
    return Pictures(12, ["one"], (1, 4), {(3, 4): shown, (9, 9): "out_of_memory"})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write(_kept(), tmp_path / "a")
    write(_kept(), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again, kept = read(tmp_path / "a", 2), _kept()
    shown, wanted = again.shapes.pop((3, 4)), kept.shapes.pop((3, 4))
    assert again == kept and isinstance(shown, Shown) and isinstance(wanted, Shown)
    for name in ("levels", "nats", "sampled"):
        assert np.array_equal(getattr(shown, name), getattr(wanted, name))


def _changed(**fields: Any) -> Pictures:
    return Pictures(**(vars(_kept()) | fields))


@pytest.mark.parametrize(
    "axes, kept",
    [
        (3, _kept()),
        (2, _changed(levels=11)),
        (2, _changed(scored=(4, 4))),
        (2, _changed(samples=["one", "two"])),
        (2, _changed(shapes={(4, 3): _kept().shapes[3, 4]})),
        (2, _changed(shapes={(3, 4): Shown(*[np.zeros((1, 3, 4))] * 3)})),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, axes: int, kept: Pictures) -> None:
    write(kept, tmp_path / FILE)
    with pytest.raises(RunError, match=r"pictures.npz is damaged: .") as caught:
        read(tmp_path / FILE, axes)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-30], lambda b: b[:50] + b[60:]])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    file = tmp_path / FILE
    write(_kept(), file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(RunError, match=r"pictures.npz is damaged: ."):
        read(file, 2)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    with (tmp_path / FILE).open("wb") as file:
        np.savez(file, facts=np.array([{"levels": 2}], dtype=object))
    with pytest.raises(RunError, match="damaged"):
        read(tmp_path / FILE, 2)
