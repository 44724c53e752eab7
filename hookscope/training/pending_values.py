"""Numbers computed on a device that reach the host together, without waiting for the device.

A call of ``item()`` waits until the device has computed all that it was given. So the numbers of a
step are copied with a few calls, and passed on when the copies are done, which is usually a step
later. Those of the CPU are there already and are passed on at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

MAX_QUEUED = 4096  # tensors on a device, until they are copied in the middle of a step
Taker = Callable[[list[Any]], None]


class _Queue:
    """Tensors of one device, dtype and number of dimensions that wait to be copied."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.takers: list[tuple[Taker, int]] = []  # each with the number of its tensors


class _Copy:
    """The numbers of a queue on their way to the host."""

    def __init__(self, queue: _Queue) -> None:
        self._takers = queue.takers
        self._lengths = [tensor.shape[0] for tensor in queue.tensors if tensor.ndim]
        joined = torch.cat(queue.tensors) if self._lengths else torch.stack(queue.tensors)
        self._event: torch.cuda.Event | None = None
        if joined.device.type != "cuda":
            self._numbers = joined.cpu()
            return
        self._numbers = torch.empty_like(joined, device="cpu", pin_memory=True)
        self._numbers.copy_(joined, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(joined.device))

    @property
    def is_done(self) -> bool:
        return self._event is None or self._event.query()

    def deliver(self) -> None:
        """Wait for the copy, and pass the numbers on."""
        if self._event is not None:
            self._event.synchronize()
        values: list[Any]
        if self._lengths:
            ends = list(accumulate(self._lengths))
            array = self._numbers.numpy()
            values = [array[end - n : end] for end, n in zip(ends, self._lengths, strict=True)]
        else:
            values = self._numbers.tolist()
        start = 0
        for take, count in self._takers:
            take(values[start : start + count])
            start += count


class PendingValues:
    """The numbers of one step, on all devices. Several threads may add some."""

    def __init__(self, *, queue_all: bool = False) -> None:
        self._queue_all = queue_all
        self._queues: dict[tuple[torch.device, torch.dtype, int], _Queue] = {}
        self._copies: deque[_Copy] = deque()

    def add(self, tensors: Sequence[Tensor], take: Taker) -> None:
        """Pass the numbers of some tensors to ``take`` once they are on the host.

        A tensor without dimensions becomes a number, one of one dimension a NumPy array. What is
        added while many others wait may have to wait for the device.
        """
        first = tensors[0]
        if first.is_cpu and not self._queue_all:
            take([tensor.numpy() if first.ndim else tensor.item() for tensor in tensors])
            return
        key = first.device, first.dtype, first.ndim
        queue = self._queues.get(key)
        if queue is not None and len(queue.tensors) >= MAX_QUEUED:
            # Before these are added: another key may come to share them, see CallMeasure.
            if len(self._copies) > 1:
                self._copies.popleft().deliver()
            self._copies.append(_Copy(queue))
            queue = None
        if queue is None:
            queue = self._queues[key] = _Queue()
        queue.tensors += tensors
        queue.takers.append((take, len(tensors)))

    def send(self) -> None:
        """Begin to copy all numbers to the host."""
        self._copies += [_Copy(queue) for queue in self._queues.values()]
        self._queues.clear()

    @property
    def has_arrived(self) -> bool:
        """Whether the copies are done; then what was added before ``send`` has been passed on."""
        while self._copies:
            if not self._copies[0].is_done:
                return False
            self._copies.popleft().deliver()
        return True

    def wait(self) -> None:
        """Wait until they are."""
        while self._copies:
            self._copies.popleft().deliver()
