"""One step: compiled like plain, when it is compiled, and what happens where it cannot be."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from oracles import ON_GRIDS, SCHEMES, run_config

from posbench import flops, step
from posbench import model as models
from posbench.errors import ConfigError

VOCABULARY, LENGTH, BATCH = 61, 48, 2


@pytest.fixture(autouse=True)
def one_cache(tmp_path_factory, monkeypatch):
    """Compiled code of the tests stays out of the user's cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "compiled"))
    yield
    torch._dynamo.reset()


def settings(posenc="rope", **train):
    config = run_config(posenc)
    usual = {"lr": 1e-3, "seq_len": LENGTH, "batch_size": BATCH, "device": "cpu"}
    for key, value in {**usual, **train}.items():
        setattr(config.train, key, value)
    return config


def stepper(config):
    return step.Stepper(config, models.build(config, VOCABULARY))


def batch(config):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    pos = models.build_sampler(config).training(BATCH, LENGTH, 0, 0)
    return tokens[:, :-1], tokens[:, 1:], pos


def after(config, steps=3):
    """Losses and parameters after some steps on one batch."""
    one = stepper(config)
    losses = [one(batch(config), i).item() for i in range(steps)]
    return one, losses, {n: p.detach().clone() for n, p in one.model.named_parameters()}


@pytest.mark.parametrize("posenc", ["rope", pytest.param("t5", marks=pytest.mark.slow)])
def test_compiled_steps_are_the_plain_ones(posenc):
    plain, expected, weights = after(settings(posenc, compile="false"))
    assert not plain.compiled
    compiled, found, others = after(settings(posenc, compile="true"))
    assert compiled.compiled and not compiled.not_compiled
    assert found == pytest.approx(expected, abs=1e-5)
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, rtol=0, atol=3e-5, msg=name)


@pytest.mark.slow
def test_compiled_steps_repeat_bit_by_bit_with_two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first, second = (after(settings("t5", compile="true"), 6)[2] for _ in range(2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
@pytest.mark.parametrize("posenc", [*SCHEMES, *ON_GRIDS])
def test_every_scheme_that_says_so_is_compiled_as_one_graph(posenc):
    options = {"parts": ["rope", "fox"]} if posenc == "stack" else {}
    options = {"pattern": ["rope", "none"]} if posenc == "layers" else options
    config = run_config(posenc, options=options)
    config.train.seq_len, config.train.batch_size = LENGTH, BATCH
    if posenc in ON_GRIDS:
        config.data = SimpleNamespace(name="grid", shape=[8, 6], largest=(16, 16))
    one = stepper(config)
    if not one.model.posenc.compilable:
        with pytest.raises(ConfigError, match="takes too long"):
            config.train.compile = "true"
            stepper(config)
        return
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    pos = one.model.training_positions(BATCH, config.shape, 0, 0)
    given = tokens[:, :-1], tokens[:, 1:], pos
    plain = one(given, 0).item()
    config.train.compile = "true"
    compiled = stepper(config)
    assert compiled(given, 0).item() == pytest.approx(plain, abs=1e-5)
    assert compiled.compiled


def test_auto_follows_the_size_of_the_run(monkeypatch):
    config = settings()
    config.train.steps = 10
    size = flops.training(config.model, VOCABULARY, LENGTH, 10 * BATCH)
    each = size / torch.get_num_threads()
    for threshold, expected in ((each * 0.99, True), (each * 1.01, False), (math.inf, False)):
        monkeypatch.setattr(step, "WORTH_COMPILING", {"cpu": threshold})
        assert stepper(settings(steps=10)).compiled is expected
    monkeypatch.setattr(step, "WORTH_COMPILING", {"cpu": 0.0})
    assert not stepper(settings(steps=10, compile="false")).compiled


def test_without_a_compiler_auto_runs_as_it_is_and_true_is_refused(monkeypatch):
    monkeypatch.setattr(step, "WORTH_COMPILING", {"cpu": 0.0})
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    one = stepper(settings())
    assert not one.compiled and one.not_compiled == "no C++ compiler is installed"
    with pytest.raises(ConfigError, match=r"train\.compile=true: no C\+\+ compiler"):
        stepper(settings(compile="true"))


class Stubborn(torch.nn.Module):
    """Asks for a number in the middle of the graph, which one graph cannot hold."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, tokens, pos):
        logits = self.inner(tokens, pos)
        return logits * (1.0 if float(logits.detach().sum()) < math.inf else 2.0)


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch):
    monkeypatch.setattr(step, "WORTH_COMPILING", {"cpu": 0.0})
    _, expected, _ = after(settings(compile="false"))
    one = stepper(settings())
    one.parallel = Stubborn(one.parallel)
    assert one.compiled
    found = [one(batch(settings()), i).item() for i in range(3)]
    assert not one.compiled and one.not_compiled
    assert found == expected


def test_what_cannot_be_compiled_is_refused_where_it_was_asked_for():
    one = stepper(settings(compile="true"))
    one.parallel = Stubborn(one.parallel)
    with pytest.raises(ConfigError, match="rope cannot be compiled"):
        one(batch(settings()), 0)


@pytest.mark.parametrize("compile", ["auto", "true"])
def test_an_error_of_the_model_itself_is_not_taken_for_the_compilers(compile, monkeypatch):
    monkeypatch.setattr(step, "WORTH_COMPILING", {"cpu": 0.0})
    one = stepper(settings(compile=compile))
    assert one.compiled

    def broken(*batch):
        raise ValueError("of the model")

    one._loss = broken
    with pytest.raises(ValueError, match="of the model"):
        one(batch(settings()), 0)
    assert one.compiled and not one.not_compiled


def test_the_flag_for_a_fixed_order_is_given_back():
    before = torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    with step.repeatable():
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.are_deterministic_algorithms_enabled() == before
    assert torch.utils.deterministic.fill_uninitialized_memory == filled


def test_batches_go_on_from_a_step(text_data):
    config = settings(steps=5)
    one = stepper(config)
    whole = [copy.deepcopy(b) for b in one.batches(text_data, 0)]
    rest = list(one.batches(text_data, 3))
    assert len(whole) == 5 and len(rest) == 2
    for a, b in zip(whole[3:], rest, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert list(one.batches(text_data, 5)) == []
