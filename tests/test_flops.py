"""Counted operations against torch's own counter, which watches the operators run."""

import pytest
import torch
import torch.nn.functional as F
from oracles import run_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from posbench import flops
from posbench import model as models

LENGTH, VOCABULARY, BATCH = 24, 61, 3


def counted(config, backward):
    """Operations of all matrix products, attention as a whole square."""
    decoder = models.build(config, VOCABULARY)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = F.cross_entropy(decoder(tokens).flatten(0, 1), tokens.flatten())
        if backward:
            loss.backward()
    return counter.get_total_flops()


def square(config):
    """What a whole square of scores costs beyond its lower half with the diagonal, forward."""
    m = config.model
    return 2 * BATCH * m.n_layers * m.d_model * 2 * LENGTH * (LENGTH - (LENGTH + 1) / 2)


@pytest.mark.parametrize("style", ["llama", "gpt2"])
@pytest.mark.parametrize("tied", [True, False])
def test_forward_and_training_agree_with_torchs_counter(style, tied):
    config = run_config("none", style=style, tied=tied)
    forward = BATCH * flops.forward(config.model, VOCABULARY, LENGTH)
    assert forward == counted(config, False) - square(config)
    training = flops.training(config.model, VOCABULARY, LENGTH, BATCH)
    assert training == counted(config, True) - 3 * square(config)
