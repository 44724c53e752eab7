"""What was read from JSON held against the types that it is to have, before anything relies on it.

A file may be damaged and still be JSON: a name that is a number, a list where a mapping belongs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

_LARGEST = 1 << 1023  # of whole numbers that stand for a float


def misfit(value: Any, hint: Any, name: str = "it") -> str:
    """Return what is wrong with ``value``, the first thing found; empty if it is of the type.

    Args:
        value: plain values as ``json`` makes them.
        hint: ``str``, ``bool``, ``int``, ``float``, None, ``Any``, ``list[X]``, ``tuple[X, ...]``,
            ``dict[str, X]``, a ``TypedDict``, a ``Literal``, or a union of these. A list may stand
            for a tuple, and a whole number for a float. Of a ``TypedDict`` further keys are let be.
        name: what the value is called in the answer.

    Example:
        >>> misfit({"shape": [1, "3"]}, dict[str, list[int]])
        "it.shape.1 is '3'"
    """
    kind = get_origin(hint) or hint
    if is_typeddict(kind):
        return _of_keys(value, kind, name)
    if kind in (Union, UnionType):
        wrong = [misfit(value, each, name) for each in get_args(hint)]
        return "" if "" in wrong else max(wrong, key=len)  # the one that fits furthest into it
    if kind in (list, tuple) and isinstance(value, list | tuple):
        each = get_args(hint)[0]
        return _first((item, each, f"{name}.{n}") for n, item in enumerate(value))
    if kind is dict and isinstance(value, dict):
        each = get_args(hint)[1]
        return _first((item, each, f"{name}.{key}") for key, item in value.items())
    return "" if _is_plain(value, hint) else f"{name} is {repr(value)[:80]}"


def misfit_fields(values: dict[str, Any], kind: type, name: str = "it") -> str:
    """Return what is wrong with the values of the fields of ``kind``, as ``misfit`` does."""
    hints = hints_of(kind)
    return _first((value, hints.get(key, Any), f"{name}.{key}") for key, value in values.items())


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a class, by name."""
    return get_type_hints(kind)


def _of_keys(value: Any, kind: Any, name: str) -> str:
    if not isinstance(value, dict):
        return f"{name} is {repr(value)[:80]}"
    lacking = sorted(kind.__required_keys__ - value.keys())
    if lacking:
        return f"{name} has no {lacking[0]}"
    known = hints_of(kind)
    return misfit_fields({key: item for key, item in value.items() if key in known}, kind, name)


def _is_plain(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if hint in (None, NoneType):
        return value is None
    if isinstance(value, bool):
        return hint is bool
    if hint is float and isinstance(value, int):
        return abs(value) < _LARGEST
    return hint in (str, int, float) and isinstance(value, hint)


def _first(found: Iterable[tuple[Any, Any, str]]) -> str:
    return next((wrong for each in found if (wrong := misfit(*each))), "")
