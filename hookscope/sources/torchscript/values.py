"""What TorchScript's own kinds of values are in Python: instances, named tuples, enums, types."""

from __future__ import annotations

from collections import namedtuple
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hookscope.sources.torchscript.graph import Type

_SIMPLE = {
    "Tensor": Tensor,
    "Int": int,
    "Float": float,
    "Bool": bool,
    "Complex": complex,
    "String": str,
    "DeviceObj": torch.device,
    "Generator": torch.Generator,
}


class Instance:
    """An object of a script class; its methods are those of the subclass made for that class."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of a TorchScript file>"


def new(kind: type[Instance]) -> Instance:
    """An instance whose ``__init__`` has not run, which is a node of its own."""
    return object.__new__(kind)


@cache
def tuple_type(name: str, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """The named tuple of these fields.

    >>> tuple_type("Point", ("x", "y"))(1, 2)
    Point(x=1, y=2)
    """
    return namedtuple(name, fields, rename=True)


def is_instance(value: Any, static: Type, types: tuple[Type, ...]) -> bool:
    """TorchScript's ``isinstance``: whether ``value`` is of one of ``types``.

    The static type decides what a container's contents cannot tell: an empty list in Python is of
    no element type.

    Raises:
        TypeError: neither can tell.
    """
    possible = [one for one in _members(static) if _fits(value, one)]
    answers = {any(_same(one, wanted) for wanted in types) for one in possible}
    if not possible or static.kind == "Any":
        answers = {any(_fits(value, wanted) for wanted in types)}
    if len(answers) > 1:
        raise TypeError(f"an empty container could be any of {[one.text for one in possible]}")
    return answers.pop()


def _members(static: Type) -> tuple[Type, ...]:
    if static.kind == "Optional":
        return (*_members(static.inner[0]), _NONE)
    return static.inner if static.kind == "Union" else (static,)


def _same(one: Type, wanted: Type) -> bool:
    if wanted.kind in ("Union", "Optional"):
        return any(_same(one, member) for member in _members(wanted))
    if wanted.kind in ("AnyList", "AnyTuple"):
        return one.kind == wanted.kind[3:]
    return one.text == wanted.text


def _fits(value: Any, wanted: Type) -> bool:
    kind = wanted.kind
    if kind in ("Optional", "Union"):
        return any(_fits(value, member) for member in _members(wanted))
    if kind in ("List", "AnyList"):
        inner = wanted.inner
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value if inner)
    if kind in ("Tuple", "AnyTuple"):
        return isinstance(value, tuple) and (
            kind == "AnyTuple"
            or (len(value) == len(wanted.inner) and all(map(_fits, value, wanted.inner)))
        )
    if kind == "Dict":
        key, item = wanted.inner
        return isinstance(value, dict) and all(
            _fits(one, key) and _fits(other, item) for one, other in value.items()
        )
    if kind == "None":
        return value is None
    if kind == "Any":
        return True
    if kind == "Number":
        return isinstance(value, int | float | complex)
    expected = _SIMPLE.get(kind)
    if expected is not None:  # a bool is an int in Python alone
        return isinstance(value, expected) and (kind == "Bool" or not isinstance(value, bool))
    return getattr(type(value), "script_name", type(value).__name__) == wanted.text


_NONE = Type("None", "NoneType", (), (), None)
