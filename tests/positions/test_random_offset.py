"""Random starts: spacing, range, one start for every sequence, spans, refusals."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import run_config, tokens

from posbench import model as models
from posbench import registry
from posbench.errors import ConfigError


def sampler(length=40, **options):
    cls = registry.get("positions", "random_offset")
    return cls(cls.Config(**options), length)


def built(posenc, **options):
    """A model whose sequences begin anywhere, trained at 40 tokens."""
    config = registry.get("positions", "random_offset").Config(**options)
    return models.build(dataclasses.replace(run_config(posenc), positions=config), 61)


@settings(deadline=None, max_examples=40, database=None)
@given(
    train=st.integers(8, 200),
    offsets=st.integers(1, 1000),
    test_offset=st.one_of(st.just("auto"), st.integers(0, 2000)),
    length=st.integers(1, 1000),
    seed=st.integers(0, 10**6),
)
def test_neighbours_differ_by_one_and_spans_hold(train, offsets, test_offset, length, seed):
    one = sampler(train, offsets=offsets, test_offset=test_offset)
    assert one.consecutive and not one.random_test
    pos = one.training(5, train, seed, 3)
    assert pos.shape == (5, train, 1)
    assert (pos.diff(dim=1) == 1).all()
    assert pos.min() >= 0 and pos[:, 0].max() < offsets
    assert pos.max() < one.span(train)
    test = one.testing(length, seed)
    first = offsets - 1 if test_offset == "auto" else test_offset
    assert test[0, :, 0].tolist() == list(range(first, first + length))
    assert test.max() < one.span(length)
    # the smallest spans for which that is so
    assert one.span(length) == max(first + length, offsets - 1 + train)


def test_every_start_is_equally_likely_and_sequences_have_their_own():
    one = sampler(offsets=10)
    starts = torch.cat([one.training(50, 8, 0, step)[:, 0, 0] for step in range(200)])
    counts = torch.bincount(starts, minlength=10)
    assert len(counts) == 10
    assert (counts - 1000).abs().max() < 150  # standard deviation 30
    assert len(set(one.training(50, 8, 0, 0)[:, 0, 0].tolist())) > 5


def test_starts_are_a_function_of_seed_and_step():
    first = sampler().training(8, 40, 3, 5)
    assert torch.equal(first, sampler().training(8, 40, 3, 5))
    assert not torch.equal(first, sampler().training(8, 40, 3, 6))
    assert not torch.equal(first, sampler().training(8, 40, 4, 5))


def test_defaults_and_the_released_code_s():
    one = sampler(125)
    assert (one.offsets, one.test_offset) == (500, 499)
    released = sampler(125, offsets=500, test_offset=500)
    assert released.testing(3)[0, :, 0].tolist() == [500, 501, 502]
    assert released.span(125) == 625


def test_one_start_at_0_is_standard():
    one, standard = sampler(offsets=1), registry.get("positions", "standard")
    plain = standard(standard.Config(), 40)
    assert torch.equal(one.training(1, 40, 0, 0), plain.training(1, 40, 0, 0))
    assert torch.equal(one.testing(90), plain.testing(90))
    assert one.span(90) == plain.span(90)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"offsets": 0}, "positions.offsets=0: at least 1, or auto"),
        ({"offsets": "many"}, "positions.offsets=many: at least 1, or auto"),
        ({"test_offset": -1}, "positions.test_offset=-1: at least 0, or auto"),
        ({"test_offset": "end"}, "positions.test_offset=end: at least 0, or auto"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        sampler(**options)


def test_every_row_of_a_learned_table_learns():
    model = built("learned", offsets=9)
    assert model.posenc.table.shape[0] == model.sampler.span(40) == 48
    for step in range(30):
        model(tokens(40), model.sampler.training(2, 40, 0, step)).pow(2).sum().backward()
    assert (model.posenc.table.grad.abs().sum(-1) > 0).all()


@pytest.mark.parametrize(
    ("options", "longest"),
    [({"offsets": 9}, 40), ({"offsets": 9, "test_offset": 0}, 48), ({"test_offset": 100}, 99)],
)
def test_a_learned_table_has_rows_up_to_a_length_and_no_further(options, longest):
    """As an evaluation asks: the span of a test length against the rows of the table."""
    model = built("learned", **options)
    known = model.posenc.max_length
    assert model.sampler.span(longest) <= known < model.sampler.span(longest + 1)
    with torch.no_grad():
        assert model(tokens(longest)).isfinite().all()
        with pytest.raises(IndexError):
            model(tokens(longest + 1))


def test_rows_of_a_learned_table_that_training_cannot_reach_are_refused():
    """K as in the released code is one too far; a scheme without a table has a number for it."""
    for first in (160, 1000):
        with pytest.raises(
            ConfigError,
            match=rf"positions=random_offset: a test of train.seq_len=40 tokens reaches position "
            rf"{first + 39}, and training gives posenc=learned 199 positions from 0 on",
        ):
            built("learned", test_offset=first)
        assert built("sinusoidal", test_offset=first)(tokens(40)).isfinite().all()


def test_absolute_schemes_read_the_start_and_relative_ones_do_not():
    ids = tokens(30)
    for name, reads in (("sinusoidal", True), ("learned", True), ("rope", False), ("fox", False)):
        model = built(name).double()
        pos = model.sampler.training(2, 30, 0, 0)
        with torch.no_grad():
            change = (model(ids, pos) - model(ids)).abs().max()
        assert (change > 1e-3) if reads else (change < 1e-9), name
