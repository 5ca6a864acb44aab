"""Signatures of encodings: equal for one function, different for two, none in doubt."""

import enum
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from posbench import model as models
from posbench import registry
from posbench.encodings.rope import Rope
from posbench.errors import UnsupportedRescale
from posbench.evaluate import score
from posbench.evaluate.signature import signature

L = 64


# --- what is one function -------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["rope", "p_rope", "partial_rope", "xpos", "stack", "layers"])
def test_every_rotary_scheme_is_known_again(settings_of: Callable[..., Any], scheme: str) -> None:
    built = models.build(settings_of(scheme), 256).eval()

    def made(rule: str, length: int, **options: Any) -> Any:
        cls = registry.get("rescale", rule)
        return signature(cls(cls.Config(**options)).applied(built.posenc, L, length).eval())

    plain = signature(built.posenc)
    assert plain is not None
    for rule in ("pi", "ntk", "ntk_by_parts", "yarn", "yarn_paper", "dynamic_ntk"):
        assert made(rule, 48) == made(rule, L) == plain, rule
        assert made(rule, 65) not in (None, plain), rule
    assert made("ntk", 200) == made("dynamic_ntk", 200) != made("ntk", 201)
    assert made("ntk", 200, factor=3.125) == made("ntk", 200)


def test_equal_signatures_are_equal_losses(model: models.Decoder, text_data: Any) -> None:
    """Every rescaling at one length, by its defaults and with two factors."""
    from posbench.data import windows

    sizes = text_data.tokenizer.token_bytes()
    found: dict[Any, set[float]] = {}
    for rule in registry.names("rescale"):
        cls = registry.get("rescale", rule)
        for factor in ({}, {"factor": 1}, {"factor": 4}):
            if factor and "factor" not in cls.Config.__dataclass_fields__:
                continue
            try:
                config = cls.Config(**cls.example(16), **factor)
                encoding = cls(config).applied(model.posenc, L, 128)
            except UnsupportedRescale:
                continue
            read = windows.target_windows(text_data, 128, 1, 1)
            (block,) = score.score(model, encoding, read, sizes, 1000, math.inf)
            known = signature(encoding)
            if known is not None:
                found.setdefault(known, set()).add(block.nats)
    assert len(found) > 10 and all(len(nats) == 1 for nats in found.values())


# --- what is told apart ---------------------------------------------------------------------------


class Odd(Rope):
    """As if it were from this package: only its attributes can give it away."""

    __module__ = "posbench.encodings.odd"


class Foreign(Rope):
    """A plug-in's: its bias is kept beside the object."""

    biases: dict[int, float] = {}

    @property
    def bias(self) -> float:
        return Foreign.biases.get(id(self), 0.0)


class Slotted(Odd):
    __slots__ = ("slope",)


class Lying:
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Word(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class Kind(enum.Enum):
    A = 1
    B = 2


@dataclass
class Inner:
    """A dataclass of this package."""

    __module__ = "posbench.encodings.odd"
    value: Any


@dataclass
class Outer:
    """A dataclass of a plug-in."""

    value: Any


def odd(settings_of: Callable[..., Any], cls: type[Rope] = Odd, **attributes: Any) -> Rope:
    built = models.build(settings_of("rope"), 256)
    made = cls(built.posenc.config, built.posenc.geometry)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def cyclic(value: Any) -> list[Any]:
    made: list[Any] = [value]
    made.append(made)
    return made


def twice(shared: bool) -> tuple[list[int], list[int]]:
    one = [1]
    return one, one if shared else [1]


UNEQUAL: list[tuple[Any, Any]] = [
    (1, 2), (1, 1.0), (1, True), (0.0, -0.0), (1.0, math.nextafter(1.0, 2)), (None, 0), ("a", "b"),
    ("1", b"1"), ([1], (1,)), ([1, 2], [2, 1]), ([], [[]]), ({"a": 1}, {"a": 2}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({1: 1}, {1.0: 1}), ({"a"}, frozenset({"a"})),
    ({"a": 1}, OrderedDict(a=1)), ([1, [2, [3]]], [1, [2, [4]]]), (Inner([1]), Inner([2])),
    (cyclic(1), cyclic(2)), (twice(True), twice(False)),
    (torch.tensor([1.0]), torch.tensor([2.0])), (torch.tensor([0.0]), torch.tensor([-0.0])),
    (torch.tensor([1]), torch.tensor([1.0])), (torch.tensor(1.0), torch.tensor([1.0])),
    (torch.ones(2, 3), torch.ones(3, 2)), (torch.ones(2, 2), torch.ones(2, 2).t().contiguous().t()),
    (torch.ones(1), nn.Parameter(torch.ones(1))),
    (torch.ones(1), torch.ones(1, dtype=torch.float64)),
    (nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=True)),
]  # fmt: skip


@pytest.mark.parametrize("pair", UNEQUAL, ids=lambda pair: str(pair)[:40].replace("\n", ""))
def test_attributes_that_differ_are_told_apart(
    settings_of: Callable[..., Any], pair: tuple[Any, Any]
) -> None:
    one, other = (signature(odd(settings_of, extra=value)) for value in pair)
    assert one is not None and other is not None and one != other
    assert one == signature(odd(settings_of, extra=pair[0]))
    assert one != signature(odd(settings_of, other=pair[0])) != signature(odd(settings_of))


def test_what_a_class_says_anyway_is_no_difference(settings_of: Callable[..., Any]) -> None:
    plain = signature(odd(settings_of))
    assert signature(odd(settings_of, norm_preserving=True)) == plain
    for other in (False, 1, 1.0, None):
        assert signature(odd(settings_of, norm_preserving=other)) not in (None, plain)


def loop() -> Any:
    made = nn.Linear(1, 1)
    made.register_forward_hook(lambda *arguments: None)
    return made


UNSEEN: list[Callable[[], Any]] = [
    lambda: lambda: 1, lambda: math.sin, lambda: np.array([1.0]), lambda: np.float64(1.0), Lying,
    lambda: Word("a"), lambda: Kind.A, lambda: Outer(1), lambda: {1, 2}, lambda: {Lying(): 1},
    lambda: [Lying()], lambda: Inner(Lying()), loop, lambda: torch.ones(1).to_sparse(),
    lambda: torch.ones(1, device="meta"), lambda: torch.Generator(), object, lambda: Lying,
    lambda: torch.ones(2, dtype=torch.complex64).conj(), lambda: range(3), lambda: iter([1]),
    lambda: Path("a"), lambda: torch.Size([1]), lambda: complex(1, 1), lambda: bytearray(b"a"),
]  # fmt: skip


@pytest.mark.parametrize("make", UNSEEN)
def test_what_cannot_be_looked_into_has_no_signature(
    settings_of: Callable[..., Any], make: Callable[[], Any]
) -> None:
    assert signature(odd(settings_of, extra=make())) is None
    assert signature(odd(settings_of, extra=[{"a": (make(),)}])) is None


def test_classes_that_may_hide_something_have_none(settings_of: Callable[..., Any]) -> None:
    assert signature(odd(settings_of)) is not None
    assert signature(odd(settings_of, Foreign)) is None
    slotted = odd(settings_of, Slotted)
    slotted.slope = 2.0  # type: ignore[attr-defined]
    assert signature(slotted) is None
    marked = torch.ones(1)
    marked.note = "odd"  # type: ignore[attr-defined]
    assert signature(odd(settings_of, extra=marked)) is None
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert signature(odd(settings_of, extra=deep)) is None


def test_a_method_set_on_the_object_is_seen(settings_of: Callable[..., Any]) -> None:
    built = odd(settings_of)
    assert signature(built.replace(rotate=lambda q, k, *rest: (q, k))) is None


def test_parameters_count_by_value(settings_of: Callable[..., Any]) -> None:
    one = models.build(settings_of("fire"), 256).posenc
    other = models.build(settings_of("fire"), 256).posenc
    assert signature(one) == signature(other) is not None
    with torch.no_grad():
        next(other.parameters()).view(-1)[0] += 1e-7
    assert signature(one) != signature(other)
