"""Numbers computed on a device that reach the host together, without waiting for the device.

A call of ``item()`` waits until the device has computed all that it was given. So the numbers of a
step are copied with one call, and read when the copy is done, which is usually a step later.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Slot:
    """One number, or one row of numbers, that is on its way to the host."""

    __slots__ = ("_group", "_position", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor | None = tensor
        self._group: _Group
        self._position = 0

    def place(self, group: _Group, position: int) -> Tensor:
        """Note where the number will arrive; return the tensor, which is not kept."""
        assert self.tensor is not None
        self._group, self._position = group, position
        tensor, self.tensor = self.tensor, None
        return tensor

    def number(self) -> float:
        """Return the number, once the copies are done."""
        if self.tensor is not None:  # another thread added it when the others had been sent
            return float(self.tensor)
        return self._group.numbers[self._position]

    def numbers(self) -> NDArray[np.generic]:
        """Return the row of numbers, once the copies are done."""
        if self.tensor is not None:
            return self.tensor.cpu().numpy()
        return self._group.row(self._position)


class _Group:
    """The slots of one device, dtype and number of dimensions."""

    def __init__(self, slots: list[Slot]) -> None:
        tensors = [slot.place(self, position) for position, slot in enumerate(slots)]
        if tensors[0].ndim:
            joined = torch.cat(tensors)
            self._starts = [0, *accumulate(tensor.shape[0] for tensor in tensors)]
        else:
            joined = torch.stack(tensors)
        self._numbers: list[float] = []
        self.event: torch.cuda.Event | None = None
        if joined.device.type != "cuda":
            self._copy = joined.cpu()
            return
        self._copy = torch.empty_like(joined, device="cpu", pin_memory=True)
        self._copy.copy_(joined, non_blocking=True)
        self.event = torch.cuda.Event()
        self.event.record(torch.cuda.current_stream(joined.device))

    @property
    def numbers(self) -> list[float]:
        if not self._numbers:
            self._numbers = self._copy.tolist()
        return self._numbers

    def row(self, position: int) -> NDArray[np.generic]:
        return self._copy[self._starts[position] : self._starts[position + 1]].numpy()


class PendingValues:
    """The numbers of one step, on all devices. Several threads may add some."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._groups: list[_Group] = []

    def add(self, values: Tensor) -> Slot:
        """Add a tensor of one dimension or none."""
        slot = Slot(values)
        self._slots.append(slot)
        return slot

    def send(self) -> None:
        """Begin to copy all numbers to the host; none may be added afterwards."""
        groups: dict[tuple[torch.device, torch.dtype, int], list[Slot]] = {}
        for slot in self._slots:
            tensor = slot.tensor
            assert tensor is not None
            groups.setdefault((tensor.device, tensor.dtype, tensor.ndim), []).append(slot)
        self._slots.clear()
        self._groups = [_Group(slots) for slots in groups.values()]

    @property
    def has_arrived(self) -> bool:
        """Whether the copies are done."""
        for group in self._groups:
            if group.event is not None and not group.event.query():
                return False
        return True

    def wait(self) -> None:
        """Wait until they are."""
        for group in self._groups:
            if group.event is not None:
                group.event.synchronize()
