"""What is kept of a batch on its way to the CPU, while the device goes on with the next one.

From CUDA it goes into pinned memory on a stream of its own, and nobody may look at it before the
event behind the copy has happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Landing:
    """Values that are on the CPU, or will be once ``events`` have happened."""

    values: Any
    events: tuple[Any, ...] = ()

    def wait(self) -> Any:
        """Return the values when they are there."""
        for event in self.events:
            event.synchronize()
        return self.values


class Lander:
    """Brings tensors to the CPU, from whichever devices they are on."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def __call__(self, tensors: Mapping[str, Tensor]) -> Landing:
        """Return ``tensors`` on their way; to be called from the stream that computes them."""
        devices = {t.device for t in tensors.values() if t.is_cuda}
        for device in devices:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)
            self._streams[device].wait_stream(torch.cuda.current_stream(device))
        values = {name: self._landed(tensor) for name, tensor in tensors.items()}
        return Landing(values, tuple(self._streams[device].record_event() for device in devices))

    def _landed(self, tensor: Tensor) -> Tensor:
        if not tensor.is_cuda:
            return tensor.cpu()
        stream = self._streams[tensor.device]
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        with torch.cuda.stream(stream):
            pinned.copy_(tensor, non_blocking=True)
        # Else its memory would be given away while it is still being copied.
        tensor.record_stream(stream)
        return pinned
