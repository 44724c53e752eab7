r"""JSON that every parser reads, and checks of the types of values that were read from JSON.

NaN and infinities become strings, and lone surrogates, which UTF-8 cannot encode, escapes. A
damaged file may still be valid JSON, so the types of its values are checked before they are used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from hookscope.escapes import encodable

MOST_LEVELS = 100  # of lists and objects in each other: more would overflow the stack
MOST_VALUES = 8_000_000  # in a table of tensors, which has about a dozen for each
_LARGEST_COUNT = 1 << 63
_LARGEST_INTEGER = 1 << 1023  # the largest integer that is accepted for a float
Number = float | Literal["NaN", "Infinity", "-Infinity"]  # as ``dumps`` writes a float


def dumps(
    value: Any, *, indent: int | None = None, sort_keys: bool = False, surrogates: bool = False
) -> str:
    """Return ``value`` as strict JSON text; ``NaN``, ``Infinity`` and ``-Infinity`` as strings.

    With ``surrogates`` lone surrogates are not escaped, so that a path whose bytes are not UTF-8 is
    read back as the same path.

    >>> dumps({"mean": float("nan"), "max": float("inf"), "shape": (1, 2)})
    '{"mean": "NaN", "max": "Infinity", "shape": [1, 2]}'
    """
    encoder = _encoder(indent, sort_keys)
    if surrogates:
        try:
            return encoder.encode(value)
        except ValueError:  # a NaN or an infinity
            pass
    return encoder.encode(_plain(value, str if surrogates else encodable))


@cache  # json.dumps makes one for each call
def _encoder(indent: int | None, sort_keys: bool) -> json.JSONEncoder:
    return json.JSONEncoder(allow_nan=False, indent=indent, sort_keys=sort_keys)


def loads(data: str | bytes) -> Any:
    """Parse JSON of a file that may be crafted.

    Raises:
        ValueError: it is not valid, or is nested too deeply.
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    marks: Any = ("[", "{") if isinstance(data, str) else (b"[", b"{")
    if sum(map(data.count, marks)) > MOST_LEVELS:
        _check_levels(value)
    return value


_TOO_DEEP = f"it has more than {MOST_LEVELS} lists or objects in each other"


def _check_levels(value: Any) -> None:
    level = [value]
    for _ in range(MOST_LEVELS):
        parts = (one.values() if isinstance(one, dict) else one for one in level)
        level = [inner for part in parts for inner in part if isinstance(inner, dict | list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def parse_table(data: bytes, object_pairs_hook: Callable[[Any], Any] | None = None) -> Any:
    """Parse JSON of a file that may be crafted: an empty list takes 2 bytes, and 60 in memory."""
    if not can_parse_table(data):
        raise ValueError(f"it has more than {MOST_VALUES:,} values")
    return json.loads(data, object_pairs_hook=object_pairs_hook)


def can_parse_table(data: bytes) -> bool:
    """Whether JSON has as few values as ``parse_table`` accepts."""
    return sum(data.count(mark) for mark in (b",", b"[", b"{")) <= MOST_VALUES


def parse_number(value: float | int | str | None) -> float | int | None:
    """Parse a number that ``dumps`` may have written as a string.

    >>> parse_number("-Infinity"), parse_number(2), parse_number(None)
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


def type_error(value: Any, hint: Any, name: str = "it") -> str:
    """Return the first error in the type of ``value``; empty if it has the type ``hint``.

    >>> type_error({"shape": [1, "3"]}, dict[str, list[int]])
    "it.shape.1 is '3'"
    """
    if hint is Any:
        return ""
    kind = get_origin(hint) or hint
    if is_typeddict(kind):
        return _typed_dict_error(value, kind, name)
    if kind in (Union, UnionType):
        errors = [type_error(value, member, name) for member in get_args(hint)]
        return "" if "" in errors else max(errors, key=len)  # the error that is nested deepest
    if kind in (list, tuple) and isinstance(value, list | tuple):
        item_type = get_args(hint)[0]
        return _first_error((item, item_type, f"{name}.{n}") for n, item in enumerate(value))
    if kind is dict and isinstance(value, dict):
        item_type = get_args(hint)[1]
        if item_type is Any:  # there may be millions of lines of a table
            return ""
        return _first_error((item, item_type, f"{name}.{key}") for key, item in value.items())
    return "" if _is_plain(value, hint) else f"{name} is {repr(value)[:80]}"


def fields_type_error(values: dict[str, Any], kind: type, name: str = "it") -> str:
    """Return the first error in the types of the fields of ``kind``; empty if there is none."""
    types = field_types(kind)
    return _first_error((v, types.get(key, Any), f"{name}.{key}") for key, v in values.items())


@cache
def field_types(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a class, by name."""
    return get_type_hints(kind)


def _typed_dict_error(value: Any, kind: Any, name: str) -> str:
    if not isinstance(value, dict):
        return f"{name} is {repr(value)[:80]}"
    missing = sorted(kind.__required_keys__ - value.keys())
    if missing:
        return f"{name} has no {missing[0]}"
    known = field_types(kind)
    return fields_type_error({key: item for key, item in value.items() if key in known}, kind, name)


def _is_plain(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if hint in (None, NoneType):
        return value is None
    if isinstance(value, bool):
        return hint is bool
    if isinstance(value, int):
        return (hint is int and abs(value) < _LARGEST_COUNT) or (
            hint is float and abs(value) < _LARGEST_INTEGER
        )
    return hint in (str, float) and isinstance(value, hint)


def _first_error(checks: Iterable[tuple[Any, Any, str]]) -> str:
    return next((error for check in checks if (error := type_error(*check))), "")
