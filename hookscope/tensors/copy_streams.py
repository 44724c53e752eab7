"""Copies between a CUDA device and pinned memory of the host, made while the device computes.

A copy on the stream that computes waits for all that was given to the device before, and what
comes later waits for the copy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hookscope.files.signal_safety import signal_safe


class CopyStreams:
    """Copies tensors on streams of their own, one for each CUDA device."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def to_host(self, tensor: Tensor) -> Tensor:
        """Return a copy in pinned memory, whose values are there after ``events`` or ``wait``.

        The tensor is on a CUDA device, and must not change until then.
        """
        stream = self._of(tensor.device)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
        with signal_safe(torch.cuda.stream(stream)):
            copy.copy_(tensor, non_blocking=True)
        tensor.record_stream(stream)  # its memory is not used again before the copy is done
        return copy

    def to_device(self, tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
        """Return a tensor on a device, for the current stream; it is copied from pinned memory."""
        if device.type != "cuda" or not tensor.is_pinned():
            return tensor.to(device, dtype)
        stream, current = self._of(device), torch.cuda.current_stream(device)
        with signal_safe(torch.cuda.stream(stream)):
            copy = tensor.to(device, dtype, non_blocking=True)
        current.wait_stream(stream)
        copy.record_stream(current)  # it was made on the other stream, which may use it again
        return copy

    def events(self) -> list[torch.cuda.Event]:
        """Return an event for each device: when it has happened, all copies so far are there."""
        return [stream.record_event() for stream in self._streams.values()]

    def wait(self) -> None:
        """Wait until the values of all copies are there."""
        while self._streams:
            self._streams.popitem()[1].synchronize()

    def _of(self, device: torch.device) -> torch.cuda.Stream:
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        return stream
