"""Costs: positive, additive, and near what an independent count gives."""

from collections.abc import Callable
from typing import Any

import pytest

from posbench.evidence import costs

Make = Callable[..., Any]


def test_a_training_takes_about_six_operations_a_parameter_and_token(settings_of: Make) -> None:
    from posbench import model as models

    config = settings_of(model={"d_model": 128, "n_layers": 4, "n_heads": 4}, train={"seq_len": 64})
    weights = sum(p.numel() for p in models.build(config, 256).parameters())
    tokens = config.train.steps * config.train.batch_size * config.train.seq_len
    assert costs.training(config) == pytest.approx(6 * weights * tokens, rel=0.1)


@pytest.mark.parametrize("protocol", ["same_targets", "nonoverlapping", "sliding", "repeat"])
def test_lengths_add_up(settings_of: Make, protocol: str) -> None:
    config = settings_of()

    def cost(*lengths: int) -> float:
        given = ",".join(map(str, lengths))
        return costs.evaluation([f"eval.protocol={protocol}", f"eval.lengths=[{given}]"], config)

    assert cost(128, 256) > cost(128) > 0
    assert cost(128, 256, 512) - cost(128, 256) == pytest.approx(cost(128, 512) - cost(128))


def test_rows_add_up_and_lengths_read_off_one_pass_cost_nothing(settings_of: Make) -> None:
    config = settings_of()

    def cost(*overrides: str) -> float:
        return costs.evaluation(["eval.lengths=[64,512]", *overrides], config)

    one, three = cost("rescale=none"), cost("rescale=[none,pi,ntk]", "rescale.factor=8")
    two = cost("rescale=[none,pi]", "rescale.factor=8")
    assert three - two == pytest.approx(two - one) and two > one
    longest = costs.evaluation(["eval.protocol=prefix", "eval.lengths=[512]"], config)
    assert cost("eval.protocol=prefix") == longest


def test_documents_and_blocks_count(settings_of: Make) -> None:
    config = settings_of()

    def cost(*overrides: str) -> float:
        return costs.evaluation(["eval.lengths=[64,512]", *overrides], config)

    assert cost("eval.blocks=8") == pytest.approx(2 * cost("eval.blocks=4"))
    assert cost() == cost("eval.blocks=4")
    assert cost("eval.docs=6") == pytest.approx(cost("eval.docs=24") / 4)
    curse = "eval.protocol=nonoverlapping"
    assert cost(curse, "eval.docs=6") < cost(curse) / 3


def test_the_rate_is_that_of_the_preset_else_of_all_else_assumed() -> None:
    def manifest(preset: str, seconds: float, status: str = "finished") -> dict[str, Any]:
        config = {
            "model": {"d_model": 32, "n_layers": 2, "n_heads": 2},
            "train": {"seq_len": 64},
            "data": {"tokenizer": "bytes"},
        }
        return {"status": status, "preset": preset, "seconds": seconds, "tokens": 640} | {
            "config": config
        }

    assert costs.Rates([]).of("rope") == costs.RATE and not costs.Rates([]).measured
    rates = costs.Rates(
        [manifest("rope", 2.0), manifest("alibi", 1.0), manifest("fox", 9, "failed")]
    )
    assert rates.of("alibi") == pytest.approx(2 * rates.of("rope"))
    assert rates.of("fox") == pytest.approx((rates.of("alibi") + rates.of("rope")) / 2)
