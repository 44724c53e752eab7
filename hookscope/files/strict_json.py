r"""JSON that every parser reads: NaN and infinities, which JSON has no numbers for, become strings.

Lone surrogates, which UTF-8 has no bytes for, are written as they are shown: ``\udc80``.

Keys come out in the order given, or sorted: the same value is always the same text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from hookscope.files.escapes import encodable

Number = float | Literal["NaN", "Infinity", "-Infinity"]  # as ``dumps`` writes a float


def dumps(
    value: Any, *, indent: int | None = None, sort_keys: bool = False, surrogates: bool = False
) -> str:
    """Return ``value`` as strict JSON text; ``NaN``, ``Infinity`` and ``-Infinity`` as strings.

    With ``surrogates`` lone surrogates stay what they are, so that a path whose bytes are no UTF-8
    is read back as the same path.

    >>> dumps({"mean": float("nan"), "max": float("inf"), "shape": (1, 2)})
    '{"mean": "NaN", "max": "Infinity", "shape": [1, 2]}'
    """
    plain = _plain(value, str if surrogates else encodable)
    return json.dumps(plain, allow_nan=False, indent=indent, sort_keys=sort_keys)


def parse_number(value: float | int | str | None) -> float | int | None:
    """Read back a number that ``dumps`` may have written as a string.

    >>> number("-Infinity"), number(2), number(None)
    (-inf, 2, None)
    """
    return float(value) if isinstance(value, str) else value


def _plain(value: Any, text: Callable[[str], str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {text(str(key)): _plain(item, text) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item, text) for item in value]
    if isinstance(value, str):
        return text(value)
    return value


_LARGEST = 1 << 1023  # of whole numbers that stand for a float


def type_error(value: Any, hint: Any, name: str = "it") -> str:
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
        wrong = [type_error(value, each, name) for each in get_args(hint)]
        return "" if "" in wrong else max(wrong, key=len)  # the one that fits furthest into it
    if kind in (list, tuple) and isinstance(value, list | tuple):
        each = get_args(hint)[0]
        return _first((item, each, f"{name}.{n}") for n, item in enumerate(value))
    if kind is dict and isinstance(value, dict):
        each = get_args(hint)[1]
        return _first((item, each, f"{name}.{key}") for key, item in value.items())
    return "" if _is_plain(value, hint) else f"{name} is {repr(value)[:80]}"


def fields_type_error(values: dict[str, Any], kind: type, name: str = "it") -> str:
    """Return what is wrong with the values of the fields of ``kind``, as ``misfit`` does."""
    hints = field_types(kind)
    return _first((value, hints.get(key, Any), f"{name}.{key}") for key, value in values.items())


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a class, by name."""
    return get_type_hints(kind)


def _of_keys(value: Any, kind: Any, name: str) -> str:
    if not isinstance(value, dict):
        return f"{name} is {repr(value)[:80]}"
    lacking = sorted(kind.__required_keys__ - value.keys())
    if lacking:
        return f"{name} has no {lacking[0]}"
    known = field_types(kind)
    return fields_type_error({key: item for key, item in value.items() if key in known}, kind, name)


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
    return next((wrong for each in found if (wrong := type_error(*each))), "")
