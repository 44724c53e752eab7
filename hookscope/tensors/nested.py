"""Find and replace the tensors in the arguments and results of modules.

Tuples (named ones by field), lists, mappings and dataclasses are searched at any depth. That covers
``OrderedDict`` outputs, detection's list of dicts, LSTM states, packed sequences and the output
classes of other libraries. Other objects are not searched: see ``opaque_types``.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import HookscopeError
from hookscope.files.words import shape_text
from hookscope.tensors.torch_internals import is_wrapped_by_functorch

_SHARED = ("self_attention_cache", "cross_attention_cache")  # of an EncoderDecoderCache

TensorPath = tuple[str, ...]
# Types that cannot contain tensors; other objects that are not searched may.
_PLAIN = (str, bytes, int, float, complex, NoneType, Enum, torch.dtype, torch.device, torch.layout)
# Dtypes without any restriction.
_ORDINARY = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64})
FUNCTORCH_REASON = "inside torch.func (vmap, grad), whose tensors cannot be stored"
# Arguments of these types hold no tensors; most arguments of a call are of one of them.
_LEAVES = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})


def is_cache(value: Any) -> bool:
    """Whether ``value`` is a cache of transformers, such as a ``DynamicCache``."""
    library = sys.modules.get("transformers.cache_utils")  # imported where there is a cache
    return library is not None and isinstance(value, library.Cache | library.EncoderDecoderCache)


def cached_tensors(cache: Any) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield ``(path, tensor)`` for the tensors of a cache, such as ``("3", "keys")`` in layer 3.

    The path in an ``EncoderDecoderCache`` begins with ``self_attention_cache`` or
    ``cross_attention_cache``.
    """
    parts = [name for name in _SHARED if hasattr(cache, name)]
    for name in parts:
        for path, tensor in cached_tensors(getattr(cache, name)):
            yield (name, *path), tensor
    if not parts:
        for number, layer in enumerate(cache.layers):
            for name, value in vars(layer).items():
                for path, tensor in _states(value):
                    if tensor.numel():
                        yield (str(number), name, *path), tensor


def _states(value: Any) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """The tensors in an attribute of a layer, which may have several states by number."""
    if isinstance(value, Tensor):
        yield (), value
    elif isinstance(value, dict | list | tuple):
        states = value.items() if isinstance(value, dict) else enumerate(value)
        for number, state in states:
            if isinstance(state, Tensor):
                yield (str(number),), state


def is_functorch_tensor(tensor: Tensor) -> bool:
    """Whether a tensor belongs to a transform of ``torch.func``; see ``FUNCTORCH_REASON``."""
    return is_wrapped_by_functorch(tensor)


def unreadable_reason(tensor: Tensor) -> str:
    """Return why the values of a tensor cannot be read and stored; empty if they can.

    >>> unreadable_reason(torch.ones(1)), unreadable_reason(torch.ones(1, device="meta"))
    ('', 'on the meta device, where tensors have no values')
    """
    if is_wrapped_by_functorch(tensor):
        return FUNCTORCH_REASON
    if tensor.is_meta:
        return "on the meta device, where tensors have no values"
    kind = type(tensor)
    if kind is Tensor and tensor.dtype in _ORDINARY:
        return ""
    if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ and not tensor.is_nested:
        try:
            # PyTorch warns if the pointer of a FakeTensor is read.
            real = not hasattr(tensor, "fake_mode") and (
                bool(tensor.untyped_storage().data_ptr()) or not tensor.numel()
            )
        except RuntimeError:  # made of other tensors, or of none
            real = False
        if not real:
            return f"a {kind.__name__}, whose values cannot be stored in a file"
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_quantized and not _can_be_cloned(tensor):
        return f"of dtype {name}, which PyTorch cannot copy"
    if not (tensor.is_quantized or _can_be_converted(tensor.dtype)):
        return f"of dtype {name}, which PyTorch cannot convert to numbers"
    return ""


def _can_be_cloned(tensor: Tensor) -> bool:
    if tensor.dtype in (torch.quint4x2, torch.quint2x4):
        return False
    try:
        scheme = tensor.qscheme()
    except RuntimeError:  # of a dtype for quantized numbers, and without a scheme
        return False
    return scheme is not torch.per_channel_affine_float_qparams


@cache
def _can_be_converted(dtype: torch.dtype) -> bool:
    try:
        torch.empty(1, dtype=dtype).clone().to(torch.complex128)
    except (RuntimeError, TypeError):
        return False
    return True


def walk(
    value: Any, *, whole: bool = False, caches: bool = False
) -> Iterator[tuple[TensorPath, Tensor]]:
    """Yield ``(path, tensor)`` for every tensor in ``value``, in order; a lone tensor has path ().

    A nested tensor (``torch.nested``) is split into its components, because no file format stores
    it; with ``whole`` it is yielded itself. With ``caches``, those of transformers are searched.
    """
    yield from _walk(value, (), (), whole, caches)


def _walk(
    value: Any, path: TensorPath, above: tuple[int, ...], whole: bool, caches: bool
) -> Iterator[tuple[TensorPath, Tensor]]:
    if isinstance(value, Tensor):
        if value.is_nested and not whole:
            for i, part in enumerate(value.unbind()):
                yield (*path, str(i)), part
        else:
            yield path, value
    elif type(value) in _LEAVES or id(value) in above:  # one that contains itself, once
        return
    elif caches and is_cache(value):
        for inside, tensor in cached_tensors(value):
            yield (*path, *inside), tensor
    else:
        for name, item in _items(value, above):
            yield from _walk(item, (*path, name), (*above, id(value)), whole, caches)


def operator_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in the arguments or the output of an operator, in less time than ``walk``.

    >>> len(list(operator_tensors(([torch.ones(1), 2], {"out": torch.ones(1)}))))
    2
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from operator_tensors(one)
    elif isinstance(value, dict):
        yield from operator_tensors(list(value.values()))


def distinct_tensors(value: Any) -> dict[TensorPath, Tensor]:
    """Return every distinct tensor in ``value`` under its first path; nested ones stay whole.

    >>> x = torch.ones(2)
    >>> list(distinct_tensors((x, {"c": x + 1, "h": x})))
    [('0',), ('1', 'c')]
    """
    first: dict[int, tuple[TensorPath, Tensor]] = {}
    for path, tensor in walk(value, whole=True):
        first.setdefault(id(tensor), (path, tensor))
    return dict(first.values())


def map_tensors(
    value: Any, change: Callable[[TensorPath, Tensor], Tensor], *, each: bool = False
) -> Any:
    """Return ``value`` with each tensor replaced by ``change(path, tensor)``.

    Containers are rebuilt, never changed in place, and only if something in them was replaced. A
    tensor that occurs twice is replaced once, so that it still occurs twice; with ``each``, it is
    replaced at each of its places.
    """
    return _mapped(value, change, (), (), None if each else {})


def detach_clone(value: Any) -> Any:
    """Return ``value`` with a detached copy of each tensor."""
    return map_tensors(value, lambda path, tensor: tensor.detach().clone())


def _mapped(  # not a nested function: one that calls itself would keep tensors alive in a cycle
    item: Any,
    change: Callable[[TensorPath, Tensor], Tensor],
    path: TensorPath,
    above: tuple[int, ...],
    replaced: dict[int, Tensor] | None,
) -> Any:
    if isinstance(item, Tensor):
        if replaced is None:
            return change(path, item)
        if id(item) not in replaced:
            replaced[id(item)] = change(path, item)
        return replaced[id(item)]
    if type(item) in _LEAVES or id(item) in above:
        return item
    old = list(_items(item, above))
    inside = (*above, id(item))
    new = [_mapped(part, change, (*path, name), inside, replaced) for name, part in old]
    if all(a is b for (_, a), b in zip(old, new, strict=True)):
        return item
    try:
        return _rebuild(item, new)
    except Exception as error:
        raise HookscopeError(
            f"A {type(item).__name__} cannot be rebuilt with other tensors in it: {error}.",
            "Leave out the layer that takes or returns it.",
        ) from error


def opaque_types(value: Any, *, caches: bool = False) -> list[str]:
    """Names of the types in ``value`` that may contain tensors and are not searched by ``walk``.

    >>> class Cache:
    ...     def __init__(self): self.keys = [1]
    >>> opaque_types((1, None, {"cache": Cache()}))
    ['Cache']
    """
    if isinstance(value, Tensor) or (caches and is_cache(value)):
        return []
    if isinstance(value, tuple | list | Mapping) or _is_dataclass(value):
        return [name for _, item in _items(value) for name in opaque_types(item, caches=caches)]
    return [] if isinstance(value, _PLAIN) or callable(value) else [type(value).__name__]


def outline(value: Any) -> str:
    """The structure of ``value`` and the shapes in it as text, different for different ones.

    >>> import torch
    >>> outline(torch.ones(1, 3)), outline((torch.ones(2), {"mask": None}))
    ('1x3', 'tuple(0=2, 1=dict(mask=None))')
    """
    return _outline(value, ())


def _outline(value: Any, above: tuple[int, ...]) -> str:
    if isinstance(value, Tensor):
        parts = value.unbind() if value.is_nested else ()
        shapes = [tuple(part.shape) for part in parts] or [tuple(value.shape)]
        return "+".join(map(shape_text, shapes))
    if value is None or id(value) in above:
        return "None" if value is None else "itself"
    if not isinstance(value, tuple | list | Mapping) and not _is_dataclass(value):
        return type(value).__name__
    parts_of = [f"{n}={_outline(item, (*above, id(value)))}" for n, item in _items(value)]
    return f"{type(value).__name__}({', '.join(parts_of)})"


def as_call(value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Turn a model's input into ``(args, kwargs)``: a tuple, a dict, or ``(tuple, dict)`` for both.

    >>> as_call(((1, 2), {"mask": 3})), as_call([1]), as_call({"ids": 4})
    (((1, 2), {'mask': 3}), (([1],), {}), ((), {'ids': 4}))
    """
    if type(value) is tuple and len(value) == 2:
        first, second = value
        if type(first) is tuple and type(second) is dict:
            return first, second
    if type(value) is tuple:
        return value, {}
    if type(value) is dict:
        return (), value
    return (value,), {}


def _items(value: Any, above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The named parts of a container; nothing for anything else."""
    if isinstance(value, Mapping):
        keys = [str(key) for key in value]
        if len(set(keys)) < len(keys) or any("." in key for key in keys):
            keys = _distinct_names(keys, list(value.values()), (*above, id(value)))
        yield from zip(keys, value.values(), strict=True)
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", None) or range(len(value))
        for name, item in zip(names, value, strict=False):
            yield str(name), item
    elif _is_dataclass(value):
        for field in fields(value):
            if hasattr(value, field.name):
                yield field.name, getattr(value, field.name)


def _distinct_names(names: list[str], items: list[Any], above: tuple[int, ...]) -> list[str]:
    """The names, marked ``~2`` where two tensors would have the same path, joined by dots.

    The keys ``1`` and ``"1"`` have one path, and so have ``"a.b"`` and ``"b"`` in ``"a"``.
    """
    taken: set[str] = set()
    distinct = []
    for name, item in zip(names, items, strict=True):
        inside = [path for path, _ in _walk(item, (), above, whole=False, caches=True)]
        unique, again = name, 2
        while not taken.isdisjoint(paths := _with_gradients(unique, inside)):
            unique, again = f"{name}~{again}", again + 1
        taken |= paths
        distinct.append(unique)
    return distinct


def _with_gradients(name: str, inside: list[TensorPath]) -> set[str]:
    joined = [".".join((name, *path)) for path in inside]
    return {*joined, *(f"{path}.grad" for path in joined)}


def _is_dataclass(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _rebuild(value: Any, parts: list[Any]) -> Any:
    """A container of the type of ``value`` that contains ``parts``."""
    if isinstance(value, tuple):
        if hasattr(value, "_make"):  # also packed sequences, whose constructor would check again
            return value._make(parts)
        return type(value)(parts)
    new = copy.copy(value)
    if isinstance(value, Mapping):
        for key, part in zip(value, parts, strict=True):
            new[key] = part
    elif isinstance(value, list):
        new[:] = parts
    else:
        for (name, _), part in zip(_items(value), parts, strict=True):
            object.__setattr__(new, name, part)
    return new


def as_dense(tensor: Tensor) -> Tensor:
    """Return a strided tensor of the same values that is not quantised; it may be the same one."""
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def bits_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor's entries: one dimension, uint8."""
    plain = as_dense(tensor).detach().resolve_conj().resolve_neg().contiguous()
    # A single entry may have any strides, which a view of another dtype checks.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)
