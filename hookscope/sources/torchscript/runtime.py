"""What generated functions call: the parts of TorchScript's language that Python has otherwise."""

from __future__ import annotations

import builtins
import re
import threading
import warnings
from collections import namedtuple
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.sources.torchscript import private
from hookscope.sources.torchscript.graph import Type
from hookscope.sources.torchscript.operators import LEAST

FORWARD = re.compile(r"forward(\d+|__\d+)?")  # the methods by which a module is called

# What modules have by themselves, so that an attribute or method of that name goes by another.
_TAKEN = frozenset(dir(nn.Module())) - {"training"}


def own_name(name: str) -> str:
    """The name under which a module has an attribute or a method that its file calls ``name``.

    >>> own_name("scale"), own_name("type")
    ('scale', '_hookscope_own_type')
    """
    special = name.startswith("__") and name not in ("__len__", "__contains__")
    return f"_hookscope_own_{name}" if name in _TAKEN or special else name


def wrap(number: int) -> int:
    """The 64-bit integer that has the same low bits.

    >>> wrap(2**63), wrap(-(2**63) - 1)
    (-9223372036854775808, 9223372036854775807)
    """
    return (number - LEAST) % 2**64 + LEAST


def unwrap_optional(value: Any) -> Any:
    """The value, which must not be None."""
    if value is None:
        raise RuntimeError("Unwrapping null optional")
    return value


def pop_first(mapping: dict[Any, Any]) -> tuple[Any, Any]:
    """Take the first item out of a dict, as TorchScript's ``popitem`` does."""
    key = next(iter(mapping))
    return key, mapping.pop(key)


def concat_in_place(first: list[Any], second: list[Any]) -> list[Any]:
    """``first += second``; the list itself grows, whoever else holds it."""
    first.extend(second)
    return first


def repeated(items: list[Any], times: int) -> list[Any]:
    """``items * times``, which TorchScript refuses for a negative number."""
    if times < 0:
        raise ValueError(f"a list cannot be repeated {times} times")
    return items * times


def holds(items: list[Any], sought: Any) -> bool:
    """Whether a list has an equal item; NaN equals nothing, though Python's ``in`` finds it."""
    return any(item == sought for item in items)


def remove(items: list[Any], sought: Any) -> None:
    """Take the first equal item out of a list."""
    place = next((place for place, item in enumerate(items) if item == sought), None)
    if place is None:
        raise ValueError("list.remove(x): x not in list")
    del items[place]


def sort_floats(items: list[float], reverse: bool) -> None:
    """Sort in place as PyTorch does, which puts NaN and the two zeros where Python does not."""
    items[:] = private.sort_floats()(items, reverse)


def same_lists(first: list[Any], second: list[Any]) -> bool:
    """Whether two lists are one, or have equal items: those are not asked what they are."""
    if first is second:
        return True
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(bool(one == other) for one, other in pairs)


def to_list(tensor: Tensor, depth: int, kind: int) -> Any:
    """The tensor as nested lists; as deep as the script says, and of the type it says."""
    if tensor.dtype not in _LISTED[kind] or tensor.ndim != depth:
        raise TypeError(
            f"Output annotation of tolist() does not match: a tensor of {tensor.dtype}"
            f" with {tensor.ndim} dimensions"
        )
    return tensor.tolist()


# By the numbers that stand for the types of elements in a graph.
_LISTED: dict[int, tuple[torch.dtype, ...]] = {
    0: (torch.int64,),
    1: (torch.float32, torch.float64),
    2: (torch.bool,),
    3: (torch.complex64, torch.complex128),
}


def module_at(container: Any, index: int | str) -> Any:
    """An element of a ModuleList by its index, or of a ModuleDict by its key."""
    modules = container._modules
    if isinstance(index, str):
        return modules[index]
    if index < 0:  # as TorchScript has it, for modules alone
        raise IndexError(f"there is no module {index}")
    return list(modules.values())[index]


class Awaitable:
    """A call that runs when its result is first needed; without a function, a result."""

    def __init__(self, function: Callable[..., Any] | None, *args: Any) -> None:
        self._function, self._args = function, args

    def wait(self) -> Any:
        """The result."""
        if self._function is not None:
            self._args = (self._function(*self._args),)
            self._function = None
        return self._args[0]


def uninterpretable(text: str) -> None:
    """Stop where the graph does what hookscope cannot do."""
    raise NotImplementedError(text)


def raise_error(message: str, kind: str | None = None) -> None:
    """Raise what a script raises: Python's own exception where it names one."""
    if kind is None and message.startswith("AssertionError: "):  # of an assert with a message
        raise AssertionError(message.removeprefix("AssertionError: "))
    found = getattr(builtins, (kind or "").removeprefix("builtins."), None)
    if isinstance(found, type) and issubclass(found, Exception):
        raise found(message)
    raise RuntimeError(f"{kind}: {message}" if kind else message)


class _Due(threading.local):
    """The method that the next call of a module is to run, by the module's id; one set a thread."""

    def __init__(self) -> None:
        self.methods: dict[int, str] = {}


_due = _Due()


def call_as(module: Any, name: str, *args: Any) -> Any:
    """Call a module, hooks and all, with another of its methods in place of ``forward``.

    A module that a traced model calls twice has ``forward1`` for the second call, one with an
    overloaded ``forward`` has ``forward__0``; both are calls of the module.
    """
    _due.methods[id(module)] = name
    try:
        return module(*args)
    finally:
        _due.methods.pop(id(module), None)


def forward_by_name(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The ``forward`` of a module with several: the one that the call is to run, else its own."""
    name = _due.methods.pop(id(self), None)
    if name is not None:
        return self._hookscope_methods[name](self, *args)
    own = self._hookscope_methods.get(self._hookscope_method)
    if own is None:
        others = ", ".join(self._hookscope_methods)
        raise NotImplementedError(f"it has no forward of its own, but {others or 'no method'}")
    return own(self, *args, **kwargs)


def warn(text: str, stacklevel: int = 2) -> None:
    """``warnings.warn`` from a script."""
    warnings.warn(text, stacklevel=stacklevel + 1)


def placed(module: Any, constant: torch.device | Tensor) -> torch.device | Tensor:
    """A device that a file names, or a tensor that it holds, where the model is now."""
    place = getattr(module, "_hookscope_place", None)
    if place is None:
        return constant
    there: torch.device | Tensor = place.at_home(constant)
    return there


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
    inferred = private.inferred_type(value) if isinstance(value, list | dict) else None
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


class DevicePlacement:
    """The device a model was saved on, and the one it is on now.

    A traced graph holds the device it was traced on as a constant, and so would make tensors there
    for ever: that device stands for wherever the parameters are. One object is shared by all
    modules of a model; a deep copy of it looks at the parameters of the model's copy.

    Args:
        home: where the model was when it was saved.
        model: where it is now is seen from the first parameter or buffer in it.
    """

    def __init__(self, home: torch.device, model: nn.Module) -> None:
        self.home = home
        holders = (module for module in model.modules() if module._parameters or module._buffers)
        self.owner = next(holders, None)

    def now(self) -> torch.device:
        """Where the model is."""
        if self.owner is None:
            return self.home
        held = {**self.owner._parameters, **self.owner._buffers}
        return next((tensor.device for tensor in held.values() if tensor is not None), self.home)

    def device(self, named: torch.device) -> torch.device:
        """The device that ``named`` in the graph means now."""
        same = named.type == self.home.type and (named.index or 0) == (self.home.index or 0)
        return self.now() if same else named

    def at_home(self, constant: torch.device | Tensor) -> torch.device | Tensor:
        """A device that the graph names, or a tensor that it holds, where the model is now."""
        if not isinstance(constant, Tensor):
            return self.device(constant)
        there = self.device(constant.device)
        return constant if there == constant.device else constant.to(there)


# Under these names the texts of operators and nodes call them.
HELPERS: dict[str, Any] = {
    made.__name__: made
    for made in (
        *(new, is_instance, wrap, unwrap_optional, pop_first, concat_in_place),
        *(repeated, holds, remove, sort_floats, same_lists, to_list, module_at),
        *(uninterpretable, raise_error, call_as, warn, placed, Awaitable),
    )
}
