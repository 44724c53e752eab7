"""Copies of recorded tensors on another device, made while the model runs on."""

from __future__ import annotations

import torch
from torch import Tensor

from hookscope.tensors.copy_streams import CopyStreams


class DeviceCopies:
    """Copies tensors to one device.

    From a CUDA device to the host, ``tensor.cpu()`` would wait until the device has computed all
    that it was given. So the tensor is cloned where it is, because the model may overwrite it, and
    the clone is copied on a stream of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams = CopyStreams()

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy, whose values are there after ``wait``."""
        if not (tensor.is_cuda and self._device.type == "cpu" and tensor.layout is torch.strided):
            return tensor.to(self._device, copy=True)
        return self._streams.to_host(tensor.clone())

    def wait(self) -> None:
        """Wait until the values of all copies are there."""
        self._streams.wait()
