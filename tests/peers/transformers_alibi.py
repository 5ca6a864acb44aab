"""ALiBi of BLOOM, MPT and Falcon in transformers: the builders, and what whole models apply."""

from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BloomConfig, BloomModel, FalconConfig, FalconModel, MptConfig, MptModel
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as bloom_builder
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as falcon_builder
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from peers import formulas, ours
from peers.compare import Probe, Values, grid, named

RECIPE = "the published recipe written out (arXiv:2108.12409, official code)"
SLOPES = "slope in the scores of head"


def built(builder: Callable[..., Tensor], heads: int, length: int) -> Values:
    """Bias of the last key over that of the first, in float32."""
    if builder is build_mpt_alibi_tensor:
        bias = builder(heads, length)
    else:
        bias = builder(torch.ones(1, length, dtype=torch.int64), heads, torch.float32)
    rise = bias[:, 0, -1] - bias[:, 0, 0]
    return named(f"bias over a distance of {length - 1}, head", rise.tolist())


def rises(slopes: list[float], length: int) -> Values:
    return named(f"bias over a distance of {length - 1}, head", [m * (length - 1) for m in slopes])


def silent(model: nn.Module) -> nn.Module:
    """The model with queries and keys of zero, so that scores are the bias alone."""
    for name, parameter in model.named_parameters():
        if "query_key_value" in name or "Wqkv" in name:
            nn.init.zeros_(parameter)
    return model.eval()


def attended(model: nn.Module) -> Values:
    """Slopes from the attention weights of two tokens: ln(weight at 0 / weight at distance 1)."""
    with torch.no_grad():
        weights = silent(model)(torch.tensor([[1, 2]]), output_attentions=True).attentions[0]
    here, before = weights[0, :, 1, 1].double(), weights[0, :, 1, 0].double()
    return named(SLOPES, (here / before).log().tolist())


def bloom(heads: int, head_dim: int) -> Values:
    size = {"vocab_size": 4, "hidden_size": heads * head_dim, "n_head": heads, "n_layer": 1}
    ends = {"bos_token_id": None, "eos_token_id": None}
    return attended(BloomModel(BloomConfig(**size, **ends, attn_implementation="eager")))


def mpt(heads: int, head_dim: int) -> Values:
    size = {"vocab_size": 4, "d_model": heads * head_dim, "n_heads": heads, "n_layers": 1}
    return attended(MptModel(MptConfig(**size, attn_implementation="eager")))


def falcon(heads: int, head_dim: int, kind: str) -> nn.Module:
    return FalconModel(
        FalconConfig(
            vocab_size=4,
            hidden_size=heads * head_dim,
            num_attention_heads=heads,
            num_hidden_layers=1,
            alibi=True,
            multi_query=False,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation=kind,
        )
    )


def falcon_sdpa(heads: int, head_dim: int) -> Values:
    """Slopes in the mask that the layer hands to torch's scaled_dot_product_attention."""
    original = functional.scaled_dot_product_attention
    with (
        torch.no_grad(),
        patch.object(functional, "scaled_dot_product_attention", wraps=original) as spy,
    ):
        silent(falcon(heads, head_dim, "sdpa"))(torch.tensor([[1, 2]]))
    last = spy.call_args.kwargs["attn_mask"][0, :, -1]
    return named(SLOPES, (last[:, 1] - last[:, 0]).tolist())


def true(heads: int, **_: int) -> Values:
    return named(SLOPES, formulas.alibi_slopes(heads))


def ours_at(heads: int, **_: int) -> Values:
    return named(SLOPES, ours.tables("alibi", heads=heads)["slopes"])


PROBES = [
    *(
        Probe(
            scheme="alibi",
            part=part,
            grid=grid(heads=range(1, 17), length=[2, 129, 258, 1024]),
            peer=lambda builder=builder, **at: built(builder, **at),
            ours=lambda heads, length: rises(ours.tables("alibi", heads=heads)["slopes"], length),
            oracle=lambda heads, length: rises(formulas.alibi_slopes(heads), length),
            rule=RECIPE,
        )
        for part, builder in (
            ("bloom build_alibi_tensor", bloom_builder),
            ("mpt build_mpt_alibi_tensor", build_mpt_alibi_tensor),
            ("falcon build_alibi_tensor", falcon_builder),
        )
    ),
    *(
        Probe(
            scheme="alibi",
            part=part,
            grid=grid(heads=[1, 2, 3, 4, 6, 8, 12], head_dim=[2, 4, 16, 64]),
            peer=model,
            ours=ours_at,
            oracle=true,
            rule=RECIPE,
            tolerance=1e-3,
        )
        for part, model in (
            ("BloomModel eager, attention weights", bloom),
            ("MptModel eager, attention weights", mpt),
            (
                "FalconModel eager, attention weights",
                lambda **at: attended(falcon(**at, kind="eager")),
            ),
            ("FalconModel sdpa, mask of the layer", falcon_sdpa),
        )
    ),
]
