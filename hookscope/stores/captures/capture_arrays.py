"""A capture in memory, read like a file: plots and pages take either."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.results.records import Recording
from hookscope.specs.tensor_key import Index
from hookscope.stores.captures.capture_file import CaptureFile, open_capture, slice_error

MEMORY = "the capture"


@runtime_checkable
class InMemory(Protocol):
    """A recording with its tensors in memory, such as ``hookscope.Capture``."""

    def reader(self) -> CaptureArrays:
        """Return the recording for reading."""
        ...


class CaptureArrays(CaptureFile):
    """A capture whose tensors are in memory, with the methods of ``CaptureFile``.

    Args:
        recording: the records and the metadata.
        read: returns the tensor of a key as an array.
        nbytes: size of all tensors in bytes.
    """

    def __init__(
        self, recording: Recording, read: Callable[[str], NDArray[Any]], nbytes: int
    ) -> None:
        Recording.__init__(self)
        self.path = MEMORY
        self.listing = "list(capture) returns its keys."
        self._records = {record.key: record for record in recording.records}
        self.absent, self.coverage = recording.absent, recording.coverage
        self.metadata = recording.metadata
        self._read, self._nbytes = read, nbytes
        self._last: tuple[str, NDArray[Any]] | None = None

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return self._nbytes

    def _view(self, key: str, index: Index) -> tuple[NDArray[Any], str]:
        record = self.record(key)
        if self._last is None or self._last[0] != key:  # a tensor is read several times in a row
            self._last = key, self._read(key)
        try:
            return np.asarray(self._last[1][index]), ""
        except IndexError as error:
            raise slice_error(key, record.shape, error) from error


def open_source(source: str | os.PathLike[str] | InMemory) -> CaptureFile:
    """Open the file of a capture, or return a capture in memory for reading."""
    if isinstance(source, InMemory):
        return source.reader()
    if isinstance(source, str | os.PathLike):
        return open_capture(source)
    raise RequestError(
        f"A {type(source).__name__} is neither a file nor a capture.",
        "Give the path of a file, or what capture, grads, step, cam or load returned.",
    )
