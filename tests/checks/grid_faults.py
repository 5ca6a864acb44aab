"""Classes with a fault that shows on pictures alone: what is wrong, and the check that must fail.

(check, fault in words) -> (class that is copied, what is changed in it), as in `faults`.
"""

HEAD = """
import torch
from posbench.encodings.alibi_axial import AlibiAxial
from posbench.encodings.learned_axial import LearnedAxial
from posbench.encodings.none import NoPositions
from posbench.encodings.rope_axial import RopeAxial
from posbench.encodings.sinusoidal_axial import SinusoidalAxial
from posbench.encodings.t5_axial import T5Axial
from posbench.registry import register

ROWS, COLUMNS = torch.tensor([1, 0]), torch.tensor([0, 1])

"""

ELSEWHERE = "def pair_bias(self, q, k, ctx):\n    return super().pair_bias({}, {}, ctx)"

GRID_FAULTS = {
    ("shift", "columns are bent"): (
        "AlibiAxial",
        ELSEWHERE.format("q * (ROWS + COLUMNS * q)", "k * (ROWS + COLUMNS * k)"),
    ),
    ("shift", "only a move along both axes changes nothing"): (
        "AlibiAxial",
        "def pair_bias(self, q, k, ctx):\n"
        "    return super().pair_bias(q, k, ctx) * (q[..., 0] - q[..., 1]).cos()[:, None, :, None]",
    ),
    ("axes", "an embedding without columns"): (
        "SinusoidalAxial",
        "def table(self, pos): return super().table(pos * ROWS)",
    ),
    ("axes", "a bias without rows"): ("AlibiAxial", ELSEWHERE.format("q * COLUMNS", "k * COLUMNS")),
    ("larger", "more columns are declared than there are"): (
        "LearnedAxial",
        "def defined_for(self, shape): return shape[0] <= self.geometry.shape[0]",
    ),
    ("larger", "columns past the last are those from the first on"): (
        "LearnedAxial",
        "def embed(self, x, pos): return super().embed(x, pos % torch.tensor(self.geometry.shape))",
    ),
    ("larger", "its own training is too large"): (
        "SinusoidalAxial",
        "def defined_for(self, shape): return shape[1] < self.geometry.shape[1]",
    ),
    ("long", "rows past the last are the last one"): (
        "LearnedAxial",
        "def embed(self, x, pos):\n"
        "    return super().embed(x, pos.minimum(torch.tensor(self.geometry.shape) - 1))",
    ),
    ("of_distance", "the right side counts more"): (
        "AlibiAxial",
        "def pair_bias(self, q, k, ctx):\n"
        "    return super().pair_bias(q, k, ctx) * (1 + q[..., 1])[:, None, :, None]",
    ),
    ("per_layer", "layers differ unsaid"): (
        "AlibiAxial",
        "def pair_bias(self, q, k, ctx): return super().pair_bias(q, k, ctx) * (1 + ctx.layer)",
    ),
    ("monotone", "far columns attract"): (
        "AlibiAxial",
        "def pair_bias(self, q, k, ctx):\n"
        "    columns = super().pair_bias(q * COLUMNS, k * COLUMNS, ctx.alone())\n"
        "    return super().pair_bias(q, k, ctx.alone()) - 2 * columns",
    ),
    ("slopes", "columns count twice"): (
        "AlibiAxial",
        ELSEWHERE.format("q * (1 + COLUMNS)", "k * (1 + COLUMNS)"),
    ),
    ("buckets", "distances from 1"): (
        "T5Axial",
        "def rows(self, axis, distance): return super().rows(axis, distance + 1)\n"
        "def own_tables(self, distances): return {'buckets': super().rows(0, distances).tolist()}",
    ),
    ("chunks", "the nearness of a chunk's first query counts"): (
        "AlibiAxial",
        "def pair_bias(self, q, k, ctx):\n"
        "    return super().pair_bias(q, k, ctx) / (1 + q[:, :1, :1, None])",
    ),
    ("steps", "a single query has no bias"): (
        "AlibiAxial",
        "def pair_bias(self, q, k, ctx):\n"
        "    return super().pair_bias(q, k, ctx) * (q.shape[1] > 1)",
    ),
    ("batches", "the first picture's positions serve all"): (
        "AlibiAxial",
        ELSEWHERE.format("q[:1]", "k[:1]"),
    ),
    ("future", "a token sees its whole row"): (
        "NoPositions",
        "axes = (2, 3)\n"
        "def embed(self, x, pos):\n"
        "    row = (pos[:, :, None, 0] == pos[:, None, :, 0]).to(x)\n"
        "    return x + 0.1 * row @ x",
    ),
    ("frequencies", "the map shows other axes than turn"): (
        "RopeAxial",
        "def own_tables(self, distances):\n"
        "    return {**super().own_tables(distances), 'axis_of': 6 * [0, 1]}",
    ),
    ("reductions", "half the slopes"): (
        "AlibiAxial",
        "def __init__(self, *given):\n    super().__init__(*given)\n"
        "    self.slopes = [slope / 2 for slope in self.slopes]",
    ),
}
