"""Sinks, which receive the tensors of a recording. The usual one stores them in a capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from hookscope.errors import CheckFailed, StoreError
from hookscope.hooks.capture import Capture
from hookscope.hooks.device_copies import DeviceCopies
from hookscope.hooks.module_call import RecordKey
from hookscope.results.located_positions import LocatedPositions, locate
from hookscope.results.metadata import StoredPositions
from hookscope.results.records import Absent, Record
from hookscope.specs.position_spec import Positions
from hookscope.tensors.nested import is_functorch_tensor, unreadable_reason
from hookscope.tensors.recording_file import RecordingFile

NO_SEQUENCE = "it has no positions: no dimension of it is the sequence"


class TensorSink(Protocol):
    """What receives the tensors of a recording.

    Attributes:
        capture: contains the records, and the tensors that are stored.
        absent: requested tensors that do not exist.
        open: whether tensors are received now.
        adds_gradients: whether a gradient that arrives again is added to the tensor that
            ``store_gradient`` returned.
    """

    capture: Capture
    absent: list[Absent]
    open: bool
    adds_gradients: bool

    def store(self, key: RecordKey, tensor: Tensor) -> None:
        """Receive a value, which the model may change in place afterwards."""

    def store_gradient(
        self, key: RecordKey, gradient: Tensor, weight_norm: float | None = None
    ) -> Tensor | None:
        """Receive a detached gradient; return the tensor that further ones are added to, if any."""

    def mark_absent(self, key: RecordKey, reason: str) -> None:
        """Note why a tensor does not exist."""


@runtime_checkable
class ArgumentSink(Protocol):
    """A sink that also receives the arguments of the functions that a model calls."""

    def before_op(self, arguments: Sequence[Tensor], call: Any) -> None:
        """Receive the tensors that a function is about to read; its results are stored next.

        ``call`` has all its arguments, ``(args, kwargs)``.
        """


class SinkBase:
    """What the sinks share: the capture, and the tensors that do not exist or cannot be read."""

    adds_gradients = False

    def __init__(self, file: RecordingFile | None = None) -> None:
        self.capture = Capture(file)
        self.absent: list[Absent] = []
        self.open = False

    def mark_absent(self, key: RecordKey, reason: str) -> None:
        """Note why a tensor does not exist."""
        layer = key.layer
        self.absent.append(Absent(layer.name, layer.type, key.call, key.what, key.kind, reason))

    def is_readable(self, key: RecordKey, tensor: Tensor) -> bool:
        """Whether a tensor can be read; if not, the reason is noted."""
        if reason := unreadable_reason(tensor):
            self.mark_absent(key, reason)
        return not reason


class CaptureSink(SinkBase):
    """Stores clones in a capture: the sink of every recording that stores its tensors."""

    adds_gradients = True

    def __init__(self, max_bytes: int | None = None, file: RecordingFile | None = None) -> None:
        super().__init__(file)
        self.max_bytes = max_bytes
        self.file = file
        self._bytes = 0

    def store(self, key: RecordKey, tensor: Tensor) -> None:
        """Store a clone of a tensor."""
        if self.is_readable(key, tensor):
            self._store_clone(key, tensor.detach())

    def store_gradient(
        self, key: RecordKey, gradient: Tensor, weight_norm: float | None = None
    ) -> Tensor | None:
        """Store a clone of a gradient and return it."""
        if self.is_readable(key, gradient):
            return self._store_clone(key, gradient, weight_norm)
        return None

    def _store_clone(
        self, key: RecordKey, tensor: Tensor, weight_norm: float | None = None
    ) -> Tensor:
        if self.max_bytes is not None:
            self._count_bytes(key, tensor, self.max_bytes)
        try:
            clone = self._clone(tensor)
        except StoreError:
            self.open = False
            raise
        in_file = self.file is not None and self.file.holds(clone)
        if weight_norm is None and not in_file:
            self.capture.add(key, clone)
            return clone
        record = self.capture.put(clone, **key.origin(), weight_norm=weight_norm)
        if self.file is not None and in_file:
            record.stats  # noqa: B018  # computed while the values are in memory
            self.file.release(clone)
        return clone

    def _clone(self, tensor: Tensor) -> Tensor:
        return tensor.clone() if self.file is None else self.file.clone(tensor)

    def _count_bytes(self, key: RecordKey, tensor: Tensor, limit: int) -> None:
        self._bytes += tensor.numel() * tensor.element_size()
        if self._bytes > limit:
            self.open = False  # PyTorch still calls hooks, which would raise again
            raise CheckFailed(
                f"Stopped at {key.layer.title}: more than {limit:,} bytes would be recorded.",
                "Choose fewer layers with --layer, or raise --max-bytes.",
            )


class DeviceSink(CaptureSink):
    """Stores the tensors on another device than the model's."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._copies = self.capture.copies = DeviceCopies(device)

    def _clone(self, tensor: Tensor) -> Tensor:
        return self._copies.copy(tensor)


class ShapeSink(CaptureSink):
    """Stores tensors on the meta device too, for runs that are made only for their shapes."""

    def store(self, key: RecordKey, tensor: Tensor) -> None:
        """Store a clone of a tensor, or of one that has no values."""
        if tensor.is_meta and not is_functorch_tensor(tensor):
            self._store_clone(key, tensor.detach())
        else:
            super().store(key, tensor)


def locate_in(
    positions: Positions, key: RecordKey, tensor: Tensor, metadata: Mapping[str, Any]
) -> LocatedPositions | None:
    """Return where positions are in a tensor of a run."""
    layer = key.layer
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    record = Record("", layer.name, layer.type, key.call, key.what, key.kind, shape, dtype, "")
    return locate(positions, record, metadata)


def take_positions(tensor: Tensor, located: LocatedPositions) -> Tensor:
    """Return the entries at some positions; differentiable.

    >>> rows = torch.arange(6).reshape(1, 3, 2)
    >>> take_positions(rows, LocatedPositions(1, ((0, 2),))).tolist()
    [[[0, 1], [4, 5]]]
    """
    return tensor.take_along_dim(_index(tensor, located), located.dim)


def put_positions(tensor: Tensor, located: LocatedPositions, part: Tensor) -> Tensor:
    """Return a copy of a tensor with other entries at some positions; differentiable.

    >>> rows = torch.zeros(1, 3, 2)
    >>> put_positions(rows, LocatedPositions(1, ((1,),)), torch.ones(1, 1, 2)).tolist()
    [[[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]]
    """
    return tensor.scatter(located.dim, _index(tensor, located).expand(part.shape), part)


def _index(tensor: Tensor, located: LocatedPositions) -> Tensor:
    """The positions as an index that is broadcast against the other dimensions."""
    index = torch.tensor(located.rows, device=tensor.device)
    shape = [1] * tensor.ndim
    shape[0], shape[located.dim] = index.shape
    return index.reshape(shape)


class PositionSink(CaptureSink):
    """Stores some positions of the tensors of some layers, and all of the other layers."""

    def __init__(
        self,
        positions: Mapping[str, Positions],
        metadata: Mapping[str, Any],
        max_bytes: int | None = None,
        file: RecordingFile | None = None,
    ) -> None:
        super().__init__(max_bytes, file)
        self.positions = positions
        self.metadata = metadata
        self.stored: list[StoredPositions] = []

    def store(self, key: RecordKey, tensor: Tensor) -> None:
        """Store the chosen positions of a tensor, and note which they are."""
        positions = self.positions.get(key.layer.name)
        if positions is None:
            super().store(key, tensor)
            return
        located = locate_in(positions, key, tensor, self.metadata)
        if located is None:
            self.mark_absent(key, NO_SEQUENCE)
            return
        before = len(self.capture)
        super().store(key, take_positions(tensor, located))
        if len(self.capture) > before:
            self.stored.append(
                {
                    "key": self.capture.records[-1].key,
                    "dim": located.dim,
                    "length": tensor.shape[located.dim],
                    "rows": [list(row) for row in located.rows],
                }
            )
