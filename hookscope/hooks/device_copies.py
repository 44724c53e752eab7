"""Copies of recorded tensors on another device, made while the model runs on."""

from __future__ import annotations

import torch
from torch import Tensor

from hookscope.files.signal_safety import signal_safe


class DeviceCopies:
    """Copies tensors to one device.

    From a CUDA device to the host, ``tensor.cpu()`` would wait until the device has computed all
    that it was given. So the tensor is cloned where it is, because the model may overwrite it, and
    the clone is copied to pinned memory on a stream of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy, whose values are there after ``wait``."""
        if not (tensor.is_cuda and self._device.type == "cpu" and tensor.layout is torch.strided):
            return tensor.to(self._device, copy=True)
        clone = tensor.clone()
        stream = self._streams.get(clone.device)
        if stream is None:
            stream = self._streams[clone.device] = torch.cuda.Stream(clone.device)
        stream.wait_stream(torch.cuda.current_stream(clone.device))
        copy = torch.empty_like(clone, device="cpu", pin_memory=True)
        with signal_safe(torch.cuda.stream(stream)):
            copy.copy_(clone, non_blocking=True)
        clone.record_stream(stream)  # its memory is free when the copy is done
        return copy

    def wait(self) -> None:
        """Wait until the values of all copies are there."""
        while self._streams:
            self._streams.popitem()[1].synchronize()
