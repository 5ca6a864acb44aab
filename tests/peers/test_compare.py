"""The search for the smallest input, with peers that are made up."""

import math

import pytest

from peers.compare import Probe, at_distances, difference, furthest, grid, named, run


def probe(peer, ours=None, oracle=None, **options):
    right = ours or (lambda n, m: {"value": n * m})
    options = {"grid": grid(n=[1, 2, 3], m=[1, 10]), "rule": "n times m", **options}
    return Probe("made_up", "call", peer=peer, ours=right, oracle=oracle or right, **options)


def off_at(wanted):
    return lambda n, m: {"value": n * m + (0.5 if (n, m) in wanted else 0)}


def test_grid_counts_the_first_axis_most():
    assert grid(n=[1, 2], m=[3, 4]) == [
        {"n": 1, "m": 3},
        {"n": 1, "m": 4},
        {"n": 2, "m": 3},
        {"n": 2, "m": 4},
    ]


def test_agreement():
    found = run(probe(off_at([])))
    assert (found.result, found.right, found.inputs) == ("agrees", "both", 6)
    assert found.smallest is None and found.largest == 0


def test_smallest_input_and_largest_difference():
    found = run(probe(off_at([(2, 10), (3, 1), (3, 10)])))
    assert (found.result, found.right) == ("differs", "posbench")
    assert found.smallest.inputs == {"n": 2, "m": 10}
    assert (found.smallest.peer, found.smallest.posbench, found.smallest.oracle) == (20.5, 20, 20)
    assert found.largest == pytest.approx(0.5 / 3.5) and found.largest_at == {"n": 3, "m": 1}
    assert found.peer_off == found.largest and found.posbench_off == 0


def test_absolute_differences_and_tolerance():
    assert run(probe(off_at([(1, 1)]), relative=False, tolerance=0.6)).result == "agrees"
    found = run(probe(off_at([(1, 1)]), relative=False, tolerance=0.4))
    assert (found.result, found.largest) == ("differs", 0.5)


@pytest.mark.parametrize(
    "peer, ours, right",
    [([], [(1, 1)], "peer"), ([(1, 1)], [(2, 1)], "neither"), ([(1, 1)], [(1, 1)], "neither")],
)
def test_who_is_right(peer, ours, right):
    found = run(probe(off_at(peer), off_at(ours), off_at([])))
    assert found.right == right
    # both wrong in the same way: they agree, and the oracle tells
    assert found.result == ("agrees" if peer == ours else "differs")


def test_entry_with_the_largest_difference_is_shown():
    found = run(
        probe(
            lambda n, m: named("pair", [1, 2.2, 3]),
            lambda n, m: named("pair", [1, 2, 3.1]),
        )
    )
    assert found.smallest.entry == "pair 1"


@pytest.mark.parametrize("side", ["peer", "ours", "oracle"])
def test_an_exception_ends_the_probe_and_is_named(side):
    def broken(n, m):
        raise KeyError("no such table\nat all") if n == 2 else ValueError

    whole = {"peer": off_at([]), "ours": off_at([]), "oracle": off_at([])}
    found = run(probe(**{**whole, side: broken}))
    assert found.result == "not run" and found.inputs == 0
    assert found.reason == f"{side.replace('ours', 'posbench')} at n=1, m=1: ValueError"


def test_an_entry_that_one_side_lacks_and_nan_are_infinitely_far():
    assert furthest({"a": 1.0}, {"a": 1.0, "b": 0.0}, True) == (math.inf, "b")
    assert furthest({"a": 1.0, "b": 0.0}, {"a": 1.0}, True) == (math.inf, "b")
    assert difference(math.nan, 1.0, True) == math.inf
    assert difference(math.inf, math.inf, False) == 0
    assert difference(0.0, 1e-30, True) == 1.0


def test_labels():
    assert named("slope of head", [1, 0.5]) == {"slope of head 0": 1, "slope of head 1": 0.5}
    assert at_distances("bucket", [0, 7], [0, 3]) == {
        "bucket of distance 0": 0,
        "bucket of distance 7": 3,
    }
