"""What is measured of one tensor: numbers that stay on its device.

Each measure reads the tensor once. Nothing here changes it, draws a random number, or is seen by
the modes of PyTorch that the script may have enabled. Tensors are detached before they are
measured, so autograd records nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from hookscope.tensors.nested import is_functorch_tensor, unreadable_reason
from hookscope.training.pending_values import PendingValues, Slot

_NARROW = {torch.float16, torch.bfloat16}


def unnoticed() -> AbstractContextManager[object]:
    """Compute without the modes that the script has enabled, which could count what is computed."""
    if torch._C._len_torch_dispatch_stack():
        return _without_modes()
    manager: AbstractContextManager[object] = torch._C.DisableTorchFunction()
    return manager


@contextmanager
def _without_modes() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
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


def nonfinite_of(tensor: Tensor, norm: Tensor) -> Tensor | None:
    """Number of entries that are NaN or infinite; None if ``norm`` shows that there are none.

    On a device other than the CPU, reading the norm would mean to wait for it.
    """
    if tensor.device.type == "cpu" and math.isfinite(norm.item()):
        return None
    return tensor.numel() - torch.isfinite(tensor).sum()


class TensorMeasure:
    """Norm, least and largest entry, and number of entries that are not finite, of one tensor.

    Args:
        pending: receives the numbers.
        tensor: detached, with floating-point values.
    """

    __slots__ = ("high", "low", "nonfinite", "norm", "numel")

    def __init__(self, pending: PendingValues, tensor: Tensor) -> None:
        values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        norm = norm_of(values)
        nonfinite = nonfinite_of(values, norm)
        self.numel = tensor.numel()
        self.norm = pending.add(norm)
        # Ten times faster on a CPU than the maximum norm.
        low, high = torch.aminmax(tensor.abs() if tensor.is_complex() else values)
        self.low, self.high = pending.add(low), pending.add(high)
        self.nonfinite = None if nonfinite is None else pending.add(nonfinite)


class ActivationMeasure(TensorMeasure):
    """The numbers of one tensor that a module returned, and of its gradients once they arrive.

    Args:
        pending: receives the numbers.
        tensor: detached, with floating-point values.
        unit_dims: dimensions that may be that of units, for the share of dead ones; the one in
            which fewer are dead counts.

    Attributes:
        has_units: whether ``nonzero`` is by unit.
        nonzero: numbers of entries that are not zero: of all, or by unit along each dimension.
        gradients: the measures of gradients that arrived at the tensor.
    """

    __slots__ = ("gradients", "has_units", "nonzero")

    def __init__(self, pending: PendingValues, tensor: Tensor, unit_dims: tuple[int, ...]) -> None:
        super().__init__(pending, tensor)
        self.has_units = bool(unit_dims)
        # Added up as floats, which takes a tenth of the time of ``count_nonzero`` on a CPU.
        mask = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
        torch.ne(tensor, 0, out=mask)
        self.nonzero: list[Slot] = [
            pending.add(mask.sum([other for other in range(tensor.ndim) if other != dim]))
            for dim in unit_dims
        ] or [pending.add(mask.sum())]
        self.gradients: list[TensorMeasure] = []
