"""What a call of a module changes besides returning a value, as far as it can be seen."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from itertools import chain
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hookscope.execution.isolation import gpus_of
from hookscope.execution.verification import bit_identical
from hookscope.hooks.layers import modules_in
from hookscope.tensors.nested import map_tensors, walk

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)
_LEAVES = frozenset({str, int, float, bool, type(None)})  # types of values that contain no others


def plain_fault(value: Any) -> str:
    """Return the kind of the first part of a value that is not a tensor, number, text or container.

    Empty if there is none. Only such values can be copied and compared.

    Example:
        >>> plain_fault((torch.ones(1), {"mask": None})), plain_fault([object()])
        ('', 'an object of type object')
    """
    if isinstance(value, Tensor):
        ordinary = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided
        if not ordinary or value.is_nested or value.is_quantized or value.is_inference():
            return f"a tensor of type {type(value).__name__} that cannot be compared"
        return ""
    if isinstance(value, Mapping):
        return next(filter(None, map(plain_fault, value.values())), "")
    if isinstance(value, tuple | list):
        return next(filter(None, map(plain_fault, value)), "")
    return "" if type(value) in _PLAIN else f"an object of type {type(value).__name__}"


def clone_values(value: Any) -> Any:
    """Return a value of which ``plain_fault`` is empty with copies of its tensors."""
    return map_tensors(value, lambda path, tensor: tensor.detach().clone())


def same_values(first: Any, second: Any) -> bool:
    """Whether two plain values are the same: every bit, shape, stride, number and container."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return bit_identical(first, second) and first.stride() == second.stride()
    if type(first) is not type(second):
        return False
    if isinstance(first, Mapping):
        return list(first) == list(second) and all(same_values(first[k], second[k]) for k in first)
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(same_values, first, second))
    return bool(first == second)


def memory_of(value: Any) -> set[int]:
    """Return the addresses of the storages of the tensors in a value."""
    storages = (tensor.untyped_storage() for _, tensor in walk(value))
    return {storage.data_ptr() for storage in storages if storage.nbytes()}


class ModuleState:
    """What a call of a module may change: its modules, its arguments and the random generators."""

    def __init__(self, module: nn.Module, given: Any) -> None:
        self.module = module
        self._parts, self._versions = _parts(module)
        self._buffers = [buffer.detach().clone() for buffer in module.buffers()]
        self._given = [(tensor, tensor._version) for _, tensor in walk(given)]
        self._gpus = gpus_of(module)
        self._generators = _generator_states(self._gpus)

    def change(self, given: Any) -> str:
        """Return what changed since; empty if nothing did."""
        if not same_states(self._generators, _generator_states(self._gpus)):
            return "draws random numbers"
        if any(tensor._version != version for tensor, version in self._given):
            return "changes its input in place"
        buffers = list(self.module.buffers())
        if len(buffers) != len(self._buffers) or not all(map(_equal, buffers, self._buffers)):
            return "changes a buffer"
        parts, versions = _parts(self.module)
        same = len(parts) == len(self._parts) and all(map(is_, parts, self._parts))
        return "" if same and versions == self._versions else "changes an attribute"


def _equal(a: Tensor, b: Tensor) -> bool:
    return bit_identical(a, b)


def same_states(first: list[Any], second: list[Any]) -> bool:
    """Whether two lists of states of generators are the same."""
    return all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) else bool(a == b)
        for a, b in zip(first, second, strict=True)
    )


def _generator_states(gpus: list[int]) -> list[Any]:
    """The states of the generators of torch, numpy and Python."""
    generators = [torch.default_generator, *(torch.cuda.default_generators[gpu] for gpu in gpus)]
    kind, keys, *rest = np.random.get_state()
    return [*(g.get_state().numpy() for g in generators), kind, keys, rest, random.getstate()]


def _parts(module: nn.Module) -> tuple[list[Any], list[int]]:
    """Everything that the modules in a module refer to, and the versions of the tensors in it.

    The objects themselves are returned, so that none of them is freed and another one gets its id.
    """
    visited: set[int] = set()
    found: list[Any] = [each.__dict__ for each in modules_in(module)]
    versions: list[int] = []
    for item in found:  # the loop goes on with what it adds
        kind = type(item)
        if kind in _LEAVES:
            continue
        if isinstance(item, Tensor):
            versions.append(-1 if item.is_inference() else item._version)
        elif id(item) not in visited:
            visited.add(id(item))
            found += _inner(item)
    return found, versions


def _inner(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return chain.from_iterable(item.items())
    if isinstance(item, tuple | list | set | frozenset):
        return list(item)
    # The modules of the block are searched from their own dicts. Other modules and functions are
    # not part of it.
    searched = hasattr(item, "__dict__") and not callable(item)
    return [vars(item)] if searched else []
