"""Positions of tensors: taken out, put back, and a sink that stores only some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hookscope.hooks.record_key import RecordKey
from hookscope.hooks.tensor_sink import CaptureSink
from hookscope.results.metadata import StoredPositions
from hookscope.results.positions import LocatedPositions, locate
from hookscope.results.records import Record
from hookscope.specs.positions import Positions
from hookscope.tensors.recording_file import RecordingFile

NO_SEQUENCE = "it has no positions: no dimension of it is the sequence"


def locate_in(
    positions: Positions, key: RecordKey, tensor: Tensor, metadata: Mapping[str, Any]
) -> LocatedPositions | None:
    """Return where positions are in a tensor of a run; see
    ``hookscope.results.positions.locate``.
    """
    layer = key.layer
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    record = Record("", layer.name, layer.type, key.call, key.what, key.kind, shape, dtype, "")
    return locate(positions, record, metadata)


def take_positions(tensor: Tensor, located: LocatedPositions) -> Tensor:
    """Return the entries at some positions; differentiable.

    Example:
        >>> rows = torch.arange(6).reshape(1, 3, 2)
        >>> take_positions(rows, LocatedPositions(1, ((0, 2),))).tolist()
        [[[0, 1], [4, 5]]]
    """
    return tensor.take_along_dim(_index(tensor, located), located.dim)


def put_positions(tensor: Tensor, located: LocatedPositions, part: Tensor) -> Tensor:
    """Return a copy of a tensor with other entries at some positions; differentiable.

    Example:
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
