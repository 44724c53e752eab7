"""Arguments for a model's class or factory, converted to the types of its parameters."""

from __future__ import annotations

import ast
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from hookscope.errors import RequestError
from hookscope.files.shell_words import quote_word
from hookscope.specs.value_readers import CommandLineText

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_CONTAINERS = {list: "[1,2]", tuple: "[1,2]", set: "[1,2]", dict: '{"a":1}'}


def convert_arguments(target: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with the text from a command line converted to the types of ``target``."""
    hints = _hints(target)
    return {
        key: _convert(key, str(value), hints.get(key))
        if isinstance(value, CommandLineText)
        else value
        for key, value in values.items()
    }


def format_arguments(values: Mapping[str, Any], positional: Sequence[Any] = ()) -> str:
    """Return arguments as in a call: ``5, width=8, act='relu'``."""
    named = (f"{key}={value!r}" for key, value in values.items())
    return ", ".join([*map(repr, positional), *named]) or "no arguments"


def advise_on_commas(values: Mapping[str, Any]) -> str:
    """Return the advice to repeat the option if a text contains further pairs, else nothing."""
    for key, value in values.items():
        if isinstance(value, str) and re.fullmatch(r"[^,=]*(,\s*[^\W\d]\w*=[^,=]*)+", value):
            pairs = [pair.strip() for pair in f"{key}={value}".split(",")]
            options = " ".join(f"--model-arg {quote_word(pair)}" for pair in pairs)
            return f"Repeat --model-arg for each argument: {options}"
    return ""


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    function = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        return typing.get_type_hints(function)
    except Exception:  # an annotation may name what exists for type checkers only
        return {}


def _convert(key: str, text: str, hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _convert_any(key, text, typing.get_args(hint))
    if origin is Literal:
        for choice in typing.get_args(hint):
            if text == str(choice):
                return choice
        raise _conversion_error(key, text, "one of " + ", ".join(map(str, typing.get_args(hint))))
    if hint is str:
        return text
    if hint is bool:
        if text.lower() in (*_TRUE, *_FALSE):
            return text.lower() in _TRUE
        raise _conversion_error(key, text, "true or false")
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            raise _conversion_error(
                key, text, "an integer" if hint is int else "a number"
            ) from None
    value = _literal(text)
    container = origin or hint
    if container in _CONTAINERS:
        if not isinstance(value, (dict if container is dict else (list, tuple, set))):
            raise _conversion_error(
                key, text, f"a {container.__name__}, such as {_CONTAINERS[container]}"
            )
        return container(value)
    return value


def _convert_any(key: str, text: str, hints: tuple[Any, ...]) -> Any:
    """The value of the first type that accepts the text; ``str`` is last, as it accepts any."""
    if type(None) in hints and text.lower() in ("none", "null"):
        return None
    for hint in sorted(hints, key=lambda each: each is str):
        if hint is not type(None):
            try:
                return _convert(key, text, hint)
            except RequestError:
                continue
    names = ["none" if x is type(None) else getattr(x, "__name__", str(x)) for x in hints]
    raise _conversion_error(key, text, " or ".join(names))


def _literal(text: str) -> Any:
    """The text read as JSON, else as a Python literal, else the text itself."""
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return text


def _conversion_error(key: str, text: str, expected: str) -> RequestError:
    return RequestError(
        f"{key}={text} is not valid: {key} must be {expected}.", advise_on_commas({key: text})
    )
