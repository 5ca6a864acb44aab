"""For every check a class that only it, or it among others, must refuse.

(check, config group) -> (class that is copied, what is changed in it). A body sees the names of
`HEAD`; the docstring and the line `@register` are put before it. One file: it is one table.
"""

HEAD = """
import torch
from dataclasses import dataclass, field
from torch import nn
from posbench.encodings.alibi import Alibi
from posbench.encodings.base import PositionalEncoding, Reduction
from posbench.encodings.fox import Fox
from posbench.encodings.none import NoPositions
from posbench.encodings.rope import Rope
from posbench.encodings.t5 import T5Bias
from posbench.errors import UnsupportedRescale
from posbench.positions.standard import Standard
from posbench.registry import register
from posbench.rescale.base import Rescale
from posbench.rescale.dynamic_ntk import DynamicNtk
from posbench.rescale.pi import PositionInterpolation
from posbench.rescale.yarn import Yarn
from posbench.seeds import seeded

"""

TURNED = """
def rotate(self, q, k, q_pos, k_pos, ctx):
    q, k = super().rotate(q, k, q_pos, k_pos, ctx)
    return {}, {}
"""

#: checks that no small fault of a class is known to break alone: they guard the package
GUARDS = {("causal", "positions"), ("scored", "positions"), ("copied", "positions")}

FAULTS = {
    ("builds", "posenc"): ("NoPositions", "def __init__(self, *given): raise ValueError('no')"),
    ("paper", "posenc"): ("NoPositions", "paper = 'Nature'"),
    ("config", "posenc"): (
        "NoPositions",
        "@dataclass\nclass Config:\n    sizes: list[int] = field(default_factory=lambda: (1, 2))",
    ),
    ("described", "posenc"): ("NoPositions", "family = ''"),
    ("learnable", "posenc"): ("T5Bias", "learnable = False"),
    ("groups", "posenc"): (
        "T5Bias",
        "def param_groups(self): return [*super().param_groups(), *super().param_groups()]",
    ),
    ("hooks", "posenc"): (
        "NoPositions",
        "def __init__(self, *given):\n    super().__init__(*given)\n"
        "    self.hooks = frozenset({'turn'})",
    ),
    ("twice", "posenc"): (
        "NoPositions",
        "calls = 0\ndef embed(self, x, pos):\n    self.calls += 1\n    return x * self.calls",
    ),
    ("fine", "posenc"): (
        "NoPositions",
        "def distance_bias(self, distance, ctx):\n"
        "    return (-distance.bfloat16() * 0.013).expand(self.geometry.n_heads, -1).double()",
    ),
    ("fine", "rescale"): (
        "PositionInterpolation",
        "def on(self, encoding, *lengths):\n"
        "    new = super().on(encoding, *lengths)\n"
        "    new.hooks = new.hooks | {'distance_bias'}\n"
        "    new.distance_bias = lambda n, ctx: (-n.bfloat16() * 0.013).expand(3, -1).double()\n"
        "    return new",
    ),
    ("batches", "posenc"): (
        "NoPositions",
        "def pair_bias(self, q_pos, k_pos, ctx):\n"
        "    return -0.1 * (q_pos[0, :, None, 0] - k_pos[0, None, :, 0]).clamp(min=0).double()",
    ),
    ("batches", "rescale"): (
        "PositionInterpolation",
        "def on(self, encoding, *lengths):\n"
        "    new = super().on(encoding, *lengths)\n"
        "    plain = new.rotate\n"
        "    new.rotate = lambda q, k, a, b, ctx: plain(q, k, a[:1], b[:1], ctx)\n"
        "    return new",
    ),
    ("order", "posenc"): (
        "NoPositions",
        "most = 0\ndef embed(self, x, pos):\n    self.most = max(self.most, x.shape[1])\n"
        "    return x * self.most",
    ),
    ("undisturbed", "posenc"): (
        "NoPositions",
        "far = 0\ndef embed(self, x, pos):\n    self.far = max(self.far, int(pos.max()))\n"
        "    return x * self.far",
    ),
    ("apart", "posenc"): (
        "T5Bias",
        "kept = {}\ndef distance_bias(self, distance, ctx):\n"
        "    return self.kept.setdefault(len(distance), super().distance_bias(distance, ctx))",
    ),
    ("prefix", "posenc"): ("NoPositions", "def embed(self, x, pos): return x * x.shape[1]"),
    ("batch", "posenc"): ("NoPositions", "def embed(self, x, pos): return x + x.mean(0)"),
    ("reload", "posenc"): (
        "NoPositions",
        "def __init__(self, *given):\n    super().__init__(*given)\n    self.a = torch.randn(())\n"
        "def embed(self, x, pos): return x + self.a",
    ),
    ("train_length", "posenc"): (
        "Alibi",
        "def distance_bias(self, distance, ctx):\n"
        "    return super().distance_bias(distance, ctx) / self.geometry.train_length",
    ),
    ("shapes", "posenc"): (
        "NoPositions",
        "def attend(self, *given): return super().attend(*given).double()",
    ),
    ("chunks", "posenc"): (
        "NoPositions",
        "def pair_bias(self, q_pos, k_pos, ctx):\n"
        "    return 0.1 * (torch.arange(q_pos.shape[1])[:, None] - k_pos[:, None, :, 0])[:, None]",
    ),
    ("in_training", "posenc"): (
        "Alibi",
        "def distance_bias(self, distance, ctx):\n"
        "    return super().distance_bias(distance, ctx) * (1 + torch.is_grad_enabled())",
    ),
    ("steps", "posenc"): (
        "NoPositions",
        "def prepare(self, x, pos, ctx): return x.mean()\n"
        "def logit_scale(self, q_pos, k_pos, ctx): return float(ctx.prepared)",
    ),
    ("weights", "posenc"): (
        "NoPositions",
        "def normalise(self, scores, v, q_pos, k_pos, ctx): return scores.exp() @ v",
    ),
    ("shift", "posenc"): (
        "Rope",
        "def angles(self, pos): return super().angles(pos * pos)",
    ),
    ("positions", "posenc"): ("Rope", "def angles(self, pos): return super().angles(0 * pos)"),
    ("axes", "posenc"): ("Rope", "axes = (2,)"),
    ("long", "posenc"): (
        "Alibi",
        "def distance_bias(self, distance, ctx):\n"
        "    return super().distance_bias(distance, ctx) + (distance > 2000) * float('nan')",
    ),
    ("future", "posenc"): (
        "NoPositions",
        "def prepare(self, x, pos, ctx): return x.mean((1, 2), keepdim=True)\n"
        "def key_bias(self, k_pos, ctx): return ctx.prepared * k_pos[:, None, :, 0]",
    ),
    ("past", "posenc"): (
        "Alibi",
        "def distance_bias(self, distance, ctx):\n"
        "    return super().distance_bias(distance, ctx).masked_fill(distance > 5, -1e9)",
    ),
    ("unseen", "posenc"): (
        "NoPositions",
        "def embed(self, x, pos): return x + x.detach().mean(1, keepdim=True)",
    ),
    ("gradients", "posenc"): (
        "T5Bias",
        "def __init__(self, *given):\n    super().__init__(*given)\n"
        "    self.extra = nn.Parameter(torch.zeros(3))",
    ),
    ("finite", "posenc"): (
        "T5Bias",
        "def distance_bias(self, distance, ctx):\n"
        "    return -(self.bias.abs().sum(0)[:, None] * distance.double().log()).exp()",
    ),
    ("window", "posenc"): (
        "NoPositions",
        "def attend(self, q, k, v, q_pos, k_pos, ctx):\n"
        "    return super().attend(q, k, v, q_pos, k_pos, ctx.at(0))",
    ),
    ("norm", "posenc"): ("Rope", TURNED.format("q * 1.01", "k / 1.01")),
    ("identity", "posenc"): (
        "Rope",
        "def rotate(self, q, k, q_pos, k_pos, ctx):\n"
        "    return super().rotate(q, k, q_pos + 1, k_pos, ctx)",
    ),
    ("layout", "posenc"): (
        "Rope",
        "def rotate(self, q, k, q_pos, k_pos, ctx):\n"
        "    a = torch.arange(24.0**2).view(24, 24).cos().to(q)\n"
        "    by = lambda pos: torch.matrix_exp(pos[..., None].to(q) * (a - a.T) / 9)[:, None]\n"
        "    return [(x[..., None, :] @ by(p))[..., 0, :] for x, p in ((q, q_pos), (k, k_pos))]",
    ),
    ("frequencies", "posenc"): (
        "Rope",
        "def angles(self, pos): return super().angles(pos) * 1.1",
    ),
    ("pointwise", "posenc"): (
        "Alibi",
        "def distance_bias(self, distance, ctx):\n"
        "    return super().distance_bias(distance, ctx) / (1 + distance.max())",
    ),
    ("of_distance", "posenc"): (
        "NoPositions",
        "def pair_bias(self, q_pos, k_pos, ctx):\n"
        "    return (q_pos[:, :, None, 0] - k_pos[:, None, :, 0]).double()[:, None] "
        "/ (1 + q_pos[:, None, :, :])",
    ),
    ("monotone", "posenc"): (
        "Alibi",
        "def distance_bias(self, distance, ctx): return -super().distance_bias(distance, ctx)",
    ),
    ("per_layer", "posenc"): (
        "Alibi",
        "def distance_bias(self, distance, ctx):\n"
        "    return super().distance_bias(distance, ctx) * (1 + ctx.layer)",
    ),
    ("buckets", "posenc"): (
        "T5Bias",
        "def distance_bias(self, distance, ctx): return super().distance_bias(distance + 1, ctx)",
    ),
    ("slopes", "posenc"): (
        "Alibi",
        "def own_tables(self, distances): return {'slopes': [0.5, 0.25, 0.125]}",
    ),
    ("reductions", "posenc"): (
        "Alibi",
        "@classmethod\ndef reductions(cls): return [Reduction('always', 'none')]",
    ),
    ("rescaling", "posenc"): ("Rope", "def rescaled(self, *given): return self"),
    ("half_tables", "posenc"): (
        "Rope",
        "def __init__(self, *given):\n    super().__init__(*given)\n    table = self.inv_freq\n"
        "    del self.inv_freq\n    self.register_buffer('inv_freq', table)",
    ),
    ("far", "posenc"): (
        "Rope",
        "def cos_sin(self, pos, dtype, ctx):\n"
        "    angle = (pos.to(dtype) * (self.inv_freq * (1 + 1e-6)).to(dtype))[:, None]\n"
        "    return angle.cos(), angle.sin()",
    ),
    ("half_model", "posenc"): ("NoPositions", "def embed(self, x, pos): return x.float()"),
    ("trained", "rescale"): (
        "PositionInterpolation",
        "def on(self, encoding, *lengths):\n    encoding.inv_freq /= 2\n"
        "    return super().on(encoding, *lengths)",
    ),
    ("prefix", "rescale"): ("PositionInterpolation", "depends_on_total_length = False"),
    ("reductions", "rescale"): (
        "PositionInterpolation",
        "@classmethod\ndef reductions(cls): return [Reduction('always', 'none')]",
    ),
    ("accepts", "rescale"): (
        "PositionInterpolation",
        "def on(self, encoding, *lengths):\n    if 'rotate' not in encoding.hooks:\n"
        "        raise UnsupportedRescale('no')\n    return super().on(encoding, *lengths)",
    ),
    ("scale_1", "rescale"): (
        "PositionInterpolation",
        "def frequencies(self, ladder, scale): return ladder.inv_freq / (scale + 0.1)",
    ),
    ("up_to_l", "rescale"): (
        "PositionInterpolation",
        "def scale(self, train_length, test_length): return test_length / train_length",
    ),
    ("bounds", "rescale"): (
        "PositionInterpolation",
        "def frequencies(self, ladder, scale): return ladder.inv_freq / scale**2",
    ),
    ("ramp", "rescale"): (
        "Yarn",
        "def frequencies(self, ladder, scale):\n"
        "    ratio = super().frequencies(ladder, scale) / ladder.inv_freq\n"
        "    return ladder.inv_freq * ratio.flip(0)",
    ),
    ("ends", "rescale"): (
        "Yarn",
        "def frequencies(self, ladder, scale):\n"
        "    return super().frequencies(ladder, scale) / scale**0.1",
    ),
    ("sane", "rescale"): (
        "PositionInterpolation",
        "def frequencies(self, ladder, scale): return ladder.inv_freq / (scale < 500)",
    ),
    ("factor", "rescale"): ("PositionInterpolation", "def __init__(self, c): self.config = c"),
    ("reused", "rescale"): (
        "DynamicNtk",
        "most = 0\ndef scale(self, train_length, test_length):\n"
        "    self.most = max(self.most, test_length)\n"
        "    return super().scale(train_length, self.most)",
    ),
    ("shape", "positions"): ("Standard", "def draw(self, *given): return super().draw(*given) / 2"),
    ("ascending", "positions"): (
        "Standard",
        "def draw(self, *given): return super().draw(*given) // 2",
    ),
    ("span", "positions"): ("Standard", "def draw(self, *given): return super().draw(*given) + 7"),
    ("consecutive", "positions"): (
        "Standard",
        "def draw(self, *given): return super().draw(*given) * 2",
    ),
    ("seeds", "positions"): (
        "Standard",
        "def draw(self, *given): return super().draw(*given) + torch.randint(9, ())",
    ),
    ("global_rng", "positions"): (
        "Standard",
        "def draw(self, *given):\n    torch.manual_seed(0)\n    return super().draw(*given)",
    ),
    ("varied", "positions"): (
        "Standard",
        "def training(self, batch, length, seed, step):\n"
        "    return super().training(batch, length, seed, step) + step",
    ),
    ("draws", "positions"): (
        "Standard",
        "def testing(self, length, draw=0): return super().testing(length) + draw",
    ),
    ("order", "positions"): (
        "Standard",
        "most = 0\ndef testing(self, length, draw=0):\n    self.most = max(self.most, length)\n"
        "    return super().testing(length) + self.most",
    ),
    ("long", "positions"): ("Standard", "max_length = 100"),
    ("one_draw", "positions"): (
        "Standard",
        "calls = 0\ndef testing(self, length, draw=0):\n    Faulty.calls += 1\n"
        "    return super().testing(length) + Faulty.calls",
    ),
}
