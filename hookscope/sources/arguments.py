"""Arguments for a model's class or factory: typed by the parameter they are for."""

from __future__ import annotations

import ast
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union

from hookscope.errors import RequestError
from hookscope.specs.model_spec import CommandLineText

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_CONTAINERS = {list: "[1,2]", tuple: "[1,2]", set: "[1,2]", dict: '{"a":1}'}


def convert_arguments(target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` with the values typed on a command line made into what ``target`` expects.

    A value follows the annotation of its parameter. Where that tells nothing, it is read as JSON
    (``true``, ``null``, ``[1, 2]``), else as a Python literal, else it stays text. Values that come
    from Python stay as they are.

    Raises:
        RequestError: a value cannot be read as its parameter's type.

    Example:
        >>> def build(width: int, act: str, scale=1.0): ...
        >>> settle(build, {"width": Typed("8"), "act": Typed("1"), "scale": Typed("0.5")})
        {'width': 8, 'act': '1', 'scale': 0.5}
    """
    hints = _hints(target)
    return {
        key: _read(key, str(value), hints.get(key)) if isinstance(value, CommandLineText) else value
        for key, value in given.items()
    }


def format_arguments(given: Mapping[str, Any]) -> str:
    """Write arguments as a call would: ``width=8, act='relu'``."""
    return ", ".join(f"{key}={value!r}" for key, value in given.items()) or "no arguments"


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    function = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        return typing.get_type_hints(function)
    except Exception:  # an annotation that names what exists for type checkers alone
        return {}


def _read(key: str, text: str, hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _read_any(key, text, typing.get_args(hint))
    if origin is Literal:
        for choice in typing.get_args(hint):
            if text == str(choice):
                return choice
        raise _refusal(key, text, "one of " + ", ".join(map(str, typing.get_args(hint))))
    if hint is str:
        return text
    if hint is bool:
        if text.lower() in (*_TRUE, *_FALSE):
            return text.lower() in _TRUE
        raise _refusal(key, text, "true or false")
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            raise _refusal(key, text, "a whole number" if hint is int else "a number") from None
    value = _literal(text)
    container = origin or hint
    if container in _CONTAINERS:
        if not isinstance(value, (dict if container is dict else (list, tuple, set))):
            raise _refusal(key, text, f"a {container.__name__}, such as {_CONTAINERS[container]}")
        return container(value)
    return value


def _read_any(key: str, text: str, hints: tuple[Any, ...]) -> Any:
    """The value as the first type that can hold it; text comes last, since it holds anything."""
    if type(None) in hints and text.lower() in ("none", "null"):
        return None
    for hint in sorted(hints, key=lambda each: each is str):
        if hint is not type(None):
            try:
                return _read(key, text, hint)
            except RequestError:
                continue
    names = ["none" if x is type(None) else getattr(x, "__name__", str(x)) for x in hints]
    raise _refusal(key, text, " or ".join(names))


def _literal(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return text


def _refusal(key: str, text: str, wanted: str) -> RequestError:
    return RequestError(f"{text!r} does not do for {key}: it takes {wanted}.")
