"""PoSE: every outcome against a slow enumeration, properties, refusals."""

import dataclasses
import itertools
from collections import Counter, defaultdict
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import run_config, tokens

from posbench import model as models
from posbench import registry
from posbench.errors import ConfigError


def sampler(length=40, **options):
    cls = registry.get("positions", "pose")
    return cls(cls.Config(**options), length)


def outcomes(length, chunks, room):
    """Probability of every sequence of positions, by going through all lengths and skips."""
    found = defaultdict(Fraction)

    def go(done, left, skip, chance, pos):
        rest = length - done
        if left == 1:
            found[tuple(pos + [i + skip for i in range(done, length)])] += chance
            return
        sizes = range(1, -(-rest // left) + 1)
        for size in sizes:
            chunk = pos + [i + skip for i in range(done, done + size)]
            for higher in range(skip, room + 1):
                share = chance / len(sizes) / (room + 1 - skip)
                go(done + size, left - 1, higher, share, chunk)

    go(0, chunks, 0, Fraction(1), [])
    assert sum(found.values()) == 1
    return found


@pytest.mark.parametrize(("length", "chunks", "target"), [(8, 2, 10), (8, 3, 9), (9, 2, 9)])
def test_every_outcome_comes_as_often_as_it_should(length, chunks, target):
    one, n = sampler(length, target=target, chunks=chunks), 6000
    counts = Counter(tuple(p.tolist()) for p in one.training(n, length, 0, 0)[:, :, 0])
    expected = outcomes(length, chunks, target - length)
    assert set(counts) == set(expected)
    for pos, share in expected.items():
        p = float(share)
        assert abs(counts[pos] - n * p) <= 4.5 * (n * p * (1 - p)) ** 0.5, pos


@settings(deadline=None, max_examples=40, database=None)
@given(
    length=st.integers(8, 200),
    room=st.integers(0, 3000),
    chunks=st.integers(2, 6),
    seed=st.integers(0, 10**6),
    step=st.integers(0, 10**6),
)
def test_positions_rise_below_the_target_with_gaps_between_chunks_only(
    length, room, chunks, seed, step
):
    one = sampler(length, target=length + room, chunks=chunks)
    pos = one.training(3, length, seed, step)
    assert pos.dtype == torch.int64 and pos.shape == (3, length, 1)
    assert (pos[:, 0] == 0).all()
    assert pos.max() < one.span(length) == length + room
    steps = pos.diff(dim=1)
    assert steps.min() >= 1
    assert ((steps > 1).sum(dim=1) <= chunks - 1).all()


def test_the_first_of_two_chunks_is_at_most_half_and_the_whole_room_is_used():
    pos = sampler(40, target=400).training(500, 40, 0, 0)[:, :, 0]
    cuts = [int((p.diff() > 1).nonzero()) + 1 for p in pos if p[-1] > 39]
    assert min(cuts) == 1 and max(cuts) == 20
    skips = pos[:, -1] - 39
    assert skips.min() < 20 and skips.max() > 340


def test_every_sequence_has_its_own_draw_by_seed_and_step_alone():
    one = sampler()
    draws = [one.training(4, 40, seed, step) for seed in (0, 1) for step in (0, 1)]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(draws, 2))
    assert len({tuple(p.flatten().tolist()) for p in draws[0]}) == 4
    assert torch.equal(draws[3], sampler().training(4, 40, 1, 1))


def test_tests_have_ordinary_positions():
    one = sampler()
    assert not one.random_test and one.max_length is None
    for length in (1, 40, 320, 1000):
        assert one.testing(length, 3)[0, :, 0].tolist() == list(range(length))
        assert one.span(length) == max(320, length)


def test_the_target_is_8_times_the_training_length_or_as_given():
    assert sampler(64).target == 512
    assert sampler(64, target=4096).target == 4096
    assert [t.used for t in sampler(64).tied()] == ["512"]


@pytest.mark.parametrize("target", [39, 0, "far"])
def test_a_target_below_the_training_length_is_refused(target):
    with pytest.raises(ConfigError, match=f"positions.target={target}: at least train.seq_len = 4"):
        sampler(target=target)


@pytest.mark.parametrize("chunks", [1, 0, 41])
def test_a_number_of_chunks_that_makes_none_is_refused(chunks):
    with pytest.raises(ConfigError, match=f"positions.chunks={chunks}: from 2 to"):
        sampler(chunks=chunks)


@pytest.mark.parametrize("name", ["rope", "alibi", "learned"])
def test_a_model_reads_the_positions_that_are_drawn(name):
    config = dataclasses.replace(
        run_config(name), positions=registry.get("positions", "pose").Config(target=100)
    )
    model, ids = models.build(config, 61), tokens(40)
    pos = model.sampler.training(1, 40, 0, 0)
    assert pos.max() > 39
    with torch.no_grad():
        moved, plain = model(ids, pos), model(ids, torch.arange(40)[None, :, None])
        assert (moved - plain).abs().max() > 1e-4
        assert torch.equal(model(ids), plain)
