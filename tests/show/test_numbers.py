"""Biases, embeddings, maps and factors that are shown, against other numbers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from oracles import golden

import posbench
from posbench import model as models
from posbench import registry
from show.compare import close


@pytest.mark.parametrize("heads", [int(h) for h in golden("alibi")["slopes"]])
def test_alibi_slopes(heads: int, tables: Callable[..., Any]) -> None:
    found = tables("alibi", heads=heads, head_dim=2, distances=[0, 1, 7, 4096])
    wanted = golden("alibi")["slopes"][str(heads)]
    close(found["slopes"], wanted)
    close(found["bias"]["values"], [[-s * n for n in (0, 1, 7, 4096)] for s in wanted], rel=1e-7)
    if heads == 12:
        assert found["slopes"][:8] == [2.0**-h for h in range(1, 9)]
        close(found["slopes"][8:], [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
        assert found["slopes"] != sorted(found["slopes"], reverse=True)


def test_buckets_of_t5(tables: Callable[..., Any]) -> None:
    numbers = golden("t5")["32_buckets_to_128"]
    keys = {"buckets": 32, "max_distance": 128}
    assert tables("t5", **keys, distances=numbers["distances"])["buckets"] == numbers["buckets"]
    far = [111, 112, 113, 114, 128, 1000, 10**6]
    assert tables("t5", **keys, distances=far)["buckets"] == [30, 30, 31, 31, 31, 31, 31]
    every = tables("t5", **keys)["buckets"]  # by default from 0 on, without gaps at first
    first = [every.index(bucket) for bucket in range(32)]
    assert first == numbers["first_distance_of_bucket"]
    small = golden("t5")["8_buckets_to_20"]["buckets_of_0_to_24"]
    keys = {"buckets": 8, "max_distance": 20, "distances": list(range(25))}
    assert tables("t5", **keys)["buckets"] == small


def test_sandwich() -> None:
    numbers = golden("sandwich")
    keys = {"heads": numbers["heads"], "distances": numbers["distances"]}
    found = posbench.tables("sandwich", **keys)["bias"]
    assert found["distances"] == numbers["distances"]
    close(found["values"][0], numbers["head_1"])
    close(found["values"][7], numbers["head_8"])


def test_fox_fades_like_alibi_where_nothing_is_said() -> None:
    numbers = golden("fox_constant_gate")
    keys = {"distances": [3, 2, 1, 0], "initial_gate": numbers["gate"]}
    found = posbench.tables("fox", heads=2, head_dim=4, **keys)["bias"]["values"]
    close(found, [numbers["bias_of_row_3"]] * 2, rel=1e-6)  # the offset starts in float32
    start = posbench.tables("fox", heads=1, head_dim=4, distances=[1])["bias"]["values"]
    close(start, math.log(numbers["gate_at_offset_0"]))


def test_a_bias_that_depends_on_the_query_is_of_the_position_given() -> None:
    """The network's input is 0 at distance 0 and nearly 1 at the first key: both ends agree."""
    keys = {"heads": 2, "head_dim": 4, "train_length": 32}
    near = posbench.tables("fire", **keys, distances=[0, 20, 21], positions=[3, 20])["bias"]
    assert near["query"] == 20 and all(row[2] is None for row in near["values"])
    far = posbench.tables("fire", **keys, distances=[0, 20, 21], positions=[9000])["bias"]
    assert far["query"] == 9000
    for row, other in zip(near["values"], far["values"], strict=True):
        assert row[0] == pytest.approx(other[0], rel=1e-12)
        assert abs(row[1] - other[1]) > 1e-3
    end = posbench.tables("fire", **keys, test_length=40, distances=[0])["bias"]
    assert end["query"] == 39


def with_a_bias() -> list[str]:
    """Names whose scores are a bias alone, where queries and keys are zero."""
    found = []
    for name in registry.names("posenc"):
        hooks = registry.get("posenc", name).hooks
        biased = hooks & {"distance_bias", "key_bias", "pair_bias"}
        if biased and not hooks & {"content_bias", "normalise", "attend", "visible"}:
            found.append(name)
    return found


@pytest.mark.parametrize("name", [*with_a_bias(), "stack"])
def test_biases_are_those_that_attention_uses(name: str) -> None:
    """Weights of zero queries and keys, through the model's kernel, are softmax of the table."""
    from posbench.show.subject import subject
    from posbench.show.tables import Layer

    keys = {"heads": 2, "head_dim": 32}
    text = 1 in registry.get("posenc", name).axes
    keys |= {"train_length": 64, "test_length": 20} if text else {"shape": "8x8"}
    length, found = 20, subject(name, keys)
    bias = Layer(found, found.encoding).bias(list(range(length)), [length - 1])["values"]
    weights = Layer(found, found.encoding).weights(length)[:, -1]
    for head in range(2):
        total = sum(math.exp(b) for b in bias[head])
        wanted = [math.exp(bias[head][length - 1 - j]) / total for j in range(length)]
        close(weights[head].tolist(), wanted, rel=1e-6)


def test_learned_tables_are_those_of_a_model_of_the_seed(settings_of: Callable[..., Any]) -> None:
    for seed in (0, 3):
        config = settings_of("t5", model={"d_model": 32, "n_heads": 2}, seed=seed)
        table = models.build(config, 11).posenc.bias.tolist()
        keys = {"heads": 2, "head_dim": 16, "layers": 2, "train_length": 64, "seed": seed}
        found = posbench.tables("t5", **keys, distances=[0, 5, 10**6])["bias"]["values"]
        assert found == [[table[b][head] for b in (0, 5, 31)] for head in (0, 1)]


# --- the rest -------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [4, 8])
def test_sinusoidal(width: int, tables: Callable[..., Any]) -> None:
    rows = golden("sinusoidal")["rows"][str(width)]
    positions = [int(m) for m in rows]
    found = tables("sinusoidal", heads=1, head_dim=width, positions=positions)["embedding"]
    assert found["positions"] == positions
    close(found["values"], list(rows.values()))


@pytest.mark.parametrize("name", ["rerope", "leaky_rerope"])
def test_clipped_relative_positions(name: str, tables: Callable[..., Any]) -> None:
    numbers = golden(name)
    window, row, stretch = numbers["window"], numbers["row"], numbers.get("k", math.inf)
    keys = {k: numbers[k] for k in ("window", "k") if k in numbers}
    matrix = tables(name, test_length=row + 1, **keys)["relative_position"]
    assert matrix[row] == numbers["relative"]
    for i in range(row + 1):
        for j in range(i + 1):
            wanted = i - j if i - j < window else window + (i - j - window) / stretch
            assert matrix[i][j] == wanted


def test_self_extend(tables: Callable[..., Any]) -> None:
    numbers = golden("self_extend")
    keys = {"window": numbers["window"], "group": numbers["group"]}
    matrix = tables("self_extend", test_length=20, **keys)["relative_position"]
    for row, wanted in numbers["rows"].items():
        assert matrix[int(row)][: int(row) + 1] == wanted
    reach = numbers["reach"]
    matrix = tables("self_extend", **keys, test_length=reach["tokens"])["relative_position"]
    assert max(matrix[-1]) == reach["train_length"] - 1


def test_logn_as_trained_and_as_added() -> None:
    numbers = golden("logn_rescale")
    keys = {"train_length": numbers["train_length"], "positions": numbers["positions"]}
    found = posbench.tables("rescale=logn", **keys)["logit_scale"]
    assert found["positions"] == numbers["positions"]
    close(found["values"], numbers["factor"])
    trained = posbench.tables("logn", **keys)["logit_scale"]["values"]
    close(trained, [math.log(m + 1) / math.log(512) for m in numbers["positions"]])


def test_factors_by_head_are_listed_by_head() -> None:
    found = posbench.tables("ssmax", heads=3, head_dim=2, initial=0.43, positions=[0, 15, 16383])
    wanted = [0.43 * math.log(m + 1) for m in (0, 15, 16383)]
    close(found["logit_scale"]["values"], [wanted] * 3, rel=1e-6)


def test_stick_breaking_where_all_scores_are_zero() -> None:
    numbers = golden("stick_breaking_zero_logits")
    found = posbench.tables("stick_breaking", heads=2, test_length=5)["weights"]
    assert found["positions"] == [0, 1, 2, 3, 4]
    for head in found["values"]:
        for i, row in enumerate(head):
            wanted = list(numbers["weights"][i])
            wanted[i] = numbers["remainder"][i]
            close(row, wanted)


def test_weights_of_a_head_narrower_than_the_row() -> None:
    wide = posbench.tables("stick_breaking", heads=1, head_dim=64)["weights"]["values"]
    narrow = posbench.tables("stick_breaking", heads=1, head_dim=4)["weights"]["values"]
    close(narrow, wide)


def test_scores_of_equal_contents_fall_as_the_mean_of_cosines() -> None:
    from posbench.show.subject import subject
    from posbench.show.tables import Layer

    found = subject("pi", {"head_dim": 16, "factor": 4})
    distances = [0, 1, 5, 100, 5000]
    got = Layer(found, found.encoding).similarity(distances).tolist()
    theta = [10000.0 ** (-p / 8) / 4 for p in range(8)]
    close(got, [sum(math.cos(n * t) for t in theta) / 8 for n in distances], rel=1e-9)


def test_scores_under_a_window_are_those_of_the_scheme_as_far_as_it_reaches() -> None:
    from posbench.show.subject import subject
    from posbench.show.tables import Layer

    found = subject("window", {"head_dim": 16, "train_length": 64, "test_length": 256})
    distances = [0, 1, 5, 63, 64, 200]
    got = Layer(found, found.encoding).similarity(distances).tolist()
    theta = [10000.0 ** (-p / 8) for p in range(8)]
    close(got[:4], [sum(math.cos(n * t) for t in theta) / 8 for n in distances[:4]], rel=1e-9)
    assert all(math.isnan(x) for x in got[4:])


def test_what_a_sampler_draws(tables: Callable[..., Any]) -> None:
    found = tables("standard", train_length=5, test_length=7)["positions"]
    assert found == {"train": [0, 1, 2, 3, 4], "test": [0, 1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize("name", registry.names("positions"))
def test_a_sampler_is_a_function_of_its_seed(name: str) -> None:
    sampler = registry.get("positions", name)
    draws = []
    for seed in (0, 0, 1):
        found = posbench.tables(f"positions={name}", train_length=16, test_length=24, seed=seed)
        draws.append(found["positions"])
        assert len(draws[-1]["train"]) == 16 and len(draws[-1]["test"]) == 24
        assert draws[-1]["train"] == sorted(draws[-1]["train"])
    assert draws[0] == draws[1]
    if sampler.random_test:
        assert draws[0]["test"] != draws[2]["test"]
