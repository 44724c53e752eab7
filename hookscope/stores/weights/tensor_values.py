"""Reading the values of a tensor from a file in windows, without mapping the file.

Pages of a mapped file count as memory of the process, so a loop over a large file would seem to
need as much memory as the file has bytes.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import IO, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from hookscope.errors import WeightsFileError, cause
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.pickle_scan import DAMAGED_ZIP
from hookscope.results.dtypes import RAW, widen
from hookscope.specs.tensor_key import Index
from hookscope.stores.weights.tensor_location import (
    StridedLocation,
    is_row_major,
    row_major_strides,
    span_of,
)
from hookscope.stores.weights.weight_dtypes import FROM_SAFETENSORS, WIDENED, bits_of

WINDOW = 1 << 22  # bytes that are read at a time
_SCATTERED_WINDOW = 1 << 26  # bytes of a tensor whose values are not stored in row-major order
# What numpy reads the stored bytes of a dtype with.
_CODES = {FROM_SAFETENSORS[tag]: code for tag, code in RAW.items()} | {"complex128": "<c16"}
_HALVES = "complex32"  # two numbers of float16, for which numpy has no dtype of its own
_SMALL_SPAN = 1 << 16  # bytes that are read at once even if few of them are needed


class StridedValues:
    """The values of a tensor at a location."""

    def __init__(self, location: StridedLocation, window: int = WINDOW) -> None:
        self._location = location
        self._window = window
        self._shape = location.shape
        bits = bits_of(location.dtype)
        if bits % 8:  # elements share bytes: only the bytes themselves can be read
            self._shape = (prod(location.shape) * bits // 8,)
        self._strides = location.strides or row_major_strides(self._shape)
        self._raw = _numpy_dtype(location)

    def read(self, index: Index) -> NDArray[Any]:
        """Return a new array of the values at ``index``; only their part of the file is read."""
        self._check_dtype()
        shape, strides, start = self._part(index)
        backwards = tuple(slice(None, None, -1 if step < 0 else None) for step in strides)
        start += sum((n - 1) * step for n, step in zip(shape, strides, strict=True) if step < 0)
        out = np.empty(shape, self._raw)
        with _opened(self._location) as file:
            self._read_into(file, start, out, [abs(step) for step in strides])
        return np.array(self._widened(out[backwards]))

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield all values in row-major order; a block is valid until the next one."""
        self._check_dtype()
        return map(self._widened, self._raw_blocks())

    def stored(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of all values in row-major order, little-endian."""
        for block in self._raw_blocks():
            yield self._little_endian(block).view(np.uint8)

    def _check_dtype(self) -> None:
        if self._location.dtype not in (*_CODES, _HALVES):
            raise WeightsFileError(
                f"Values of dtype {self._location.dtype} in {self._location.path} cannot be read.",
                "Open the file with the library that wrote it, and convert the tensor.",
            )

    def _raw_blocks(self) -> Iterator[NDArray[Any]]:
        if 0 in self._shape:
            return
        in_order = is_row_major(self._shape, self._strides)
        with _opened(self._location) as file:
            yield from (
                self._windows(file) if in_order else self._rows(file, 0, self._shape, self._strides)
            )

    def _part(self, index: Index) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """The shape, the strides and the first element of a part, in elements."""
        base = np.empty(1, np.uint8)  # views of it are never read: they only have addresses
        view = as_strided(base, self._shape, self._strides)
        # The ellipsis makes a view of a single entry too.
        part = view[index if ... in index else (*index, ...)]
        start = part.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return (part.shape, part.strides, start) if part.size else (part.shape, part.strides, 0)

    def _windows(self, file: IO[bytes]) -> Iterator[NDArray[Any]]:
        """The values that are stored in row-major order, in one window that is used again."""
        left = prod(self._shape)
        window = np.empty(min(self._window // self._raw.itemsize, left), self._raw)
        file.seek(self._location.offset)
        while left:
            block = window[: min(len(window), left)]
            _fill(file, block, self._location)
            yield block
            left -= len(block)

    def _rows(
        self, file: IO[bytes], start: int, shape: Sequence[int], strides: Sequence[int]
    ) -> Iterator[NDArray[Any]]:
        """The values of a transposed or expanded tensor, as many rows at a time as fit."""
        limit = _SCATTERED_WINDOW // self._raw.itemsize
        if prod(shape) <= limit:
            out = np.empty(shape, self._raw)
            self._read_into(file, start, out, strides)
            yield out.reshape(-1)
            return
        row = prod(shape[1:])
        if row > limit:
            for at in range(shape[0]):
                yield from self._rows(file, start + at * strides[0], shape[1:], strides[1:])
            return
        count = limit // row
        for at in range(0, shape[0], count):
            some = (min(count, shape[0] - at), *shape[1:])
            yield from self._rows(file, start + at * strides[0], some, strides)

    def _read_into(
        self, file: IO[bytes], start: int, out: NDArray[Any], strides: Sequence[int]
    ) -> None:
        """Read values with the given strides, which are not negative, from an element on."""
        if not out.size:
            return
        offset = self._location.offset + start * self._raw.itemsize
        if out.flags.c_contiguous and is_row_major(out.shape, strides):
            file.seek(offset)
            _fill(file, out.reshape(-1), self._location)
            return
        span = span_of(out.shape, strides)
        size = span * self._raw.itemsize
        if size <= _SMALL_SPAN or (size <= 2 * out.nbytes and size <= _SCATTERED_WINDOW):
            buffer = np.empty(span, self._raw)
            file.seek(offset)
            _fill(file, buffer, self._location)
            steps = [step * self._raw.itemsize for step in strides]
            out[...] = as_strided(buffer, out.shape, steps, writeable=False)
            return
        # Along the dimension whose entries are furthest apart, so that halves overlap least.
        axis = max((n for n in range(out.ndim) if out.shape[n] > 1), key=lambda n: strides[n])
        half = out.shape[axis] // 2
        before = (slice(None),) * axis
        self._read_into(file, start, out[(*before, slice(half))], strides)
        rest = out[(*before, slice(half, None))]
        self._read_into(file, start + half * strides[axis], rest, strides)

    def _widened(self, array: NDArray[Any]) -> NDArray[Any]:
        return widen(self._little_endian(array), WIDENED.get(self._location.dtype, ""))

    def _little_endian(self, array: NDArray[Any]) -> NDArray[Any]:
        if self._location.big_endian:
            return array.astype(array.dtype.newbyteorder("<"))
        return array


def _numpy_dtype(location: StridedLocation) -> np.dtype[Any]:
    if location.dtype == _HALVES:
        raw = np.dtype([("re", "<f2"), ("im", "<f2")])
    else:
        raw = np.dtype(_CODES.get(location.dtype, "u1"))
    return raw.newbyteorder(">") if location.big_endian else raw


@contextmanager
def _opened(location: StridedLocation) -> Iterator[IO[bytes]]:
    """The bytes that the offset counts from."""
    if location.data is not None:
        yield io.BytesIO(location.data)
        return
    try:
        if not location.record:
            with open(location.path, "rb", buffering=0) as file:
                yield file
            return
        with zipfile.ZipFile(location.path) as archive, archive.open(location.record) as record:
            yield record
    except (KeyError, *DAMAGED_ZIP) as error:
        raise WeightsFileError(
            f"The weights in {location.path!r} cannot be read: {cause(error)}.", WRITE_AGAIN
        ) from error


def _fill(file: IO[bytes], array: NDArray[Any], location: StridedLocation) -> None:
    """Fill an array of one dimension from the current position of a file."""
    view = memoryview(array.view(np.uint8).data)
    while len(view):
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise WeightsFileError(
                f"The file {location.path!r} became shorter while it was read.", WRITE_AGAIN
            )
        view = view[count:]
