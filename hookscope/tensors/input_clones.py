"""Clones passed to a module in place of its inputs, and tensors that share memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hookscope.tensors.nested import is_functorch_tensor


@dataclass(frozen=True)
class InputClone:
    """A clone passed to a module in place of one of its inputs."""

    original: Tensor
    clone: Tensor
    version: int
    attributes: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, original: Tensor, clone: Tensor) -> InputClone:
        """A clone, with the class and the attributes of the original."""
        clone = with_type_and_attributes(clone, original)
        return cls(original, clone, clone._version, attributes_of(clone))

    @property
    def changed(self) -> bool:
        """Whether the module has changed it in place."""
        return self.clone._version != self.version


def clone_preserving_strides(tensor: Tensor) -> Tensor:
    """Return a clone with the memory layout of ``tensor``, including gaps between its rows.

    Kernels depend on it: a GELU on rows with gaps may differ in the last bit from one without.
    """
    clone = tensor.clone()
    if tensor.layout is not torch.strided or tensor.is_nested or clone.stride() == tensor.stride():
        return clone
    reach = 0  # of the dimensions with smaller strides
    for step, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and step <= reach:
            return clone  # its elements share memory and cannot be written separately
        reach += step * (length - 1)
    gapped = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return gapped.copy_(tensor)


def write_back(clone: InputClone) -> bool:
    """Copy an in-place change of the clone to the caller's tensor; False if that is impossible.

    Attributes that the module set on its input, or deleted, are set or deleted at the caller's.
    """
    now = attributes_of(clone.clone)
    for name in clone.attributes.keys() - now.keys():
        if hasattr(clone.original, name):
            delattr(clone.original, name)
    for name, value in now.items():
        if name not in clone.attributes or clone.attributes[name] is not value:
            setattr(clone.original, name, value)
    if not clone.changed:
        return True
    if not _same_shape(clone.clone, clone.original):
        return False
    clone.original.copy_(clone.clone if clone.original.requires_grad else clone.clone.detach())
    return True


def attributes_of(tensor: Tensor) -> dict[str, Any]:
    """The attributes that Python code has set on a tensor, including those in slots."""
    attributes = dict(vars(tensor))
    for cls in type(tensor).__mro__:
        slots = vars(cls).get("__slots__", ()) if issubclass(cls, Tensor) else ()
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(tensor, name):
                attributes[name] = getattr(tensor, name)
    return attributes


def with_type_and_attributes(tensor: Tensor, original: Tensor) -> Tensor:
    """Return ``tensor`` with the class of ``original``, and with its missing attributes."""
    if type(tensor) is Tensor and type(original) is not Tensor:
        try:
            tensor.__class__ = type(original)
        except TypeError:  # a class with slots
            tensor = tensor.as_subclass(type(original))
    known = attributes_of(tensor)
    for name, value in attributes_of(original).items():
        if name not in known:
            setattr(tensor, name, value)
    return tensor


def _same_shape(a: Tensor, b: Tensor) -> bool:
    if a.is_nested and a.layout is torch.strided:  # it has one shape for each component
        return torch.equal(a._nested_tensor_size(), b._nested_tensor_size())
    return a.shape == b.shape


def shared_storages(tensors: Iterable[Tensor]) -> set[int]:
    """The ids of memory that at least two different ``tensors`` share."""
    counts = Counter(storage_id(t) for t in {id(t): t for t in tensors}.values())
    return {storage for storage, count in counts.items() if count > 1}


def storage_id(tensor: Tensor) -> int:
    """An id that is the same for two tensors that share memory."""
    plain = tensor.layout is torch.strided and not tensor.is_nested
    if not plain or is_functorch_tensor(tensor):  # has none
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)
