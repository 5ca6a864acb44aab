"""Schedule, parameter groups and the division of labour between AdamW and Muon."""

import pytest
import torch
from oracles import SCHEMES, run_config, tokens

from posbench import model as models
from posbench import optim
from posbench.settings import OptimizerConfig, TrainConfig

STYLES = ["llama", "gpt2"]
NAMES = ["adamw", "muon"]


def built(posenc="none", optimizer="adamw", lr=2e-3, weight_decay=0.1, factor=1.0, **model):
    config = run_config(
        posenc,
        optimizer=OptimizerConfig(name=optimizer, weight_decay=weight_decay, muon_lr_factor=factor),
        **model,
    )
    config.train.lr = lr
    decoder = models.build(config, 61)
    return decoder, optim.build(decoder, config), config


def shares(steps=10, **options):
    config = TrainConfig(steps=steps, **options)
    return [optim.rate(config, step) for step in range(steps)]


def test_the_rate_rises_and_then_stays_level():
    found = shares(warmup=0.4, decay=0.2, final_lr=0.1)
    assert found[:8] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1])


def test_the_rate_falls_in_equal_steps():
    found = shares(steps=20, warmup=0.1, decay=0.5, final_lr=0.1)
    falling = [a - b for a, b in zip(found[11:], found[12:], strict=False)]
    assert falling == pytest.approx([0.9 / 10] * 8)
    assert found[2:10] == [1.0] * 8


def test_the_last_step_has_the_final_rate():
    """train.final_lr is the rate at the last step, as a share of the peak."""
    for decay in (0.3, 0.5, 1.0):
        assert shares(warmup=0.0, decay=decay, final_lr=0.1)[-1] == pytest.approx(0.1)


def test_without_warm_up_or_decay_the_rate_is_constant():
    assert shares(warmup=0.0, decay=0.0, final_lr=0.1) == [1.0] * 10
    assert shares(warmup=0.0, decay=1.0, final_lr=1.0) == [1.0] * 10


def test_the_rate_depends_on_the_step_alone():
    config = TrainConfig(steps=100)
    forward = [optim.rate(config, s) for s in range(100)]
    assert [optim.rate(config, s) for s in reversed(range(100))] == forward[::-1]
    assert all(0 < r <= 1 for r in forward)
    assert max(forward) == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_every_group_gets_its_multiple_of_the_rate(name):
    _, optimizers, config = built("t5", name, lr=0.01, factor=0.5)
    config.train.steps, config.train.warmup = 10, 0.2
    optim.set_rate(optimizers, config.train, 0)
    for optimizer in optimizers:
        factor = 0.5 if isinstance(optimizer, torch.optim.Muon) else 1.0
        for group in optimizer.param_groups:
            assert group["lr"] == pytest.approx(0.01 * 0.5 * factor)
    optim.set_rate(optimizers, config.train, 2)
    assert optimizers[0].param_groups[0]["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize("posenc", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "model", [{"style": "llama"}, {"style": "gpt2", "qk_norm": True}, {"tied": False}]
)
def test_every_parameter_is_in_one_group(posenc, name, model):
    decoder, optimizers, _ = built(posenc, name, **model)
    listed = [id(p) for o in optimizers for g in o.param_groups for p in g["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(p) for p in decoder.parameters()}
    assert all(g["params"] for o in optimizers for g in o.param_groups)


def kinds(decoder, optimizers):
    """Name -> (optimizer, group)."""
    names = {id(p): n for n, p in decoder.named_parameters()}
    return {
        names[id(p)]: (type(o).__name__, g)
        for o in optimizers
        for g in o.param_groups
        for p in g["params"]
    }


@pytest.mark.parametrize("posenc", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("style", STYLES)
def test_what_is_decayed_and_what_muon_gets(posenc, name, style):
    decoder, optimizers, _ = built(posenc, name, style=style, tied=False, qk_norm=True)
    for key, (optimizer, group) in kinds(decoder, optimizers).items():
        matrix = key.startswith("blocks.") and decoder.get_parameter(key).ndim == 2
        assert (optimizer == "Muon") == (name == "muon" and matrix), key
        assert group["weight_decay"] == (0.1 if matrix or key == "head.weight" else 0.0), key
        assert group["lr_factor"] == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_a_tied_embedding_is_not_decayed(name):
    decoder, optimizers, _ = built("rope", name)
    optimizer, group = kinds(decoder, optimizers)["embedding.weight"]
    assert (optimizer, group["weight_decay"]) == ("AdamW", 0.0)


@pytest.mark.parametrize("posenc", ["t5", "learned"])
@pytest.mark.parametrize("name", NAMES)
def test_own_parameters_come_as_the_scheme_declares_them(posenc, name, monkeypatch):
    """Both have a 2-D table, which Muon must not get."""
    decoder, optimizers, config = built(posenc, name)
    own = [k for k in kinds(decoder, optimizers) if k.startswith("posenc.")]
    assert len(own) == 1
    assert decoder.get_parameter(own[0]).ndim == 2
    optimizer, group = kinds(decoder, optimizers)[own[0]]
    assert (optimizer, group["weight_decay"], group["lr_factor"]) == ("AdamW", 0.0, 1.0)
    declared = [{"params": list(decoder.posenc.parameters()), "lr_factor": 3, "weight_decay": 0.2}]
    monkeypatch.setattr(decoder.posenc, "param_groups", lambda: declared)
    optimizers = optim.build(decoder, config)
    optim.set_rate(optimizers, config.train, config.train.steps // 4)
    optimizer, group = kinds(decoder, optimizers)[own[0]]
    assert (optimizer, group["weight_decay"]) == ("AdamW", 0.2)
    assert group["lr"] == pytest.approx(3 * config.train.lr)


@pytest.mark.parametrize("name", NAMES)
def test_settings_reach_the_optimizers(name):
    _, optimizers, _ = built("rope", name, lr=0.02, weight_decay=0.3, factor=0.25)
    adamw = optimizers[0]
    assert isinstance(adamw, torch.optim.AdamW)
    assert adamw.defaults["betas"] == (0.9, 0.95)
    assert adamw.defaults["lr"] == 0.02
    assert len(optimizers) == (2 if name == "muon" else 1)
    if name == "muon":
        (group,) = optimizers[1].param_groups
        assert (group["lr_factor"], group["weight_decay"]) == (0.25, 0.3)


@pytest.mark.parametrize("posenc", ["none", "t5", "learned"])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_moves_every_parameter(posenc, name):
    decoder, optimizers, config = built(posenc, name, style="gpt2")
    before = {n: p.detach().clone() for n, p in decoder.named_parameters()}
    ids = tokens(40)
    optim.set_rate(optimizers, config.train, 100)
    logits = decoder(ids)
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    for optimizer in optimizers:
        optimizer.step()
    for key, p in decoder.named_parameters():
        # a bias on the keys adds the same number to every score of a query
        if not key.endswith("k_proj.bias"):
            assert not torch.equal(p, before[key]), key


def test_decay_alone_shrinks_matrices_of_the_blocks():
    decoder, optimizers, _ = built("learned", lr=0.1, weight_decay=0.5)
    before = {n: p.detach().clone() for n, p in decoder.named_parameters()}
    for p in decoder.parameters():
        p.grad = torch.zeros_like(p)
    optimizers[0].step()
    for key, p in decoder.named_parameters():
        factor = 0.95 if p.ndim == 2 and key.startswith("blocks.") else 1.0
        torch.testing.assert_close(p.detach(), before[key] * factor)


@pytest.mark.parametrize("shapes", [[(8, 8), (8, 8)], [(12, 5), (5, 12), (12, 5)]])
def test_muon_steps_like_torchs(shapes, monkeypatch):
    """torch's works matrix by matrix and in bfloat16; here with that cast taken out of it."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
    made = [torch.randn(s, generator=torch.Generator().manual_seed(1)).double() for s in shapes]
    ours, theirs = ([torch.nn.Parameter(m.clone()) for m in made] for _ in range(2))
    options = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    pair = optim.Muon(ours, **options), torch.optim.Muon(theirs, **options)
    generator = torch.Generator().manual_seed(2)
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator).double()
            b.grad = a.grad.clone()
        for optimizer in pair:
            optimizer.step()
    for a, b, start in zip(ours, theirs, made, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
        assert (a - start).abs().max() > 1e-3


def test_muon_brings_singular_values_near_one():
    group = torch.optim.Muon([torch.nn.Parameter(torch.ones(2, 2))]).param_groups[0]
    matrices = torch.randn(3, 20, 8, generator=torch.Generator().manual_seed(3))
    found = torch.linalg.svdvals(optim.orthogonalised(matrices, group))
    assert found.min() > 0.6 and found.max() < 1.3
    before = torch.linalg.svdvals(matrices)
    assert before.max() / before.min() > 2


def test_muon_leaves_what_has_no_gradient():
    p, q = (torch.nn.Parameter(torch.ones(3, 3)) for _ in range(2))
    p.grad = torch.eye(3)
    optim.Muon([p, q], lr=0.1).step()
    assert torch.equal(q, torch.ones(3, 3)) and not torch.equal(p, q)
