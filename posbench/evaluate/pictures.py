"""What breaks, as pictures: the loss of every pixel, and what the model goes on with.

A few regions of the frozen targets, under the trained model as it is, at the training shape and at
the largest of the sweep. Shapes: B regions, T tokens, S scored tokens, V levels.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from posbench import grid
from posbench.data.grids import GridDataset
from posbench.data.windows import Window
from posbench.encodings.base import Context, PositionalEncoding
from posbench.errors import ConfigError, RunError
from posbench.evaluate import protocols
from posbench.evaluate.plan import PLAIN, Cell, Key, Plan
from posbench.files import write_atomic
from posbench.grid import Shape
from posbench.model import Decoder
from posbench.seeds import seeded

FILE = "pictures.npz"
#: regions, each the first one of a sample
REGIONS = 3
#: tokens of the regions that are continued at a shape; one region is, whatever its size
CONTINUED = 4096
_DAMAGED = (
    OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, NotImplementedError,
    zipfile.BadZipFile, zlib.error, ConfigError,
)  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """N regions of one shape, the first M of which are continued.

    levels    uint8 [N, *shape]
    nats      loss of every pixel, float32 [N, *shape]; nan for the first, which has no context
    sampled   `levels` with the scored ones drawn from the model, uint8 [M, *shape]; M = 0 where
              its probabilities are not finite
    """

    levels: npt.NDArray[np.uint8]
    nats: npt.NDArray[np.float32]
    sampled: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Pictures:
    """What an evaluation keeps of its pictures or clips.

    levels      size of the vocabulary
    samples     id of the sample of each region, the region that varies most first
    scored      extents of the part of a region that is scored; it ends where the region ends
    shapes      shape -> what is shown of it, or the status that says why there is nothing
    """

    levels: int
    samples: list[str]
    scored: Shape
    shapes: dict[Shape, Shown | str]


def make(
    todo: Plan,
    cells: dict[Key, Cell],
    model: Decoder,
    encoding: Callable[[Key], PositionalEncoding | str],
) -> Pictures:
    """The pictures of an evaluation of pictures or clips; a shape without a cell is left out."""
    data, config = todo.data, todo.eval
    assert isinstance(data, GridDataset)
    regions = min(REGIONS, config.docs or REGIONS)
    draws = config.draws if model.sampler.random_test else 1
    samples: list[str] = []
    shapes: dict[Shape, Shown | str] = {}
    for shape in dict.fromkeys([todo.train_shape, todo.shapes[-1]]):
        key = Key(PLAIN, protocols.SAME_TARGETS, shape)
        if key not in cells:
            continue
        acting = encoding(key) if cells[key].blocks else cells[key].status
        if isinstance(acting, str):
            shapes[shape] = acting
            continue
        windows = list(data.target_windows(shape, regions, 1))
        windows.sort(key=lambda window: -window.labels.std())  # the same order at every shape
        samples = [window.document for window in windows]
        levels = [np.append(w.inputs, w.labels[-1]).reshape(shape) for w in windows]
        nats = [_nats(model, acting, w, draws) for w in windows]
        few = windows[: max(1, CONTINUED // grid.count(shape))]
        sampled = continued(model, acting, few, todo.run.config.seed)
        shapes[shape] = Shown(np.stack(levels).astype(np.uint8), np.stack(nats), sampled)
    scored = tuple((1 - data.scored.min(axis=0)).tolist())
    return Pictures(data.tokenizer.vocab_size, samples, scored, shapes)


@torch.inference_mode()
def _nats(
    model: Decoder, posenc: PositionalEncoding, window: Window, draws: int
) -> npt.NDArray[np.float32]:
    """Loss of every pixel of a region, nan for the first; the mean over draws of positions."""
    device = next(model.parameters()).device
    tokens = torch.as_tensor(np.append(window.inputs, window.labels[-1])).to(device)
    total = torch.zeros(len(tokens) - 1, dtype=torch.float64)
    for draw in range(draws):
        pos = model.positions(window.shape, draw)[:, :-1]
        logits = model.logits(model.hidden(tokens[None, :-1], posenc, pos))[0].float()
        total += F.cross_entropy(logits, tokens[1:], reduction="none").cpu().double()
    return np.append(np.nan, total.numpy() / draws).astype(np.float32).reshape(window.shape)


@torch.inference_mode()
def continued(
    model: Decoder, posenc: PositionalEncoding, windows: list[Window], seed: int
) -> npt.NDArray[np.uint8]:
    """Levels of regions of one shape [B, *shape], the scored ones drawn one after the other.

    Every other pixel is the region's own. Draws are by inversion of the model's distribution, from
    numbers that are a function of seed and region: the same at every shape and for every scheme.
    Empty where a probability is not finite.
    """
    device, first = next(model.parameters()).device, windows[0]
    tokens_BT = torch.stack([torch.as_tensor(np.append(w.inputs, w.labels[-1])) for w in windows])
    tokens_BT = tokens_BT.to(device)
    uniform_BS = torch.stack([_uniform(seed, w) for w in windows])
    pos = model.positions(first.shape).to(device)
    step = _Steps(model, posenc, tokens_BT.shape)
    for i, place in enumerate(first.scored.tolist()):
        logits = step(tokens_BT[:, : place + 1], pos[:, : place + 1]).cpu().double()
        if not logits.isfinite().all():
            return np.empty((0, *first.shape), np.uint8)
        below_BV = logits.softmax(-1).cumsum(-1)
        drawn = uniform_BS[:, i, None] * below_BV[:, -1:]
        level_B1 = torch.searchsorted(below_BV, drawn, right=True)
        tokens_BT[:, place + 1] = level_B1[:, 0].to(device)
    return tokens_BT.cpu().numpy().astype(np.uint8).reshape(-1, *first.shape)


def _uniform(seed: int, window: Window) -> Tensor:
    """Numbers in [0, 1) for the scored tokens of a region [S], float64."""
    generator = seeded(seed, f"{window.document}:{window.end}")
    return torch.rand(len(window.scored), dtype=torch.float64, generator=generator)


class _Steps:
    """Logits at the end of a growing sequence; of earlier tokens each block's input is kept."""

    def __init__(self, model: Decoder, posenc: PositionalEncoding, size: torch.Size):
        self.model, self.posenc, self.known = model, posenc, 0
        device, width = next(model.parameters()).device, model.config.d_model
        self.streams = [torch.empty(*size, width, device=device) for _ in model.blocks]

    def __call__(self, tokens_BT: Tensor, pos_BTA: Tensor) -> Tensor:
        """Logits [B, V] after the last token; what came before is as in the last call."""
        model, posenc, end = self.model, self.posenc, tokens_BT.shape[1]
        ctx = Context(model.sampler.consecutive and pos_BTA.shape[-1] == 1)
        new = end - self.known
        x_BTD = posenc.embed(model.tokens(tokens_BT), pos_BTA)[:, -new:]
        for layer, block in enumerate(model.blocks):
            own, index = posenc.for_layer(layer)
            window = model.config.window[layer] if model.config.window else None
            stream = self.streams[layer]
            stream[:, self.known : end] = x_BTD
            x_BTD = block(stream[:, :end], pos_BTA, own, ctx.at(index, window), new)
        self.known = end
        return model.logits(x_BTD[:, -1:])[:, 0]


def write(pictures: Pictures, path: Path) -> None:
    """Keep the pictures in a file; equal pictures give equal bytes."""
    shapes = pictures.shapes.items()
    facts = {
        "levels": pictures.levels,
        "samples": pictures.samples,
        "scored": pictures.scored,
        "shapes": {grid.text(n): s if isinstance(s, str) else "ok" for n, s in shapes},
    }
    arrays: dict[str, Any] = {"facts": np.array(json.dumps(facts))}
    for shape, shown in shapes:
        if isinstance(shown, Shown):
            arrays |= {f"{grid.text(shape)} {name}": array for name, array in vars(shown).items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomic(path, buffer.getvalue())


def read(path: Path, axes: int) -> Pictures:
    """The pictures of a file, which may come from a stranger; RunError if it is damaged.

    `axes` is what it must have: 2 for pictures, 3 for clips.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            facts = json.loads(str(file["facts"]))
            levels, samples = int(facts["levels"]), list(map(str, facts["samples"]))
            scored = tuple(map(int, facts["scored"]))
            shapes: dict[Shape, Shown | str] = {}
            for text, status in facts["shapes"].items():
                shape = grid.parse("shape", text, axes)
                arrays = [file[f"{text} {n}"] for n in Shown.__annotations__ if status == "ok"]
                shapes[shape] = Shown(*arrays) if arrays else str(status)
                _check(shapes[shape], shape, scored, levels, len(samples))
            return Pictures(levels, samples, scored, shapes)
    except _DAMAGED as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise RunError(f"{path} is damaged: {reason}") from None


def _check(shown: Shown | str, shape: Shape, scored: Shape, levels: int, regions: int) -> None:
    """ValueError where what a file holds does not fit together."""
    if not all(0 < part <= n for part, n in zip(scored, shape, strict=True)):
        raise ValueError(f"scored extents {scored} in {grid.text(shape)}")
    if isinstance(shown, str):
        return
    for name, kind in (("levels", np.uint8), ("nats", np.float32), ("sampled", np.uint8)):
        array = getattr(shown, name)
        if array.dtype != kind or array.shape[1:] != shape or len(array) > regions:
            raise ValueError(f"{name} is {array.dtype} {array.shape}")
    if not len(shown.levels) == len(shown.nats) == regions > 0:
        raise ValueError(f"{len(shown.levels)} regions of {regions} samples")
    if not shown.levels.max() < levels <= 256:
        raise ValueError(f"a level above {levels - 1}")
