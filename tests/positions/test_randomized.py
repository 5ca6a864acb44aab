"""Random ascending positions: range, order, fairness, determinism, refusals."""

import dataclasses
import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import run_config, tokens

from posbench import model as models
from posbench import registry
from posbench.errors import ConfigError


def sampler(length=40, **options):
    cls = registry.get("positions", "randomized")
    return cls(cls.Config(**options), length)


def built(posenc, **options):
    """A model whose positions are drawn, trained at 40 tokens."""
    config = registry.get("positions", "randomized").Config(**options)
    return models.build(dataclasses.replace(run_config(posenc), positions=config), 61)


@settings(deadline=None, max_examples=40, database=None)
@given(
    train=st.integers(8, 300),
    over=st.integers(0, 3000),
    length=st.integers(1, 4000),
    seed=st.integers(0, 10**6),
    step=st.integers(0, 10**6),
)
def test_positions_are_different_ascending_and_below_the_bound(train, over, length, seed, step):
    one = sampler(train, below=train + over)
    length = min(length, one.max_length)
    for pos in (one.training(3, length, seed, step), one.testing(length, seed)):
        assert pos.dtype == torch.int64
        assert pos.shape == (1, length, 1)
        assert pos.min() >= 0
        assert pos.max() < one.span(length) == train + over
        assert (pos.diff(dim=1) > 0).all()


def test_every_choice_is_equally_likely():
    """All 28 pairs of 8 positions; all 8 of 8 are one choice."""
    one = sampler(8, below=8)
    assert one.testing(8)[0, :, 0].tolist() == list(range(8))
    counts = Counter(tuple(one.training(1, 2, 0, step)[0, :, 0].tolist()) for step in range(5600))
    assert set(counts) == set(itertools.combinations(range(8), 2))
    # 200 draws of each are expected, standard deviation 14
    assert max(abs(n - 200) for n in counts.values()) < 70


def test_one_draw_for_a_batch_anew_for_every_step_and_seed():
    one = sampler()
    draws = [one.training(4, 40, seed, step) for seed in (0, 1) for step in (0, 1)]
    assert all(d.shape[0] == 1 for d in draws)
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(draws, 2))
    assert torch.equal(draws[3], sampler().training(9, 40, 1, 1))


def test_tests_are_drawn_too_and_can_be_repeated():
    one = sampler()
    assert one.random_test
    draws = [one.testing(90, n) for n in range(5)]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(draws, 2))
    for n, draw in enumerate(draws):
        sampler().testing(7, n)
        assert torch.equal(sampler().testing(90, n), draw)


def test_the_bound_allows_64_times_the_training_length():
    assert sampler(40).max_length == 64 * 40
    assert sampler(40, below=2048).max_length == 2048
    assert sampler(40).testing(64 * 40)[0, :, 0].tolist() == list(range(64 * 40))


@pytest.mark.parametrize("below", [39, 0, "all"])
def test_a_bound_below_the_training_length_is_refused(below):
    with pytest.raises(ConfigError, match=f"positions.below={below}: at least train.seq_len = 40"):
        sampler(below=below)


def test_more_positions_than_there_are_is_an_error():
    one = sampler(below=50)
    assert one.testing(50).shape == (1, 50, 1)
    with pytest.raises(ValueError, match="51 positions are asked for, there are 50"):
        one.testing(51)


def test_a_learned_table_has_a_row_for_every_position_and_all_learn():
    model = built("learned", below=100)
    assert model.posenc.table.shape[0] == 100
    for step in range(20):
        pos = model.sampler.training(2, 40, 0, step)
        model(tokens(40), pos).pow(2).sum().backward()
    assert (model.posenc.table.grad.abs().sum(-1) > 0).all()
    with torch.no_grad():
        assert model(tokens(100)).isfinite().all()
    assert model.sampler.span(100) <= model.posenc.max_length


@pytest.mark.parametrize("name", ["rope", "alibi", "sinusoidal", "t5", "shaw", "transformer_xl"])
def test_a_model_reads_the_positions_that_are_drawn(name):
    model = built(name)
    ids = tokens(30)
    with torch.no_grad():
        first, again, other = (model(ids, model.sampler.testing(30, draw)) for draw in (0, 0, 1))
        plain = model(ids, torch.arange(30)[None, :, None])
        assert torch.equal(model(ids), first)
    assert torch.equal(first, again)
    assert (first - other).abs().max() > 1e-3
    assert (first - plain).abs().max() > 1e-3


def test_nope_does_not_notice():
    model = built("none")
    with torch.no_grad():
        a, b = (model(tokens(30), model.sampler.testing(30, draw)) for draw in (0, 1))
    assert torch.equal(a, b)
