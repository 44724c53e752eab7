"""Clones lent to a module in place of its inputs, and which tensors share memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Lent:
    """A clone given to a module in place of one of its inputs."""

    original: Tensor
    clone: Tensor
    version: int

    @property
    def changed(self) -> bool:
        """Whether the module has changed it in place."""
        return self.clone._version != self.version


def alike(tensor: Tensor) -> Tensor:
    """Return a clone that lies in memory as ``tensor`` does, gaps between its rows included.

    Kernels go by that: a GELU on rows with gaps may differ in the last bit from one without.
    """
    clone = tensor.clone()
    if tensor.layout is not torch.strided or clone.stride() == tensor.stride():
        return clone
    reach = 0  # of the dimensions that lie closer together
    for step, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and step <= reach:
            return clone  # its elements share memory, and so cannot be written one by one
        reach += step * (length - 1)
    gapped = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return gapped.copy_(tensor)


def give_back(lent: Lent) -> bool:
    """Where the module changed its input in place, change the caller's; False if that cannot be."""
    if not lent.changed:
        return True
    if lent.clone.shape != lent.original.shape:
        return False
    lent.original.copy_(lent.clone if lent.original.requires_grad else lent.clone.detach())
    return True


def shared_memory(tensors: Iterable[Tensor]) -> set[int]:
    """The memory that two different ones of ``tensors`` have in common."""
    counts = Counter(memory_of(t) for t in {id(t): t for t in tensors}.values())
    return {storage for storage, count in counts.items() if count > 1}


def memory_of(tensor: Tensor) -> int:
    """What tells whether two tensors share memory."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # by torch.func: has none
    if tensor.layout is not torch.strided or tensor.is_nested or wrapped:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)
