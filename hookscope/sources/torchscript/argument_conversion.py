"""Arguments of calls from outside a model, checked and converted as in TorchScript.

Inside a model, values have their types and lists are shared, so its own calls convert nothing.
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

# Python types that need no conversion to a TorchScript type. An int may be too large, and a str
# may not be valid UTF-8.
_UNCONVERTED = {"Float": float, "Bool": bool, "Complex": complex, "Tensor": Tensor}
# Item types of lists with their own conversion, which accepts no str, dict or tensor.
_SPECIAL_LISTS = {"Int", "Float", "Bool", "Tensor"}


class ArgumentError(InputError, RuntimeError):
    """An argument does not have the type in the schema; a RuntimeError, as TorchScript raises."""


@dataclass(frozen=True)
class ScriptClasses:
    """The classes of a file. It has no reference to a module, so that modules can be freed."""

    enums: Mapping[str, type[Enum]]
    script_classes: Mapping[str, type[Instance]]
    attributes: Mapping[str, Mapping[str, Type]]

    def enum_of(self, value: Any, static: Type) -> Any:
        """Return the member of an enum for a value."""
        try:
            return private.convert_value(value, static)
        except RuntimeError:  # also if the class is not available
            members = self.enums.get(static.text, ())
            name = getattr(value, "name", None)
            member = next((member for member in members if member.name == name), None)
            if member is None or member.value != getattr(value, "value", None):
                raise
            return member

    def instance_of(self, value: Any, static: Type) -> Any:
        """Return the value as an instance of a script class, with the attributes in graphs."""
        script_class = self.script_classes.get(static.text)
        if script_class is None or isinstance(value, script_class):
            return value  # without a script class, no graph reads it
        instance = new(script_class)
        for name, attribute_type in self.attributes[static.text].items():
            if not hasattr(value, name):
                raise RuntimeError(f"no attribute {name}")
            attribute = convert_argument(getattr(value, name), attribute_type, self)
            setattr(instance, own_name(name), attribute)
        return instance


class _RunningConversion(threading.local):
    """The placement of the model whose generated code runs in this thread."""

    placement: Any = None


_running = _RunningConversion()


def with_converted_arguments(
    function: Callable[..., Any], arguments: Sequence[Argument], classes: ScriptClasses
) -> Callable[..., Any]:
    """Return the method with conversion of its arguments in calls from outside its model."""
    types = {argument.name: argument.type for argument in arguments}
    names = list(types)

    @wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, own = _running.placement, self._hookscope_placement
        if before is own:
            return function(self, *args, **kwargs)

        def convert(name: str, value: Any) -> Any:
            try:
                return convert_argument(value, types[name], classes) if name in types else value
            except RuntimeError as error:
                raise _argument_error(function, self, types, name, value) from error

        pairs = zip(names, args, strict=False)
        positional = [convert(name, value) for name, value in pairs]
        by_name = {name: convert(name, value) for name, value in kwargs.items()}
        _running.placement = own
        try:
            return function(self, *positional, *args[len(positional) :], **by_name)
        finally:
            _running.placement = before

    return method


def convert_argument(value: Any, static: Type, classes: ScriptClasses) -> Any:
    """Return the value converted to a type."""
    kind, inner = static.kind, static.inner
    if type(value) is _UNCONVERTED.get(kind) or (kind == "Optional" and value is None):
        return value
    if kind == "Optional":
        return convert_argument(value, inner[0], classes)
    if kind == "Tensor":
        if value is not None and not isinstance(value, Tensor):
            raise RuntimeError("not a tensor")
        return value
    if kind in ("Any", "Union"):
        return _inferred(value, static, classes)
    if kind == "List" and inner[0].kind not in _SPECIAL_LISTS:
        return [convert_argument(item, inner[0], classes) for item in _construct(list, value)]
    if kind == "Dict":
        pairs = _construct(dict, value).items()
        return {
            convert_argument(k, inner[0], classes): convert_argument(v, inner[1], classes)
            for k, v in pairs
        }
    if kind == "Tuple":
        items = _construct(tuple, value)
        if len(items) != len(inner):
            raise RuntimeError("a tuple of another length")
        parts = [convert_argument(*pair, classes) for pair in zip(items, inner, strict=True)]
        return tuple_type(static.text, static.fields)(*parts) if static.fields else tuple(parts)
    if kind == "Enum":
        return classes.enum_of(value, static)
    if kind == "Class" and not static.text.startswith(private.CUSTOM):
        return classes.instance_of(value, static)
    return value if kind in ("Interface", "Class") else private.convert_value(value, static)


def _construct(container: type[Any], value: Any) -> Any:
    try:
        return container(value)
    except (TypeError, ValueError) as error:
        raise RuntimeError(f"no {container.__name__}") from error


def _inferred(value: Any, static: Type, classes: ScriptClasses) -> Any:
    """The value converted to the type that PyTorch infers for it."""
    if isinstance(value, Instance):
        return value
    inferred = private.inferred_type(value)
    if inferred is None or not private.is_subtype(inferred, static):
        raise RuntimeError("no such type")
    return convert_argument(value, inferred, classes)


def _argument_error(
    function: Callable[..., Any], owner: Any, types: dict[str, Type], name: str, value: Any
) -> ArgumentError:
    text = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    text = f"{text[:60]}..." if len(text) > 60 else text
    takes = ", ".join(f"{other}: {static.text}" for other, static in types.items())
    return ArgumentError(
        f"Argument {name!r} of {type(owner).__name__}.{function.__name__} must be"
        f" {types[name].text}, but got {type(value).__name__}: {text}.",
        f"TorchScript does not convert it. The arguments are ({takes}).",
    )
