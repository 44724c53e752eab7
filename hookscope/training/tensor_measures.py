"""What is measured of one tensor: numbers that stay on its device.

Nothing here changes a tensor, draws a random number, or is seen by the modes of PyTorch that the
script may have enabled. Tensors are detached before they are measured, so autograd records nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor

from hookscope.files.signal_safety import signal_safe
from hookscope.tensors.nested import is_functorch_tensor, unreadable_reason
from hookscope.tensors.torch_internals import (
    DisableTorchFunction,
    disable_current_modes,
    len_dispatch_stack,
)
from hookscope.training.pending_values import PendingValues

_NARROW = {torch.float16, torch.bfloat16}
PART = 2**18  # entries of a tensor on the CPU that are looked at together: a part of its cache
SMALL = 2**14  # entries of a mask for which memory is at hand


def unnoticed() -> AbstractContextManager[object]:
    """Compute without the modes that the script has enabled, which could count what is computed."""
    if len_dispatch_stack():
        return _without_modes()
    return DisableTorchFunction()


@contextmanager
def _without_modes() -> Iterator[None]:
    with DisableTorchFunction(), disable_current_modes():
        yield


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written in place; PyTorch does not count it for inference tensors."""
    return 0 if tensor.is_inference() else tensor._version


def is_measurable(tensor: Tensor) -> bool:
    """Whether a tensor has floating-point values that can be read.

    Nested tensors (``torch.nested``) are not measured: PyTorch cannot compute their norm.
    """
    if tensor.is_nested or is_functorch_tensor(tensor):
        return False
    if type(tensor) is Tensor and tensor.layout is torch.strided and tensor.is_floating_point():
        return not tensor.is_meta and tensor.numel() > 0 and not _is_capturing(tensor)
    is_number = tensor.is_floating_point() or tensor.is_complex()
    return is_number and not unreadable_reason(tensor) and tensor.numel() > 0


def _is_capturing(tensor: Tensor) -> bool:
    # Within the capture of a CUDA graph nothing may be computed for us.
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def norm_of(tensor: Tensor) -> Tensor:
    """Euclidean norm, in float32 at least."""
    norm: Tensor = torch.linalg.vector_norm(
        tensor, dtype=torch.float32 if tensor.dtype in _NARROW else None
    )
    return norm


class Receiver(Protocol):
    """Gets the numbers of one tensor once they have arrived, each in a list of its own."""

    def take_size(self, numbers: list[float]) -> None:
        """Take the norm, the least and the largest entry."""

    def take_nonfinite(self, numbers: list[float]) -> None:
        """Take how many entries are NaN or infinite; not called if it is known that none is."""


def measure(pending: PendingValues, tensor: Tensor, receiver: Receiver) -> None:
    """Measure the size of the entries of a tensor, which is detached and not empty."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    norm = norm_of(values)
    # Ten times faster on a CPU than the maximum norm.
    low, high = torch.aminmax(tensor.abs() if tensor.is_complex() else values)
    if low.dtype != norm.dtype:
        low, high = low.to(norm.dtype), high.to(norm.dtype)
    pending.add((norm, low, high), receiver.take_size)
    # On a device other than the CPU, reading the norm would mean to wait for it.
    if not tensor.is_cpu or not math.isfinite(norm.item()):
        pending.add((tensor.numel() - torch.isfinite(values).sum(),), receiver.take_nonfinite)


class _Masks(threading.local):
    """Memory for the masks of a thread on the CPU: to get much of it takes longer than to fill."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def like(self, tensor: Tensor) -> Tensor:
        """Return a tensor of float32 with the shape of another one, and any values."""
        if not (tensor.is_cpu and SMALL < tensor.numel() <= PART and tensor.is_contiguous()):
            return torch.empty_like(tensor, dtype=torch.float32)
        if self._memory is None:
            # In inference mode it would be a tensor that cannot be written to outside of it.
            with signal_safe(torch.inference_mode(False)):
                self._memory = torch.empty(PART, dtype=torch.float32, device="cpu")
        return self._memory[: tensor.numel()].view(tensor.shape)


_masks = _Masks()


def count_nonzero(tensor: Tensor, unit_dims: tuple[int, ...]) -> list[Tensor]:
    """Count the entries that are not zero: of all, or by unit along each of some dimensions."""
    parts = [tensor]
    if tensor.is_cpu and tensor.numel() > PART and tensor.ndim:
        parts = list(tensor.split(max(1, PART * tensor.shape[0] // tensor.numel())))
    sums: list[list[Tensor]] = []
    for part in parts:
        # Added up as floats, which takes a tenth of the time of ``count_nonzero`` on a CPU.
        mask = torch.ne(part, 0, out=_masks.like(part))
        if unit_dims:
            axes = range(part.ndim)
            sums.append([mask.sum([n for n in axes if n != dim]) for dim in unit_dims])
        else:
            sums.append([mask.sum()])
    if len(sums) == 1:
        return sums[0]
    return [torch.stack(counts).sum(0, dtype=torch.float64) for counts in zip(*sums, strict=True)]
