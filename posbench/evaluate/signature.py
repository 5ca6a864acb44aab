"""What an encoding computes, as a value: encodings of one signature compute the same.

Rescalings often give one and the same encoding: an automatic factor up to the training length, or
one rule that is a case of another. A signature is made of the classes and of all attributes, by
value: numbers and tensors bit by bit, containers and parts from the inside, and which of them are
one object. No name of a scheme is looked at.

Two encodings that differ must never get one signature, so whatever might hold something unseen has
none: functions, arrays, hooks, classes with slots or with a metaclass, and every class that is not
from this package (a plug-in may keep things outside of its attributes).
"""

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from posbench.encodings.base import PositionalEncoding

#: types whose values are equal only if they are the same, down to the last bit
_PLAIN = (type(None), bool, int, str, bytes)


class _Unseen(Exception):
    """A value that cannot be looked into."""


def signature(encoding: PositionalEncoding) -> Hashable | None:
    """The signature, or None where there is something that cannot be looked into."""
    try:
        return _seen(encoding, {})
    except (_Unseen, RecursionError):
        return None


def _seen(value: Any, met: dict[int, int]) -> Hashable:
    """A value from the inside; `met` numbers the objects met so far."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        return kind, struct.pack("d", value)
    if kind is tuple:
        return kind, tuple(_seen(item, met) for item in value)
    if kind in (set, frozenset) and all(type(item) is str for item in value):
        return kind, tuple(sorted(value))
    if id(value) in met:
        return "again", met[id(value)]
    met[id(value)] = len(met)
    if kind is list:
        return kind, tuple(_seen(item, met) for item in value)
    if kind in (dict, OrderedDict):
        return kind, tuple((_seen(k, met), _seen(v, met)) for k, v in value.items())
    if kind in (torch.Tensor, nn.Parameter):
        return kind, _numbers(value)
    attributes = getattr(value, "__dict__", None)
    if not all(map(_open, kind.__mro__)) or type(attributes) is not dict:
        raise _Unseen
    if not all(type(name) is str for name in attributes):
        raise _Unseen
    own = [name for name in sorted(attributes) if not _inherited(kind, name, attributes[name])]
    return kind, tuple((name, _seen(attributes[name], met)) for name in own)


def _inherited(cls: type, name: str, value: Any) -> bool:
    """Whether an attribute is what the class has under that name anyway."""
    default = getattr(cls, name, ...)
    return type(value) in _PLAIN and type(default) is type(value) and bool(default == value)


def _open(cls: type) -> bool:
    """Whether objects of a class keep what they are in their attributes."""
    if cls is object or cls is nn.Module:
        return True
    ours = cls.__module__.partition(".")[0] == "posbench"
    known = ours or (cls.__module__.startswith("torch.nn.modules.") and issubclass(cls, nn.Module))
    return known and type(cls) is type and not vars(cls).get("__slots__")


def _numbers(tensor: torch.Tensor) -> Hashable:
    """Type, place and shape of a tensor, and a hash of its bits."""
    plain = tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()
    if not plain or tensor.device.type == "meta" or vars(tensor):
        raise _Unseen
    bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    facts = (str(tensor.dtype), str(tensor.device), tuple(tensor.shape), tensor.stride())
    return *facts, tensor.requires_grad, hashlib.sha256(bits).digest()
