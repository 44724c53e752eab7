"""What TorchScript's own kinds of values are in Python: instances, named tuples, enums, types."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from enum import Enum
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor

from hookscope.sources.torchscript import private
from hookscope.sources.torchscript.graph import Type

# A bool is an int in Python alone, so it comes first.
_PLAIN: tuple[tuple[type[Any], Type], ...] = (
    (bool, private.BOOL),
    (int, private.INT),
    (float, private.FLOAT),
    (complex, private.COMPLEX),
    (str, private.STR),
    (type(None), private.NONE),
    (Tensor, private.TENSOR),
    (torch.device, private.DEVICE),
    (torch.Generator, private.GENERATOR),
)
_PLAIN_KINDS = {static.kind for _, static in _PLAIN}
_CONTAINERS: dict[str, type[Any]] = {"List": list, "Dict": dict, "Tuple": tuple}


class Instance:
    """An object of a script class; its methods are those of the subclass made for that class."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of a TorchScript file>"


def new(kind: type[Instance]) -> Instance:
    """An instance whose ``__init__`` has not run, which is a node of its own."""
    return object.__new__(kind)


@cache
def tuple_type(name: str, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """The named tuple of these fields; ``name`` may be qualified.

    >>> tuple_type("__torch__.Point", ("x", "y"))(1, 2)
    Point(x=1, y=2)
    """
    return namedtuple(name.rpartition(".")[2], fields, rename=True)


def is_instance(
    value: Any, static: Type, types: tuple[Type, ...], known: Mapping[str, Type]
) -> bool:
    """TorchScript's ``isinstance``: whether the type of the value is a subtype of one of ``types``.

    A TorchScript value carries its type. Of a Python list or dict the static type says it, and
    where that is ``Any``, its items, and ``known``: the types of the program that it may have.

    Raises:
        TypeError: the value may have several types, with different answers.
    """
    plain = _plain(value)
    possible = possible_types(value, static, known) if plain is None else [plain]
    answers = {any(private.is_subtype(one, wanted) for wanted in types) for one in possible}
    if len(answers) != 1:
        texts = sorted({one.text for one in possible}) or [static.text]
        raise TypeError(
            f"isinstance cannot be decided: {type(value).__name__} may be any of {texts}"
        )
    return answers.pop()


def possible_types(value: Any, static: Type, known: Mapping[str, Type]) -> list[Type]:
    """The types that TorchScript may give a value of this static type; none if it is not of it."""
    kind, inner = static.kind, static.inner
    if kind in ("Optional", "Union"):
        members = (*inner, private.NONE) if kind == "Optional" else inner
        return [one for member in members for one in possible_types(value, member, known)]
    plain = _plain(value)
    if kind in _PLAIN_KINDS or (kind == "Number" and plain is not None):
        fits = plain is not None and (plain.kind == kind or kind == "Number")
        return [plain] if plain is not None and fits else []
    if kind in ("Class", "Enum"):
        return [static] if _is_of_class(value, static) else []
    free = kind in ("Any", "AnyList", "AnyTuple")
    if type(value) is tuple and (free or (kind == "Tuple" and not static.fields)):
        items = inner if kind == "Tuple" else (private.ANY,) * len(value)
        if len(items) != len(value):
            return []
        parts = [possible_types(*pair, known) for pair in zip(value, items, strict=True)]
        return [private.tuple_of(chosen) for chosen in product(*parts)]
    if kind in _CONTAINERS:
        return [static] if _holds(value, static, known) else []
    if not free:
        return [static]  # an interface, a future: nothing else is known of it
    if plain is not None:
        return [plain]
    found = [one for other in known.values() for one in possible_types(value, other, known)]
    inferred = private.inferred(value) if isinstance(value, list | dict) else None
    return found if inferred is None else [*found, inferred]


def _plain(value: Any) -> Type | None:
    """The type of what is no container, enum or instance; None for those."""
    if isinstance(value, Enum):  # which may be a kind of int in Python
        return None
    return next((static for kind, static in _PLAIN if isinstance(value, kind)), None)


def _holds(value: Any, static: Type, known: Mapping[str, Type]) -> bool:
    """Whether a list, dict or named tuple may be of this type, as far as its items tell."""
    if static.fields:
        return type(value) is tuple_type(static.text, static.fields)
    if not isinstance(value, _CONTAINERS[static.kind]):
        return False
    columns = (value.keys(), value.values()) if isinstance(value, dict) else (value,)
    return all(
        possible_types(item, one, known)
        for column, one in zip(columns, static.inner, strict=True)
        for item in column
    )


def _is_of_class(value: Any, static: Type) -> bool:
    if isinstance(value, Instance):
        return bool(getattr(type(value), "script_name", "") == static.text)
    if static.text.startswith(private.CUSTOM):
        return private.custom_class(value) == static.text
    return isinstance(value, Enum) and type(value).__name__ == static.name
