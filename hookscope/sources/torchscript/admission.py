"""What a caller hands a model, as TorchScript takes it: its own lists and dicts, numbers converted.

Only calls from outside pass here. Inside a model values have their types, and a list is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from hookscope.sources.torchscript.graph import Argument, Type
from hookscope.sources.torchscript.values import is_instance, tuple_type

_NUMBERS: dict[str, Callable[[Any], Any]] = {"Int": int, "Float": float, "Complex": complex}
_TOUCHED = {*_NUMBERS, "List", "Dict", "Tuple", "Any"}


def admitting(function: Callable[..., Any], arguments: Sequence[Argument]) -> Callable[..., Any]:
    """The method with its arguments converted; itself where there is nothing to convert."""
    touched = {one.name: one.type for one in arguments if _is_touched(one.type)}
    if not touched:
        return function
    names = [one.name for one in arguments]

    @wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = zip(names, args, strict=False)
        given = [admitted(one, touched[name]) if name in touched else one for name, one in pairs]
        by_name = {
            name: admitted(one, touched[name]) if name in touched else one
            for name, one in kwargs.items()
        }
        return function(self, *given, *args[len(given) :], **by_name)

    return method


def admitted(value: Any, static: Type) -> Any:
    """The value as one of its type; as it is where it cannot be one.

    >>> number = Type("Float", "float", (), (), None)
    >>> admitted((1, 2), Type("List", "List[float]", (number,), (), None))
    [1.0, 2.0]
    """
    kind, inner = static.kind, static.inner
    if kind in ("Optional", "Union"):
        if value is None or (kind == "Union" and is_instance(value, _ANY, inner)):
            return admitted(value, _ANY)
        return admitted(value, inner[0]) if kind == "Optional" else value
    if kind in _NUMBERS and isinstance(value, bool | int | float) and _widens(value, kind):
        return _NUMBERS[kind](value)
    if kind == "Any" and isinstance(value, list | dict):
        kind, inner = type(value).__name__.title(), (_ANY, _ANY)
    if kind == "List" and isinstance(value, list | tuple):
        return [admitted(item, inner[0]) for item in value]
    if kind == "Dict" and isinstance(value, dict):
        return {admitted(k, inner[0]): admitted(v, inner[1]) for k, v in value.items()}
    if kind == "Tuple" and isinstance(value, tuple) and len(value) == len(inner):
        parts = [admitted(item, one) for item, one in zip(value, inner, strict=True)]
        return tuple_type(static.name, static.fields)(*parts) if static.fields else tuple(parts)
    return value


def _widens(value: Any, kind: str) -> bool:
    """Whether the type holds every such number: a float is no int."""
    return kind == "Complex" or isinstance(value, bool | int) or kind == "Float"


def _is_touched(static: Type) -> bool:
    return static.kind in _TOUCHED or any(map(_is_touched, static.inner))


_ANY = Type("Any", "Any", (), (), None)
