"""Schemes against numbers that were worked out elsewhere."""

import pytest
import torch
from oracles import golden, positions, rope, scheme, shape

from posbench.encodings.alibi import slopes
from posbench.encodings.base import Context
from posbench.encodings.rope import rotate_half_split
from posbench.encodings.t5 import bucket
from posbench.settings import Geometry

#: the files have nine digits
DIGITS = {"rtol": 1e-8, "atol": 1e-9}


def close(got, wanted, **tolerance):
    wanted = torch.tensor(wanted, dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(got, dtype=torch.float64), wanted, **tolerance)


@pytest.mark.parametrize("width", ["4", "8"])
def test_sinusoidal(width):
    numbers = golden("sinusoidal")
    encoding = scheme("sinusoidal", Geometry(int(width), 1, 1, 64), base=numbers["base"])
    for position, row in numbers["rows"][width].items():
        table = encoding.table(torch.tensor([int(position)]))
        assert table.dtype == torch.float64
        close(table[0], row, **DIGITS)


def test_rope():
    numbers = golden("rope")
    encoding = rope(numbers["dim"], 2048, numbers["base"])
    close(encoding.inv_freq, numbers["inv_freq"], rtol=1e-12, atol=0)
    q, k = (torch.tensor(numbers[x], dtype=torch.float64)[None, None, None] for x in "qk")

    def at(x, m):
        return encoding.rotate(x, x, positions(1, m), positions(1, m), Context(False))[0]

    close(at(q, 3)[0, 0, 0], numbers["q_at_3"], **DIGITS)
    for case in numbers["scores_without_sqrt"]:
        close((at(q, case["m"]) * at(k, case["n"])).sum(), case["score"], **DIGITS)


def test_rope_is_the_interleaved_layout_permuted():
    numbers = golden("rope")
    permutation = numbers["interleaved_to_half"]
    q = torch.tensor(numbers["q"], dtype=torch.float64)[permutation]
    angle = 3 * torch.tensor(numbers["inv_freq"], dtype=torch.float64)
    turned = rotate_half_split(q, angle.cos(), angle.sin())
    close(turned, [numbers["q_at_3_interleaved"][i] for i in permutation], **DIGITS)


@pytest.mark.parametrize("heads", list(golden("alibi")["slopes"]))
def test_alibi_slopes(heads):
    close(slopes(int(heads)), golden("alibi")["slopes"][heads], **DIGITS)


def test_alibi_bias():
    bias = scheme("alibi", shape(64, 8)).distance_bias(3 - torch.arange(4), Context(True))
    for head, row in golden("alibi")["bias_of_8_heads_row_3"].items():
        close(bias[int(head)], row, rtol=0, atol=0)


def test_t5_buckets():
    numbers = golden("t5")
    large = numbers["32_buckets_to_128"]
    got = bucket(torch.tensor(large["distances"]), 32, 128)
    assert got.tolist() == large["buckets"]
    every = bucket(torch.arange(1000), 32, 128).tolist()
    assert [every.index(b) for b in range(32)] == large["first_distance_of_bucket"]
    future = bucket(torch.tensor([-1, -17, -1000]), 32, 128).tolist()
    assert future == [large["bucket_of_the_future"]] * 3
    small = numbers["8_buckets_to_20"]["buckets_of_0_to_24"]
    assert bucket(torch.arange(25), 8, 20).tolist() == small
