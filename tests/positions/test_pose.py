"""PoSE: every outcome against a slow enumeration, properties, refusals."""

import dataclasses
import itertools
from collections import Counter, defaultdict
from fractions import Fraction

import pytest
import torch
from helpers import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import run_config, tokens

from posbench import model as models
from posbench import registry
from posbench.data import skipped
from posbench.data.dataset import load
from posbench.errors import ConfigError
from posbench.positions.pose import TEXTS


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


# --- what stands in the chunks ----------------------------------------------------------------


def places_of(one, batch, length, seed=0, step=0):
    """Positions and places of the same training sequences."""
    pos = one.training(batch, length, seed, step)[:, :, 0]
    return pos, one.places(batch, length, seed, step)


@pytest.mark.parametrize("chunks", [2, 4])
def test_aligned_text_is_what_stands_at_the_positions(chunks):
    one = sampler(40, target=400, chunks=chunks, text="aligned")
    pos, places = places_of(one, 200, 40)
    assert one.skipped == 360 and places.shape == (200, 41)
    assert torch.equal(places[:, :40], pos)
    assert torch.equal(places[:, 40], pos[:, -1] + 1)


@pytest.mark.parametrize("chunks", [2, 4])
def test_skipped_text_has_the_chunks_of_the_positions_and_gaps_of_its_own(chunks):
    one = sampler(40, target=100_000, chunks=chunks, text="skipped")
    pos, places = places_of(one, 400, 40)
    assert one.skipped == 160 and (places[:, 0] == 0).all() and places.max() <= 40 + 160
    moved = places[:, :40] - torch.arange(40)
    gap = places[:, :40].diff(dim=1) > 1
    assert gap.sum() > 0.8 * (chunks - 1) * 400
    assert not (gap & (pos.diff(dim=1) == 1)).any()  # text is skipped between chunks alone
    assert (places.diff(dim=1) >= 1).all() and (places[:, 40] == places[:, 39] + 1).all()
    if chunks == 2:  # the released code's draw: all the same from 0 to 4 L, apart from the position
        last, u = moved[:, -1].double(), (pos[:, -1] - 39).double()
        assert last.min() < 8 and last.max() > 152
        assert abs(float(last.mean()) - 80) < 4 * 160 / (12 * 400) ** 0.5
        assert abs(float(torch.corrcoef(torch.stack([last, u]))[0, 1])) < 0.2


def test_other_text_moves_no_position_and_contiguous_text_is_the_default():
    found = [sampler(40, text=text).training(5, 40, 1, 2) for text in TEXTS]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert torch.equal(sampler(40).training(5, 40, 1, 2), found[0])
    assert sampler(40).skipped == 0


@pytest.mark.parametrize("text", ["skipped", "aligned"])
def test_a_batch_is_cut_from_the_text_at_its_places(text_data, text):
    one = sampler(64, target=256, text=text)
    inputs, labels = skipped.training_batch(text_data, one, (64,), 6, 3, 7)
    assert inputs.shape == labels.shape == (6, 64)
    assert (inputs[:, 1:] == labels[:, :-1]).all()
    long, after = text_data.training_batch((64 + one.skipped,), 6, 3, 7)
    places = one.places(6, 64, 3, 7).tolist()
    for row in range(6):
        whole = [*long[row].tolist(), int(after[row, -1])]
        assert [*inputs[row].tolist(), int(labels[row, -1])] == [whole[p] for p in places[row]]
    again = skipped.training_batch(text_data, one, (64,), 6, 3, 7)
    assert (again[0] == inputs).all()
    other = skipped.training_batch(text_data, one, (64,), 6, 3, 8)
    assert (other[0] != inputs).any()
    plain = skipped.training_batch(text_data, sampler(64), (64,), 6, 3, 7)
    assert (plain[0] == text_data.training_batch((64,), 6, 3, 7)[0]).all()


def test_text_that_there_is_not_is_refused(text_data, posbench, tiny):
    with pytest.raises(ConfigError, match="positions.text=far: must be one of contiguous, skipp"):
        sampler(text="far")
    with pytest.raises(ConfigError, match="positions=pose: no training document .* 8193 tokens"):
        one = sampler(64, target=8192, text="aligned")
        skipped.training_batch(text_data, one, (64,), 1, 0, 0)
    task = load(registry.get("data", "copy").Config())
    with pytest.raises(ConfigError, match="positions=pose: .* not on data=copy"):
        skipped.training_batch(task, sampler(64, text="skipped"), (64,), 1, 0, 0)
    words = ["positions=pose", "positions.text=aligned", "positions.target=8192"]
    refused(posbench("train", *tiny, *words), "positions=pose", "8193 tokens")


def test_the_command_trains_on_skipped_text(posbench, tiny):
    words = ["positions=pose", "train.steps=1"]
    folders = []
    for text in (["positions.text=skipped"], []):
        done = posbench("train", *tiny, *words, *text)
        assert done.code == 0, done.err
        folders.append(done.out.split()[-1])
    assert len(set(folders)) == 2
