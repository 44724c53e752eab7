"""The arguments of callers from outside, checked and converted as TorchScript does it.

TorchScript converts every argument that comes from Python to the type in the schema, with lists
and dicts copied, or it raises. Inside a model values have their types, and a list is shared, so
calls that generated code makes pass unchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import Any

from torch import Tensor

from hookscope.errors import InputError
from hookscope.sources.torchscript import private
from hookscope.sources.torchscript.graph import Argument, Type
from hookscope.sources.torchscript.runtime import Instance, new, own_name, tuple_type

# Python types that are of a TorchScript type as they are; ints may be too large, and texts may
# hold what UTF-8 does not.
_AS_THEY_ARE = {"Float": float, "Bool": bool, "Complex": complex, "Tensor": Tensor}
# Items of those lists whose conversion has rules of its own: no text, dict or tensor is one.
_OWN_LISTS = {"Int", "Float", "Bool", "Tensor"}


class ArgumentError(InputError, RuntimeError):
    """An argument does not have the type in the schema; a RuntimeError, as TorchScript raises."""


@dataclass(frozen=True)
class ScriptClasses:
    """The classes of a file. It holds no module, so that modules are freed with their last user.

    Attributes:
        enums: those that the archive defines, by qualified name.
        script_classes: the Python class of each script class, by qualified name.
        attributes: the attributes that graphs read, with their types, by the class's name.
    """

    enums: Mapping[str, type[Enum]]
    script_classes: Mapping[str, type[Instance]]
    attributes: Mapping[str, Mapping[str, Type]]

    def enum_of(self, value: Any, static: Type) -> Any:
        """The member of an enum that a value stands for.

        Raises:
            RuntimeError: there is none.
        """
        try:
            return private.convert_value(value, static)
        except RuntimeError:  # also of a class that is not at hand
            members = self.enums.get(static.text, ())
            name = getattr(value, "name", None)
            found = next((one for one in members if one.name == name), None)
            if found is None or found.value != getattr(value, "value", None):
                raise
            return found

    def instance_of(self, value: Any, static: Type) -> Any:
        """The value as an instance of a script class, with the attributes that graphs read.

        Raises:
            RuntimeError: it lacks one, or has one of another type.
        """
        kind = self.script_classes.get(static.text)
        if kind is None or isinstance(value, kind):
            return value  # without a class, no code reads it
        made = new(kind)
        for name, one in self.attributes[static.text].items():
            if not hasattr(value, name):
                raise RuntimeError(f"no attribute {name}")
            setattr(made, own_name(name), convert_argument(getattr(value, name), one, self))
        return made


class _Running(threading.local):
    """The model whose generated code runs in this thread."""

    place: Any = None


_running = _Running()


def with_converted_arguments(
    function: Callable[..., Any], arguments: Sequence[Argument], classes: ScriptClasses
) -> Callable[..., Any]:
    """The method with its arguments converted where it is called from outside of its model."""
    types = {one.name: one.type for one in arguments}
    names = list(types)

    @wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, own = _running.place, self._hookscope_place
        if before is own:
            return function(self, *args, **kwargs)

        def convert(name: str, value: Any) -> Any:
            try:
                return convert_argument(value, types[name], classes) if name in types else value
            except RuntimeError as error:
                raise _unfit(function, self, types, name, value) from error

        pairs = zip(names, args, strict=False)
        given = [convert(name, value) for name, value in pairs]
        by_name = {name: convert(name, value) for name, value in kwargs.items()}
        _running.place = own
        try:
            return function(self, *given, *args[len(given) :], **by_name)
        finally:
            _running.place = before

    return method


def convert_argument(value: Any, static: Type, classes: ScriptClasses) -> Any:
    """The value as one of its type.

    Raises:
        RuntimeError: it cannot be converted to that type.
    """
    kind, inner = static.kind, static.inner
    if type(value) is _AS_THEY_ARE.get(kind) or (kind == "Optional" and value is None):
        return value
    if kind == "Optional":
        return convert_argument(value, inner[0], classes)
    if kind == "Tensor":
        if value is not None and not isinstance(value, Tensor):
            raise RuntimeError("not a tensor")
        return value
    if kind in ("Any", "Union"):
        return _inferred(value, static, classes)
    if kind == "List" and inner[0].kind not in _OWN_LISTS:
        return [convert_argument(item, inner[0], classes) for item in _made(list, value)]
    if kind == "Dict":
        items = _made(dict, value).items()
        return {
            convert_argument(k, inner[0], classes): convert_argument(v, inner[1], classes)
            for k, v in items
        }
    if kind == "Tuple":
        whole = _made(tuple, value)
        if len(whole) != len(inner):
            raise RuntimeError("a tuple of another length")
        parts = [
            convert_argument(item, one, classes) for item, one in zip(whole, inner, strict=True)
        ]
        return tuple_type(static.text, static.fields)(*parts) if static.fields else tuple(parts)
    if kind == "Enum":
        return classes.enum_of(value, static)
    if kind == "Class" and not static.text.startswith(private.CUSTOM):
        return classes.instance_of(value, static)
    return value if kind in ("Interface", "Class") else private.convert_value(value, static)


def _made(kind: type[Any], value: Any) -> Any:
    try:
        return kind(value)
    except (TypeError, ValueError) as error:
        raise RuntimeError(f"no {kind.__name__}") from error


def _inferred(value: Any, static: Type, classes: ScriptClasses) -> Any:
    """The value as one of the type that PyTorch infers for it."""
    if isinstance(value, Instance):
        return value
    found = private.inferred_type(value)
    if found is None or not private.is_subtype(found, static):
        raise RuntimeError("no such type")
    return convert_argument(value, found, classes)


def _unfit(
    function: Callable[..., Any], owner: Any, types: dict[str, Type], name: str, value: Any
) -> ArgumentError:
    text = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    text = f"{text[:60]}..." if len(text) > 60 else text
    takes = ", ".join(f"{other}: {static.text}" for other, static in types.items())
    return ArgumentError(
        f"Argument {name!r} of {type(owner).__name__}.{function.__name__} must be"
        f" {types[name].text}, but got {type(value).__name__}: {text}.",
        f"TorchScript does not convert it either. The arguments are ({takes}).",
    )
