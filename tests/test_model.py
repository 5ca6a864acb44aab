"""The decoder: same start and scale for every scheme, sizes, styles, and transformers.

One file: it mirrors posbench/model.py, and its tests share the same few builders.
"""

import importlib
import math

import pytest
import torch
import yaml
from oracles import (
    RULES,
    SCHEMES,
    SURVEY,
    normal,
    positions,
    rule,
    scheme,
    shape,
    tiny_model,
    tokens,
)

from posbench import model as models
from posbench.encodings.base import Context
from posbench.errors import ConfigError
from posbench.model import Decoder
from posbench.registry import conf_root, get
from posbench.settings import ModelConfig

STYLES = ["llama", "gpt2"]


def others(model):
    """Every parameter that is not the scheme's own."""
    return {n: p for n, p in model.named_parameters() if not n.startswith("posenc.")}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_starts_from_the_same_weights(name, style):
    plain, model = others(tiny_model("none", style=style)), others(tiny_model(name, style=style))
    assert list(plain) == list(model)
    assert all(torch.equal(plain[n], model[n]) for n in plain)


def test_the_number_of_own_parameters_shifts_nothing():
    few = tiny_model("t5", options={"buckets": 4})
    many = tiny_model("t5", options={"buckets": 30})
    short, long = tiny_model("learned", train_length=8), tiny_model("learned", train_length=400)
    torch.manual_seed(123)  # nor does torch's own generator
    for model in (many, short, long, tiny_model("none")):
        for name, p in others(few).items():
            assert torch.equal(p, others(model)[name])


@pytest.mark.parametrize("name", SCHEMES)
def test_the_seed_decides_every_random_parameter(name):
    def start(seed):
        return dict(tiny_model(name, seed=seed).named_parameters())

    one, again, other = start(3), start(3), start(4)
    for key in one:
        assert torch.equal(one[key], again[key])
        constant = one[key].unique().numel() == 1
        assert torch.equal(one[key], other[key]) == constant, key


def test_no_two_parameters_start_alike():
    matrices = [p for p in tiny_model("t5").parameters() if p.ndim == 2]
    starts = [tuple(p.flatten()[:8].tolist()) for p in matrices]
    scaled = [tuple(x / s[0] for x in s) for s in starts]
    assert len({tuple(round(x, 6) for x in s) for s in scaled}) == len(matrices)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("d_model", [64, 128, 256])
def test_the_token_stream_has_unit_rms_at_the_start(d_model, style):
    model = tiny_model("none", vocab=1024, d_model=d_model, style=style)
    stream = model.tokens(torch.arange(1024)[None]).detach()
    assert float(stream.pow(2).mean().sqrt()) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_what_is_added_to_the_stream_has_the_stated_rms(name):
    model = tiny_model(name, vocab=1024, d_model=128, train_length=256)
    with torch.no_grad():
        stream = model.tokens(tokens(256, batch=8, vocab=1024))
        added = model.posenc.embed(stream, positions(256)) - stream
    signal, table = (float(x.pow(2).mean().sqrt()) for x in (stream, added))
    assert signal == pytest.approx(1, abs=0.03)
    assert table == pytest.approx(math.sqrt(0.5), rel=0.02)
    assert model.posenc.config.rms == math.sqrt(0.5)


@pytest.mark.parametrize(
    ("preset", "heads_of", "blocks"),
    [("tiny", 32, 0.85e6), ("small", 64, 10.6e6), ("base", 64, 85e6)],
)
def test_presets(preset, heads_of, blocks):
    path = conf_root() / "model" / f"{preset}.yaml"
    config = ModelConfig(**yaml.safe_load(path.read_text(encoding="utf-8")))
    with torch.device("meta"):
        model = Decoder(config, 1024, scheme("none"), get("positions", "standard")(None, 128))
    assert config.d_model // config.n_heads == heads_of
    counted = sum(p.numel() for p in model.blocks.parameters())
    assert counted == pytest.approx(blocks, rel=0.01)
    d, hidden = config.d_model, math.ceil(8 * config.d_model / 3 / 128) * 128
    assert counted == config.n_layers * (4 * d * d + 3 * d * hidden + 2 * d)
    assert sum(p.numel() for p in model.parameters()) == counted + d + 1024 * d


def test_styles():
    llama, gpt2 = tiny_model(style="llama"), tiny_model(style="gpt2")
    assert {n.rsplit(".", 1)[1] for n, _ in llama.named_parameters()} == {"weight"}
    names = {n.removeprefix("blocks.0.") for n, _ in gpt2.named_parameters()}
    for layer in ("q_proj", "k_proj", "v_proj", "o_proj"):
        assert f"attention.{layer}.bias" in names
    assert {"mlp.up_proj.bias", "mlp.down_proj.bias", "mlp_norm.bias"} <= names
    assert tuple(gpt2.blocks[0].mlp.up_proj.weight.shape) == (128, 32)
    assert tuple(llama.blocks[0].mlp.up_proj.weight.shape) == (128, 32)  # 85.3 rounded up
    assert tiny_model(hidden=40).blocks[0].mlp.down_proj.in_features == 40
    assert isinstance(gpt2.final_norm, torch.nn.LayerNorm)
    assert isinstance(llama.final_norm, torch.nn.RMSNorm)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("qkv_bias", [None, True, False])
def test_qkv_bias(style, qkv_bias):
    attention = tiny_model(style=style, qkv_bias=qkv_bias).blocks[1].attention
    wanted = style == "gpt2" if qkv_bias is None else qkv_bias
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        assert (layer.bias is not None) == wanted
    assert (attention.o_proj.bias is not None) == (style == "gpt2")


def seen_by_rotate(model, monkeypatch):
    """Queries and keys that reach the positional scheme in the last layer."""
    seen = []
    plain = model.posenc.rotate
    monkeypatch.setattr(
        model.posenc, "rotate", lambda q, k, *rest: seen.append((q, k)) or plain(q, k, *rest)
    )
    with torch.no_grad():
        model(tokens(9))
    return seen[-1]


@pytest.mark.parametrize("style", STYLES)
def test_qk_norm_comes_before_the_rotation(style, monkeypatch):
    model = tiny_model("rope", style=style, qk_norm=True)
    for x in seen_by_rotate(model, monkeypatch):
        rms = x.pow(2).mean(-1).sqrt()
        assert x.shape == (2, 4, 9, 8)
        torch.testing.assert_close(rms, torch.ones_like(rms), rtol=0, atol=1e-3)
    names = [n for n, _ in model.named_parameters() if "q_norm" in n or "k_norm" in n]
    assert len(names) == 4
    assert all(torch.equal(model.get_parameter(n), torch.ones(8)) for n in names)
    plain = tiny_model("rope", style=style)
    q, _ = seen_by_rotate(plain, monkeypatch)
    assert q.pow(2).mean(-1).sqrt().std() > 0.05
    assert not any("q_norm" in n for n, _ in plain.named_parameters())


def test_tied_and_untied_output():
    tied, untied = tiny_model(), tiny_model(tied=False)
    assert tied.head.weight is tied.embedding.weight
    assert "head.weight" not in dict(tied.named_parameters())
    assert "head.weight" in dict(untied.named_parameters())
    assert not torch.equal(untied.head.weight, untied.embedding.weight)
    for name, p in others(tied).items():
        assert torch.equal(p, others(untied)[name])


def test_scale_of_the_embedding():
    ids = torch.arange(61)[None]
    for given, used in ((None, math.sqrt(32)), (1.0, 1.0), (0.0, 0.0)):
        model = tiny_model(embed_scale=given)
        torch.testing.assert_close(model.tokens(ids)[0], model.embedding.weight * used)


@pytest.mark.parametrize("style", STYLES)
def test_table_of_initial_values(style):
    model = tiny_model(
        "rope", vocab=512, d_model=128, n_layers=3, style=style, tied=False, qk_norm=True
    )
    residual = (2 * 3) ** -0.5
    hidden = {"llama": 384, "gpt2": 512}[style]
    std = {
        "embedding.weight": 128**-0.5,
        "head.weight": 128**-0.5,
        "q_proj.weight": 128**-0.5,
        "k_proj.weight": 128**-0.5,
        "v_proj.weight": 128**-0.5,
        "gate_proj.weight": 128**-0.5,
        "up_proj.weight": 128**-0.5,
        "o_proj.weight": 128**-0.5 * residual,
        "down_proj.weight": hidden**-0.5 * residual,
    }
    met = set()
    for name, p in model.state_dict().items():
        if p.ndim == 1:
            wanted = torch.full_like(p, 0.0 if name.endswith("bias") else 1.0)
            assert torch.equal(p, wanted), name
            continue
        kind = next(k for k in std if name.endswith(k))
        met.add(kind)
        assert float(p.std()) == pytest.approx(std[kind], rel=0.03), name
        assert abs(float(p.mean())) < 0.05 * std[kind], name
    assert met == set(std) - ({"gate_proj.weight"} if style == "gpt2" else set())


def test_own_parameters_start_as_the_scheme_says():
    t5 = tiny_model("t5", d_model=256, n_heads=64).posenc.bias.detach()  # 32 x 64 numbers
    assert float(t5.std()) == pytest.approx(256**-0.5, rel=0.06)
    learned = tiny_model("learned", d_model=128, train_length=128).posenc.table.detach()
    assert float(learned.std()) == pytest.approx(math.sqrt(0.5), rel=0.03)


def test_unscaled_t5_starts_with_smaller_query_projections():
    """T5 leaves 1/sqrt(K) out of the scores and puts it into the initial W_q."""
    plain, unscaled = tiny_model("t5"), tiny_model("t5", options={"unscaled": True})
    for name, p in plain.named_parameters():
        factor = 8**-0.5 if name.endswith("q_proj.weight") else 1.0
        torch.testing.assert_close(dict(unscaled.named_parameters())[name], p * factor)
    with torch.no_grad():  # so that both begin with the same scores
        torch.testing.assert_close(plain(tokens(20)), unscaled(tokens(20)), rtol=0, atol=1e-4)


#: the last ones (whose block computes nothing else), all, the last, and others
SCORED = [[17, 18, 19], list(range(20)), [19], [0, 7, 8, 19], [0, 1, 2], [4], [18]]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", SCHEMES)
def test_some_positions_alone_are_those_of_the_full_pass(name, style):
    model = tiny_model(name, style=style, qk_norm=style == "llama")
    ids = tokens(20)
    with torch.no_grad():
        full = model(ids)
        assert full.shape == (2, 20, 61)
        for where in map(torch.tensor, SCORED):
            some = model.logits(model.hidden(ids, scored_S=where))
            assert some.shape == (2, len(where), 61)
            torch.testing.assert_close(some, full[:, where], rtol=0, atol=1e-5)


@pytest.mark.parametrize("id", RULES)
def test_some_positions_alone_under_a_rescaling(id):
    name, options = RULES[id]
    model = tiny_model("rope", train_length=8).double()
    posenc = rule(name, **options).applied(model.posenc, 8, 20)
    with torch.no_grad():
        full = model.hidden(tokens(20), posenc)
        for where in map(torch.tensor, SCORED):
            some = model.hidden(tokens(20), posenc, scored_S=where)
            torch.testing.assert_close(some, full[:, where], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SCHEMES)
def test_gradients_do_not_depend_on_how_positions_are_picked(name):
    """The last block computes only the last positions; a bias in training has its own kernel."""
    model, where = tiny_model(name).double(), torch.tensor([17, 18, 19])
    alone, picked = model.hidden(tokens(20), scored_S=where), model.hidden(tokens(20))[:, where]
    weights = [p for n, p in model.named_parameters() if "final_norm" not in n]
    got, wanted = (torch.autograd.grad(x.pow(2).sum(), weights) for x in (alone, picked))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", SCHEMES)
def test_sequences_of_a_batch_do_not_mix(name):
    model = tiny_model(name)
    ids = tokens(17, batch=3)
    with torch.no_grad():
        whole = model(ids)
        for b in range(3):
            torch.testing.assert_close(model(ids[b : b + 1])[0], whole[b], rtol=0, atol=2e-5)


def test_only_a_scheme_with_positions_sees_the_order():
    """One layer: the last query sees the other tokens as a set, unless positions tell."""
    ids = tokens(12, batch=1)
    mixed = torch.cat((ids[:, :11].flip(1), ids[:, 11:]), 1)
    for name in SURVEY:
        model = tiny_model(name, n_layers=1).double()
        with torch.no_grad():
            change = (model(ids) - model(mixed))[:, -1].abs().max()
        assert (change < 1e-10) == (name == "none"), name


def test_autocast_leaves_tables_and_scores_alone(monkeypatch):
    """Training in bf16 casts what enters attention, not what is computed there."""
    model, seen = tiny_model("fox"), []
    plain = model.posenc.normalise

    def normalise(scores, *rest):
        seen.append(scores.dtype)
        return plain(scores, *rest)

    monkeypatch.setattr(model.posenc, "normalise", normalise)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(tokens(20))
    assert set(seen) == {torch.float32}
    assert out.dtype == torch.bfloat16
    assert out.float().isfinite().all()


def test_another_encoding_can_be_given():
    model = tiny_model("rope", train_length=16)
    before = model(tokens(32))
    pi = rule("pi", factor=2).applied(model.posenc, 16, 32)
    with torch.no_grad():
        changed = model.hidden(tokens(32), pi)
        assert not torch.allclose(changed, model.hidden(tokens(32)))
        assert torch.equal(model(tokens(32)), before)
    assert model.posenc is not pi


def test_every_layer_knows_its_index_and_shares_one_pass(monkeypatch):
    model = tiny_model("rope", n_layers=3)
    layers, built, plain = [], [], model.posenc.rotate

    def rotate(q, k, q_pos, k_pos, ctx):
        layers.append(ctx.layer)
        ctx.once("mark", lambda: built.append(1))
        assert ctx.consecutive
        return plain(q, k, q_pos, k_pos, ctx)

    monkeypatch.setattr(model.posenc, "rotate", rotate)
    model(tokens(5))
    assert layers == [0, 1, 2]
    assert len(built) == 1
    model(tokens(5))
    assert len(built) == 2


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_a_cast_model_keeps_positions_in_full_precision(cast):
    model = tiny_model("rope").to(cast)
    pos = positions(9, 5000)
    fresh = scheme("rope", shape())
    for dtype in (torch.float32, torch.float64):
        ours, wanted = (e.cos_sin(pos, dtype, Context(True)) for e in (model.posenc, fresh))
        assert all(torch.equal(a, b) for a, b in zip(ours, wanted, strict=True))
    assert model.posenc.inv_freq.dtype == torch.float64
    alibi = tiny_model("alibi").to(cast).posenc
    distance = torch.arange(3000)
    assert torch.equal(
        alibi.distance_bias(distance, Context(True)),
        scheme("alibi", shape()).distance_bias(distance, Context(True)),
    )
    sinusoid = tiny_model("sinusoidal").to(cast).posenc
    assert torch.equal(sinusoid.table(pos[..., 0]), scheme("sinusoidal").table(pos[..., 0]))


@pytest.mark.parametrize("name", SCHEMES)
def test_a_bfloat16_model_stays_near_the_float32_one(name):
    model, ids = tiny_model(name), tokens(24)
    with torch.no_grad():
        exact = model(ids)
        coarse = model.to(torch.bfloat16)(ids)
    assert coarse.dtype == torch.bfloat16
    assert (coarse.float() - exact).abs().max() < 0.2
    assert (coarse.float() - exact).pow(2).mean().sqrt() < 0.03


def test_weights_do_not_hold_tables():
    """A checkpoint is the parameters and nothing else."""
    for name in SCHEMES:
        model = tiny_model(name)
        assert not list(model.buffers())
        assert set(model.state_dict()) == {n for n, _ in model.named_parameters()} | {"head.weight"}


def test_refusals():
    with pytest.raises(ConfigError, match=r"d_model=30 is not divisible by model.n_heads=4"):
        ModelConfig(d_model=30, n_heads=4)
    with pytest.raises(ConfigError, match=r"model.style=bert: must be one of llama, gpt2"):
        ModelConfig(style="bert")
    with pytest.raises(ConfigError, match=r"model.n_layers=0: must be at least 1"):
        ModelConfig(n_layers=0)
    with pytest.raises(ConfigError, match=r"heads of 5.*posenc=rope needs an even head size"):
        tiny_model("rope", d_model=20, n_heads=4)


def shaken(model):
    """All parameters away from their special initial values."""
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.add_(normal(*p.shape, seed=i, dtype=p.dtype) * (0.2 if p.ndim == 1 else 0.02))
    return model


def copied(target, source, pairs, transpose=False):
    """Fill a module of transformers from ours; every one of its parameters must be named."""
    names = {n for n, _ in target.named_parameters()}
    with torch.no_grad():
        for theirs, ours in pairs.items():
            value = source.get_parameter(ours) if isinstance(ours, str) else ours
            value = value.T if transpose and value.ndim == 2 and ".h." in theirs else value
            target.get_parameter(theirs).copy_(value)
    assert names <= set(pairs), names - set(pairs)
    return target.eval()


LLAMA_RULES = {
    "none": {"rope_type": "default"},
    "pi": {"rope_type": "linear", "factor": 4.0},
    "dynamic_ntk": {"rope_type": "dynamic", "factor": 1.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "ntk_by_parts": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 32.0,
        "original_max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("rescale", LLAMA_RULES)
def test_logits_of_llama(rescale, qkv_bias):
    """The same weights in transformers' model, under each of its rescalings."""
    transformers = importlib.import_module("transformers")
    model = shaken(tiny_model("rope", train_length=16, d_model=64, n_heads=4, qkv_bias=qkv_bias))
    config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        rms_norm_eps=1e-6,
        attention_bias=qkv_bias,
        tie_word_embeddings=False,
        rope_parameters={"rope_theta": 10000.0, **LLAMA_RULES[rescale]},
    )
    pairs = {
        "model.embed_tokens.weight": model.embedding.weight * model.embed_scale,
        "model.norm.weight": "final_norm.weight",
        "lm_head.weight": "embedding.weight",
    }
    for i in range(2):
        theirs, ours = f"model.layers.{i}", f"blocks.{i}"
        pairs[f"{theirs}.input_layernorm.weight"] = f"{ours}.attention_norm.weight"
        pairs[f"{theirs}.post_attention_layernorm.weight"] = f"{ours}.mlp_norm.weight"
        for x in "qkvo":
            pairs[f"{theirs}.self_attn.{x}_proj.weight"] = f"{ours}.attention.{x}_proj.weight"
            if qkv_bias and x != "o":
                pairs[f"{theirs}.self_attn.{x}_proj.bias"] = f"{ours}.attention.{x}_proj.bias"
        if qkv_bias:  # theirs has a bias there, ours has none
            pairs[f"{theirs}.self_attn.o_proj.bias"] = torch.zeros(64)
        for x in ("gate", "up", "down"):
            pairs[f"{theirs}.mlp.{x}_proj.weight"] = f"{ours}.mlp.{x}_proj.weight"
    reference = copied(transformers.LlamaForCausalLM(config), model, pairs)
    ids = tokens(64)
    with torch.no_grad():
        posenc = rule(rescale).applied(model.posenc, 16, 64)
        got, wanted = model.logits(model.hidden(ids, posenc)), reference(ids).logits
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    assert wanted.std() > 0.3


def test_logits_of_gpt2():
    transformers = importlib.import_module("transformers")
    model = shaken(tiny_model("learned", d_model=64, style="gpt2"))
    config = transformers.GPT2Config(
        vocab_size=61, n_positions=40, n_embd=64, n_layer=2, n_head=4, tie_word_embeddings=False
    )
    pairs = {
        "transformer.wte.weight": model.embedding.weight * model.embed_scale,
        "transformer.wpe.weight": "posenc.table",
        "lm_head.weight": "embedding.weight",
    }
    layers = {"ln_1": "attention_norm", "ln_2": "mlp_norm", "attn.c_proj": "attention.o_proj"}
    layers |= {"mlp.c_fc": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj"}
    for kind in ("weight", "bias"):
        pairs[f"transformer.ln_f.{kind}"] = f"final_norm.{kind}"
        for i in range(2):
            for theirs, ours in layers.items():
                pairs[f"transformer.h.{i}.{theirs}.{kind}"] = f"blocks.{i}.{ours}.{kind}"
            qkv = [model.get_parameter(f"blocks.{i}.attention.{x}_proj.{kind}") for x in "qkv"]
            pairs[f"transformer.h.{i}.attn.c_attn.{kind}"] = torch.cat(qkv)
    reference = copied(transformers.GPT2LMHeadModel(config), model, pairs, transpose=True)
    ids = tokens(40)
    with torch.no_grad():
        got, wanted = model(ids), reference(ids).logits
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    assert wanted.std() > 0.3


def test_a_generator_depends_on_seed_and_name():
    def draw(seed, name):
        return torch.randn(4, generator=models.seeded(seed, name)).tolist()

    assert draw(1, "a") == draw(1, "a")
    assert len({tuple(draw(s, n)) for s in (1, 2) for n in ("a", "b")}) == 4
