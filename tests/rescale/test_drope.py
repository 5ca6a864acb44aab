"""Dropping the rotation: what is left is NoPE."""

import pytest
import torch
from oracles import rope, rule, scheme, tiny_model, tokens

from posbench.errors import UnsupportedRescale
from posbench.settings import Geometry


@pytest.mark.parametrize("name", ["rope", "partial_rope", "p_rope"])
def test_without_its_rotation_a_model_is_nope_with_the_same_weights(name):
    trained, nope, ids = tiny_model(name), tiny_model("none"), tokens(50)
    nope.load_state_dict(trained.state_dict())
    dropped = rule("drope").applied(trained.posenc, 40, 50)
    with torch.no_grad():
        found = trained.logits(trained.hidden(ids, posenc=dropped))
        torch.testing.assert_close(found, nope(ids), rtol=0, atol=1e-6)
        assert (found - trained(ids)).abs().max() > 1e-3


def test_the_trained_model_keeps_its_rotation_and_the_length_does_not_matter():
    trained = rope(16, 32)
    before = trained.inv_freq.clone()
    tables = [rule("drope").applied(trained, 32, n).inv_freq for n in (1, 32, 4096)]
    assert all(t.tolist() == [0.0] * 8 for t in tables)
    assert torch.equal(trained.inv_freq, before)
    assert rule("drope").label == "drope" and rule("drope").scale(32, 4096) == 1


def test_axes_of_a_clip_that_do_not_grow_lose_it_too():
    geometry = Geometry(96, 2, 2, 1024, 0, (4, 16, 16), (True, False, False))
    trained = scheme("rope_axial", geometry)
    found = rule("drope").applied(trained.measured_at((8, 16, 16)), 1024, 2048)
    assert trained.inv_freq.min() > 0
    assert found.inv_freq.tolist() == [0.0] * 24


def test_what_has_no_rotation_is_refused():
    with pytest.raises(UnsupportedRescale, match="alibi cannot be rescaled by drope"):
        rule("drope").applied(tiny_model("alibi").posenc, 40, 80)
