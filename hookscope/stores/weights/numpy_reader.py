"""Arrays saved by numpy, ``.npz`` or ``.npy``, as a list of tensors, without numpy or pickles."""

from __future__ import annotations

import ast
import os
import struct
import zipfile
from math import prod
from typing import IO, Any

from hookscope.errors import WeightsFileError, cause
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.pickle_scan import DAMAGED_ZIP
from hookscope.files.words import join_first
from hookscope.stores.weights.tensor_location import StridedLocation, column_major_strides, is_shape
from hookscope.stores.weights.weight_dtypes import bits_of, read_numpy_dtype
from hookscope.stores.weights.weight_set import StoredWeights, WeightTensor, check_count
from hookscope.stores.weights.zip_records import ByteRange, DamagedArchive, ZipRecords

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000  # bytes; numpy itself reads no longer one from a file it does not trust
_MOST_HEADERS = 1 << 25  # bytes of all headers: usually 128 of each
_LISTED = 5

# What evaluating a text raises if it is not a table of plain values.
_NO_HEADER = (SyntaxError, ValueError, LookupError, TypeError, RecursionError, MemoryError)

Header = tuple[str, bool, tuple[int, ...], bool]  # dtype, big-endian, shape, column-major


class _NotNumbers(ValueError):
    """An array of objects, texts or records."""


def read_npz(path: str) -> StoredWeights:
    """Return the arrays of a ``.npz`` file; no values are read."""
    tensors, others = [], []
    left = _MOST_HEADERS
    try:
        records = ZipRecords(path)
        check_count(path, len(records.names()))
        with zipfile.ZipFile(path) as archive:
            for record in records.names():
                name = record.removesuffix(".npy")
                try:
                    with archive.open(record) as file:
                        header = _read_header(file)
                        start = file.tell()
                        left -= start
                    if left < 0:
                        raise ValueError(f"its headers have more than {_MOST_HEADERS:,} bytes")
                except _NotNumbers:
                    others.append(name)
                    continue
                tensors.append(_entry(path, name, header, start, records.range(record)))
    except (KeyError, DamagedArchive, *DAMAGED_ZIP) as error:
        raise _damaged(path, error) from error
    if not tensors:
        what = f"only objects or texts ({join_first(others, _LISTED)})" if others else "no arrays"
        raise WeightsFileError(
            f"The file {path!r} contains {what}.", "Save arrays of numbers with numpy.savez."
        )
    left_out = (
        f"Not listed, since they are objects (pickles) or texts: {join_first(others, _LISTED)}."
    )
    return StoredWeights("npz", tensors, notes=(left_out,) if others else ())


def read_npy(path: str) -> StoredWeights:
    """Return the array of a ``.npy`` file, whose name is that of the file; no values are read."""
    name = os.path.basename(path).removesuffix(".npy")
    try:
        with open(path, "rb") as file:
            header = _read_header(file)
            start = file.tell()
            size = os.fstat(file.fileno()).st_size
        return StoredWeights("npy", [_entry(path, name, header, start, ByteRange(0, size))])
    except _NotNumbers as error:
        raise WeightsFileError(
            f"The file {path!r} contains objects (a pickle) or texts, not numbers.",
            "Save an array of numbers with numpy.save.",
        ) from error
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _entry(
    path: str, name: str, header: Header, start: int, stored: ByteRange
) -> tuple[WeightTensor, StridedLocation]:
    """An array and where its values are: ``start`` bytes after the start of its record."""
    dtype, big_endian, shape, column_major = header
    nbytes = prod(shape) * bits_of(dtype) // 8
    if start + nbytes > stored.size:
        raise ValueError(f"the array {name!r} is cut off")
    strides = column_major_strides(shape) if column_major else None
    location = StridedLocation(
        path, stored.offset + start, dtype, shape, strides, stored.record, big_endian
    )
    return WeightTensor(name, dtype, shape, nbytes, path), location


def _read_header(file: IO[bytes]) -> Header:
    """Read the header of an array; the file is then at its values."""
    start = file.read(8)
    if not start.startswith(_MAGIC) or len(start) < 8:
        raise ValueError("it contains a record that is not an array")
    wide = start[6] >= 2  # the version: the length takes four bytes
    (length,) = struct.unpack("<I" if wide else "<H", file.read(4 if wide else 2))
    if length > _LONGEST_HEADER:
        raise ValueError("it has an array with a header that is too long")
    text = file.read(length)
    try:
        header = ast.literal_eval(text.decode("utf-8" if start[6] >= 3 else "latin-1").strip())
        description, shape = header["descr"], header["shape"]
        column_major = header["fortran_order"]
    except _NO_HEADER as error:
        raise ValueError("it has an array with a damaged header") from error
    dtype = read_numpy_dtype(description) if isinstance(description, str) else None
    if dtype is None:
        raise _NotNumbers
    return *dtype, _shape(shape), column_major is True


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, tuple) or not is_shape(shape):
        raise ValueError("it has an array with a damaged shape")
    return tuple(shape)


def _damaged(path: str, error: Exception) -> WeightsFileError:
    return WeightsFileError(f"The file {path!r} is damaged: {cause(error)}.", WRITE_AGAIN)
