"""The runtime of generated functions: values and operations that differ from those of Python."""

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
from hookscope.sources.torchscript.operators import MIN_INT

FORWARD = re.compile(r"forward(\d+|__\d+)?")  # the methods that a call of a module can run

# The attributes of every module. An attribute or method of such a name is renamed.
_RESERVED = frozenset(dir(nn.Module())) - {"training"}


def own_name(name: str) -> str:
    """Return the name in Python of an attribute or a method called ``name`` in its file."""
    special = name.startswith("__") and name not in ("__len__", "__contains__")
    return f"_hookscope_own_{name}" if name in _RESERVED or special else name


# A bool is an int in Python, so it comes first.
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
    """An object of a script class. Each script class has a subclass with its methods."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of a TorchScript file>"


def new(cls: type[Instance]) -> Instance:
    """Return an instance without its ``__init__``, which is another node."""
    return object.__new__(cls)


@cache
def tuple_type(name: str, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return the named tuple of these fields; ``name`` may be qualified."""
    return namedtuple(name.rpartition(".")[2], fields, rename=True)


def is_instance(
    value: Any, static: Type, types: tuple[Type, ...], known: Mapping[str, Type]
) -> bool:
    """Whether the type of a value is a subtype of one of ``types``, as in TorchScript."""
    # A list or dict has its static type. If that is ``Any``, its type follows from its items.
    plain = _plain(value)
    possible = possible_types(value, static, known) if plain is None else [plain]
    answers = {any(private.is_subtype(item, wanted) for wanted in types) for item in possible}
    if len(answers) != 1:
        texts = sorted({item.text for item in possible}) or [static.text]
        raise TypeError(
            f"isinstance cannot be decided: {type(value).__name__} may be any of {texts}"
        )
    return answers.pop()


def possible_types(value: Any, static: Type, known: Mapping[str, Type]) -> list[Type]:
    """Return the types that TorchScript may have for a value; none if it is not of this type."""
    kind, inner = static.kind, static.inner
    if kind in ("Optional", "Union"):
        members = (*inner, private.NONE) if kind == "Optional" else inner
        return [item for member in members for item in possible_types(value, member, known)]
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
        return [static] if _fits_container(value, static, known) else []
    if not free:
        return [static]  # an interface or a future
    if plain is not None:
        return [plain]
    possible = [item for other in known.values() for item in possible_types(value, other, known)]
    inferred = private.inferred_type(value) if isinstance(value, list | dict) else None
    return possible if inferred is None else [*possible, inferred]


def _plain(value: Any) -> Type | None:
    """The type of a plain value; None for a container, an enum or an instance."""
    if isinstance(value, Enum):  # an enum may be a subclass of int
        return None
    return next((static for cls, static in _PLAIN if isinstance(value, cls)), None)


def _fits_container(value: Any, static: Type, known: Mapping[str, Type]) -> bool:
    """Whether a list, dict or named tuple may be of this type, by its items."""
    if isinstance(value, tuple):  # a named one, which is of no unnamed type
        if not static.fields:
            return False
        named = tuple_type(static.text, static.fields)
        if type(value).__module__ == named.__module__:
            return type(value) is named
        # A constant, whose class PyTorch made with the same name and fields.
        fields = getattr(value, "_fields", ())
        return (type(value).__name__, fields) == (named.__name__, static.fields)
    if not isinstance(value, _CONTAINERS[static.kind]):
        return False
    columns = (value.keys(), value.values()) if isinstance(value, dict) else (value,)
    return all(
        possible_types(item, item_type, known)
        for column, item_type in zip(columns, static.inner, strict=True)
        for item in column
    )


def _is_of_class(value: Any, static: Type) -> bool:
    if isinstance(value, Instance):
        return bool(getattr(type(value), "script_name", "") == static.text)
    if static.text.startswith(private.CUSTOM):
        return private.custom_class(value) == static.text
    return isinstance(value, Enum) and type(value).__name__ == static.name


class DevicePlacement:
    """The device that a model was saved on, and its current device.

    A traced graph has the device of tracing as a constant. Here that means the device of the model.
    Its modules share one object, whose deep copy refers to the copy of the model.
    """

    def __init__(self, home: torch.device, model: nn.Module) -> None:
        self.home = home
        owners = (module for module in model.modules() if module._parameters or module._buffers)
        self.owner = next(owners, None)

    def now(self) -> torch.device:
        """Return the current device of the model."""
        if self.owner is None:
            return self.home
        tensors = {**self.owner._parameters, **self.owner._buffers}
        return next((tensor.device for tensor in tensors.values() if tensor is not None), self.home)

    def device(self, constant: torch.device) -> torch.device:
        """Return the current device for a device in the graph."""
        index, home_index = constant.index or 0, self.home.index or 0
        same = constant.type == self.home.type and index == home_index
        return self.now() if same else constant

    def current(self, constant: torch.device | Tensor) -> torch.device | Tensor:
        """Return the current device, or the tensor on it, for a constant of the graph."""
        if not isinstance(constant, Tensor):
            return self.device(constant)
        device = self.device(constant.device)
        return constant if device == constant.device else constant.to(device)


def wrap(number: int) -> int:
    """Return the 64-bit integer with the same low bits."""
    return (number - MIN_INT) % 2**64 + MIN_INT


def unwrap_optional(value: Any) -> Any:
    """Return the value, which must not be None."""
    if value is None:
        raise RuntimeError("Unwrapping null optional")
    return value


def pop_first(mapping: dict[Any, Any]) -> tuple[Any, Any]:
    """Remove and return the first item of a dict, as TorchScript's ``popitem`` does."""
    if not mapping:
        raise KeyError("popitem of an empty dict")
    key = next(iter(mapping))
    return key, mapping.pop(key)


def concat_in_place(first: list[Any], second: list[Any]) -> list[Any]:
    """Extend the first list in place and return it."""
    first.extend(second)
    return first


def repeated(items: list[Any], times: int) -> list[Any]:
    """Return ``items * times``; TorchScript rejects a negative number."""
    if times < 0:
        raise ValueError(f"a list cannot be repeated {times} times")
    return items * times


def holds(items: list[Any], sought: Any) -> bool:
    """Whether a list has an equal item. NaN equals nothing, but Python's ``in`` finds it."""
    return any(item == sought for item in items)


def remove(items: list[Any], sought: Any) -> None:
    """Remove the first equal item of a list."""
    index = next((index for index, item in enumerate(items) if item == sought), None)
    if index is None:
        raise ValueError("list.remove(x): x not in list")
    del items[index]


def sort_floats(items: list[float], reverse: bool) -> None:
    """Sort in place in the order of PyTorch, which differs for NaN and the two zeros."""
    items[:] = private.sort_floats()(items, reverse)


def same_lists(first: list[Any], second: list[Any]) -> bool:
    """Whether two lists are the same object or have equal items, without a check for identity."""
    if first is second:
        return True
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(bool(item == other) for item, other in pairs)


def to_list(tensor: Tensor, depth: int, kind: int) -> Any:
    """Return the tensor as nested lists, of the depth and the type that the script declares."""
    if tensor.dtype not in _ELEMENT_DTYPES[kind] or tensor.ndim != depth:
        raise TypeError(
            f"Output annotation of tolist() does not match: a tensor of {tensor.dtype}"
            f" with {tensor.ndim} dimensions"
        )
    return tensor.tolist()


# By the number of the element type in a graph.
_ELEMENT_DTYPES: dict[int, tuple[torch.dtype, ...]] = {
    0: (torch.int64,),
    1: (torch.float32, torch.float64),
    2: (torch.bool,),
    3: (torch.complex64, torch.complex128),
}


def module_at(container: Any, index: int | str) -> Any:
    """Return an element of a ModuleList by its index, or of a ModuleDict by its key."""
    modules = container._modules
    if isinstance(index, str):
        return modules[index]
    if index < 0:  # as in TorchScript, for modules only
        raise IndexError(f"there is no module {index}")
    return list(modules.values())[index]


class Awaitable:
    """A call that runs when its result is first read; without a function, a result."""

    def __init__(self, function: Callable[..., Any] | None, *args: Any) -> None:
        self._function, self._args = function, args

    def wait(self) -> Any:
        """Return the result."""
        if self._function is not None:
            self._args = (self._function(*self._args),)
            self._function = None
        return self._args[0]


def uninterpretable(text: str) -> None:
    """Raise NotImplementedError for a node that cannot be interpreted."""
    raise NotImplementedError(text)


def raise_error(message: str, kind: str | None = None) -> None:
    """Raise the exception of a script: Python's if it names one."""
    if kind is None and message.startswith("AssertionError: "):  # of an assert with a message
        raise AssertionError(message.removeprefix("AssertionError: "))
    exception = getattr(builtins, (kind or "").removeprefix("builtins."), None)
    if isinstance(exception, type) and issubclass(exception, Exception):
        raise exception(message)
    raise RuntimeError(f"{kind}: {message}" if kind else message)


class _NextCall(threading.local):
    """The method that the next call of a module runs, by the module's id, for each thread."""

    def __init__(self) -> None:
        self.methods: dict[int, str] = {}


_next_call = _NextCall()


def call_as(module: Any, name: str, *args: Any) -> Any:
    """Call a module, with its hooks, to run another method, as ``forward1`` or ``forward__0``."""
    _next_call.methods[id(module)] = name
    try:
        return module(*args)
    finally:
        _next_call.methods.pop(id(module), None)


def forward_by_name(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The ``forward`` of a module with several: it runs ``call_as``'s, else its own."""
    name = _next_call.methods.pop(id(self), None)
    if name is not None:
        return self._hookscope_methods[name](self, *args)
    own = self._hookscope_methods.get(self._hookscope_method)
    if own is None:
        others = ", ".join(self._hookscope_methods)
        raise NotImplementedError(f"it has no forward method; its methods: {others or 'none'}")
    return own(self, *args, **kwargs)


def warn(text: str, stacklevel: int = 2) -> None:
    """Call ``warnings.warn`` for a script."""
    warnings.warn(text, stacklevel=stacklevel + 1)


def placed(module: Any, constant: torch.device | Tensor) -> torch.device | Tensor:
    """Return a constant device, or a constant tensor on the current device of the model."""
    placement = getattr(module, "_hookscope_placement", None)
    if placement is None:
        return constant
    current: torch.device | Tensor = placement.current(constant)
    return current


# The names that generated code uses.
HELPERS: dict[str, Any] = {
    helper.__name__: helper
    for helper in (
        *(new, is_instance, wrap, unwrap_optional, pop_first, concat_in_place),
        *(repeated, holds, remove, sort_floats, same_lists, to_list, module_at),
        *(uninterpretable, raise_error, call_as, warn, placed, Awaitable),
    )
}
