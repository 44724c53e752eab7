"""What is measured of the tensors of one step: numbers that stay on the device, and their totals.

Nothing here changes a tensor, draws a random number, or is seen by autograd or the script's modes.
A call of ``item()`` waits until the device has computed all that it was given. So the numbers of a
step are copied with a few calls, and passed on when the copies are done, usually a step later. The
calls of a step are combined as their numbers arrive, so many take no more memory than one.

A device is given as few operators as possible, each of which is a kernel to be launched: an output
takes 5, and a gradient 4. On the CPU, others take less time, and those are not called whose result
is known from the norm.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate, islice
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookscope.files.signal_safety import signal_safe
from hookscope.tensors.nested import is_functorch_tensor, unreadable_reason
from hookscope.tensors.torch_internals import (
    DisableTorchFunction,
    disable_current_modes,
    foreach_norm,
    foreach_sub,
    len_dispatch_stack,
)

MAX_QUEUED = 4096  # tensors on a device, until they are copied in the middle of a step
Taker = Callable[[list[Any]], None]
Item = TypeVar("Item")

_NARROW = {torch.float16, torch.bfloat16}
PART = 2**18  # entries of a tensor on the CPU that are looked at together: a part of its cache
COUNTED = 2**24  # entries that float32 counts exactly
GROUP = 2**22  # entries of tensors on a device for which memory is taken together
SMALL = 2**14  # entries of a mask for which memory is at hand


def is_on_host(tensor: Tensor) -> bool:
    """Whether reading a tensor waits for no device."""
    return tensor.is_cpu


class _Queue:
    """Tensors of one device and dtype that wait to be copied."""

    def __init__(self) -> None:
        self.numbers: list[Tensor] = []
        self.arrays: list[Tensor] = []  # of one dimension
        self.takers: list[tuple[Taker, int, bool]] = []  # how many tensors each gets, of which kind

    def __len__(self) -> int:
        return len(self.numbers) + len(self.arrays)

    def add(self, tensors: Sequence[Tensor], take: Taker) -> None:
        """Add tensors of the same number of dimensions."""
        are_arrays = tensors[0].ndim > 0
        kept = self.arrays if are_arrays else self.numbers
        kept += tensors
        self.takers.append((take, len(tensors), are_arrays))


class _Copy:
    """The numbers of a queue on their way to the host."""

    def __init__(self, queue: _Queue) -> None:
        self._takers = queue.takers
        self._count = len(queue.numbers)
        self._lengths = [array.shape[0] for array in queue.arrays]
        joined = torch.stack(queue.numbers) if queue.numbers else None
        if queue.arrays:
            joined = torch.cat(queue.arrays if joined is None else [joined, *queue.arrays])
        assert joined is not None
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
        numbers: Iterator[Any] = iter(self._numbers[: self._count].tolist())
        arrays: Iterator[Any] = iter(())
        if self._lengths:
            values = self._numbers[self._count :].numpy()
            ends = list(accumulate(self._lengths))
            arrays = (values[end - n : end] for end, n in zip(ends, self._lengths, strict=True))
        for take, count, are_arrays in self._takers:
            take(list(islice(arrays if are_arrays else numbers, count)))


class PendingValues:
    """The numbers of one step, on all devices. Several threads may add some."""

    def __init__(self) -> None:
        self._queues: dict[tuple[torch.device, torch.dtype], _Queue] = {}
        self._copies: deque[_Copy] = deque()

    def add(self, tensors: Sequence[Tensor], take: Taker) -> None:
        """Pass each tensor, as a number or a 1-d array, to ``take`` once it is on the host."""
        first = tensors[0]
        if is_on_host(first):
            take([tensor.numpy() if first.ndim else tensor.item() for tensor in tensors])
            return
        key = first.device, first.dtype
        queue = self._queues.get(key)
        if queue is not None and len(queue) >= MAX_QUEUED:
            # Before these are added: another key may come to share them, see CallMeasure.
            if len(self._copies) > 1:
                self._copies.popleft().deliver()
            self._copies.append(_Copy(queue))
            queue = None
        if queue is None:
            queue = self._queues[key] = _Queue()
        queue.add(tensors, take)

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
    """Whether a tensor has floating-point values that can be read."""
    if tensor.is_nested or is_functorch_tensor(tensor):
        return False
    if type(tensor) is Tensor and tensor.layout is torch.strided and tensor.is_floating_point():
        # Within the capture of a CUDA graph nothing may be computed for us.
        is_capturing = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
        return not tensor.is_meta and tensor.numel() > 0 and not is_capturing
    is_number = tensor.is_floating_point() or tensor.is_complex()
    return is_number and not unreadable_reason(tensor) and tensor.numel() > 0


def _at_least_float32(dtype: torch.dtype) -> torch.dtype | None:
    return torch.float32 if dtype in _NARROW else None


def norm_of(tensor: Tensor, order: float = 2, dims: Sequence[int] | None = None) -> Tensor:
    """Norm in float32 at least: Euclidean; of order 0, how many entries are not zero."""
    norm: Tensor = torch.linalg.vector_norm(
        tensor, order, dims, dtype=_at_least_float32(tensor.dtype)
    )
    return norm


def places_by_kind(tensors: Sequence[Tensor]) -> Iterable[list[int]]:
    """Return the places of the tensors of each device and dtype."""
    found: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for n, tensor in enumerate(tensors):
        found.setdefault((tensor.device, tensor.dtype), []).append(n)
    return found.values()


def norms_of(tensors: Sequence[Tensor], order: float = 2) -> list[Tensor]:
    """Return the norm of each tensor; those of a kind are computed together."""
    found: dict[int, Tensor] = {}
    for chosen in places_by_kind(tensors):
        dtype = _at_least_float32(tensors[chosen[0]].dtype)
        norms = foreach_norm([tensors[n] for n in chosen], order, dtype)
        found |= zip(chosen, norms, strict=True)
    return [found[n] for n in range(len(tensors))]


def in_groups(items: Iterable[Item], tensor_of: Callable[[Item], Tensor]) -> Iterator[list[Item]]:
    """Divide what has a tensor each into groups for which little memory is taken at a time."""
    group: list[Item] = []
    size = 0
    for item in items:
        tensor = tensor_of(item)
        if group and size + tensor.numel() > (PART if is_on_host(tensor) else GROUP):
            yield group
            group, size = [], 0
        group.append(item)
        size += tensor.numel()
    if group:
        yield group


def count_nonfinite(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Count the entries of each tensor that are NaN or infinite."""
    if all(map(is_on_host, tensors)):
        return [tensor.numel() - torch.isfinite(tensor).sum() for tensor in tensors]
    # Less itself, a number is 0, and these are NaN.
    groups = in_groups(tensors, lambda tensor: tensor)
    return [count for group in groups for count in norms_of(foreach_sub(group, group), 0)]


class Receiver(Protocol):
    """Gets the numbers of one tensor once they have arrived, each in a list of its own."""

    def take_size(self, numbers: list[float]) -> None:
        """Take the norm, and the least and the largest entry or the largest magnitude."""

    def take_nonfinite(self, numbers: list[float]) -> None:
        """Take how many entries are NaN or infinite; not called if it is known that none is."""


def measure(pending: PendingValues, tensor: Tensor, receiver: Receiver) -> None:
    """Measure the size of the entries of a tensor, which is detached and not empty."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    norm = norm_of(values)
    magnitudes = tensor.abs() if tensor.is_complex() else values
    if is_on_host(tensor):
        # Ten times faster on a CPU than the maximum norm.
        numbers = [one.item() for one in (norm, *torch.aminmax(magnitudes))]
        receiver.take_size(numbers)
        if math.isfinite(numbers[0]):
            return
    else:  # reading the norm would mean to wait for it
        pending.add((norm, norm_of(magnitudes, math.inf)), receiver.take_size)
    pending.add(count_nonfinite([values]), receiver.take_nonfinite)


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
    """Count the entries that are not zero: of parts, or by unit along each of some dimensions."""
    others = [[n for n in range(tensor.ndim) if n != dim] for dim in unit_dims]
    if not is_on_host(tensor):
        if unit_dims:
            return [norm_of(tensor, 0, dims) for dims in others]
        return [norm_of(part, 0) for part in _parts(tensor, COUNTED)]
    sums: list[list[Tensor]] = []
    for part in _parts(tensor.abs() if tensor.is_complex() else tensor, PART):
        # Added up as floats, which takes a tenth of the time of ``count_nonzero`` on a CPU.
        mask = torch.ne(part, 0, out=_masks.like(part))
        sums.append([mask.sum(dims) for dims in others] if unit_dims else [mask.sum()])
    if not unit_dims or len(sums) == 1:
        return [count for counts in sums for count in counts]
    return [torch.stack(counts).sum(0, dtype=torch.float64) for counts in zip(*sums, strict=True)]


def _parts(tensor: Tensor, size: int) -> list[Tensor]:
    """Divide a tensor along its first dimension into parts of so many entries, or about."""
    if tensor.numel() <= size or not tensor.ndim:
        return [tensor]
    return list(tensor.split(max(1, size * tensor.shape[0] // tensor.numel())))


class TensorTotals:
    """Several tensors as one."""

    __slots__ = ("_norm", "_squares", "largest", "nonfinite", "tensors")

    def __init__(self) -> None:
        self.tensors = 0
        self.largest = 0.0
        self.nonfinite = 0.0
        self._norm = 0.0  # of the last one, which is exact if it is the only one
        self._squares = 0.0

    def take_size(self, numbers: list[float]) -> None:
        """Add the norm of a tensor, and its least and largest entry or its largest magnitude."""
        norm, *bounds = numbers
        self.tensors += 1
        self._norm = norm
        self._squares += norm * norm
        largest = max(map(abs, bounds))  # all are NaN if an entry is
        if largest > self.largest or largest != largest:
            self.largest = largest

    def take_nonfinite(self, numbers: list[float]) -> None:
        """Add the number of entries of a tensor that are NaN or infinite."""
        self.nonfinite += numbers[0]

    def join(self, later: TensorTotals) -> None:
        """Add those of another total."""
        self.tensors += later.tensors
        if later.tensors == 1:
            self._norm = later._norm
        self._squares += later._squares
        if later.largest > self.largest or later.largest != later.largest:
            self.largest = later.largest
        self.nonfinite += later.nonfinite

    @property
    def norm(self) -> float:
        """Euclidean norm of all entries."""
        return self._norm if self.tensors == 1 else math.sqrt(self._squares)


class OutputTotals(TensorTotals):
    """What a layer returned in the calls of a step."""

    __slots__ = ("_alive", "gradients", "nonzero", "numel")

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0
        self.nonzero = 0.0
        self.gradients = TensorTotals()
        # Along each dimension that may be that of units, which of them are not zero in some call;
        # None if the calls have different numbers of units.
        self._alive: list[NDArray[np.bool_] | None] | None = None

    def take_nonzero(self, counts: list[Any]) -> None:
        """Add the numbers of entries of parts that are not zero, or such numbers by unit."""
        if not isinstance(counts[0], np.ndarray):
            self.nonzero += sum(counts)
            return
        self.nonzero += float(counts[0].sum(dtype=np.float64))
        self._add_alive([count != 0 for count in counts])

    def _add_alive(self, alive: Sequence[NDArray[np.bool_] | None]) -> None:
        if self._alive is None:
            self._alive = list(alive)
            return
        for n, (before, now) in enumerate(zip(self._alive, alive, strict=False)):
            is_known = before is not None and now is not None and len(before) == len(now)
            self._alive[n] = before | now if is_known else None  # type: ignore[operator]
        del self._alive[len(alive) :]

    def join_outputs(self, later: OutputTotals) -> None:
        """Add what the layer returned in later calls."""
        self.join(later)
        self.numel += later.numel
        self.nonzero += later.nonzero
        self.gradients.join(later.gradients)
        if later._alive is not None:
            self._add_alive(later._alive)

    @property
    def dead(self) -> float | None:
        """Share of units that are zero in all calls, along the dimension with the fewest."""
        if self._alive is None:
            return None
        return min(
            0.0 if alive is None else 1 - np.count_nonzero(alive) / len(alive)
            for alive in self._alive
        )


class CallMeasure:
    """The numbers of one tensor that was returned, for each layer that returned it."""

    __slots__ = ("_arrived", "_numel", "totals")

    def __init__(self, numel: int) -> None:
        self.totals: list[OutputTotals] = []
        self._numel = numel
        self._arrived: list[tuple[str, list[Any]]] = []

    def add_to(self, totals: OutputTotals) -> None:
        """Add the numbers, also those that arrive later, to those of a layer."""
        self.totals.append(totals)
        totals.numel += self._numel
        for name, numbers in self._arrived:
            getattr(totals, name)(numbers)

    def take_size(self, numbers: list[float]) -> None:
        """Take the norm, and the least and the largest entry or the largest magnitude."""
        self._arrived.append(("take_size", numbers))
        for totals in self.totals:
            totals.take_size(numbers)

    def take_nonfinite(self, numbers: list[float]) -> None:
        """Take how many entries are NaN or infinite."""
        self._arrived.append(("take_nonfinite", numbers))
        for totals in self.totals:
            totals.take_nonfinite(numbers)

    def take_nonzero(self, counts: list[Any]) -> None:
        """Take how many entries are not zero: of parts, or by unit along some dimensions."""
        self._arrived.append(("take_nonzero", counts))
        for totals in self.totals:
            totals.take_nonzero(counts)


class GradientMeasure:
    """Passes the numbers of a gradient on to the layers that returned the tensor."""

    __slots__ = ("_call",)

    def __init__(self, call: CallMeasure) -> None:
        self._call = call

    def take_size(self, numbers: list[float]) -> None:
        """Take the norm, and the least and the largest entry or the largest magnitude."""
        for totals in self._call.totals:
            totals.gradients.take_size(numbers)

    def take_nonfinite(self, numbers: list[float]) -> None:
        """Take how many entries are NaN or infinite."""
        for totals in self._call.totals:
            totals.gradients.take_nonfinite(numbers)
