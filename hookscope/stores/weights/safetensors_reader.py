"""The header of a safetensors file as a list of tensors, checked as its own library checks it.

The library (huggingface/safetensors) accepts a file whose tensors fill it without gaps or overlaps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from math import prod
from typing import IO, Any, NamedTuple

from hookscope.errors import WeightsFileError
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.safetensors_header import METADATA, header_in
from hookscope.stores.weights.tensor_location import StridedLocation, is_shape
from hookscope.stores.weights.weight_dtypes import FROM_SAFETENSORS, bits_of
from hookscope.stores.weights.weight_set import StoredWeights, WeightTensor, check_count

SAFETENSORS = "safetensors"  # the kind of a set of weights
_HALF_BYTES = "F4"  # an element in torch is two values of four bits


class StoredTensor(NamedTuple):
    """Where a tensor is stored in a file: the format's name of its dtype, its shape, its bytes."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def stored_tensors(file: IO[bytes]) -> tuple[dict[str, str], dict[str, StoredTensor]]:
    """Return the metadata and the tensors of a file that is open at its beginning."""
    table, start = header_in(file)
    return _pop_metadata(table), dict(_in_order(table, start, file.seek(0, os.SEEK_END)))


def read_safetensors(path: str) -> StoredWeights:
    """Return what the header of a safetensors file describes; no values are read."""
    with open(path, "rb") as file:
        table, start = header_in(file, _without_repeats)
        size = file.seek(0, os.SEEK_END)
    metadata = _pop_metadata(table)
    check_count(path, len(table))
    stored = _in_order(table, start, size)
    return StoredWeights(SAFETENSORS, [_entry(path, *each) for each in stored], metadata)


def _pop_metadata(table: dict[str, Any]) -> dict[str, str]:
    metadata = table.pop(METADATA, None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its metadata are not texts")
    return metadata


def _in_order(
    table: Mapping[str, Any], start: int, size: int
) -> Iterator[tuple[str, StoredTensor]]:
    """Yield the tensors in the order of their values, which fill a file of ``size`` bytes."""
    tensors = [(name, _checked(name, entry, start)) for name, entry in table.items()]
    position = start
    for name, tensor in sorted(tensors, key=lambda pair: (pair[1].start, pair[1].end)):
        if tensor.start != position:
            raise ValueError(f"the values of {name!r} do not begin where those before it end")
        position = tensor.end
        yield name, tensor
    if position != size:
        what = "cut off" if position > size else "followed by other bytes"
        raise ValueError(f"its values are {what}")


def _checked(name: str, entry: Any, start: int) -> StoredTensor:
    """The entry of a tensor; its shape and offsets fit each other, if its dtype is known."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        fits = is_shape(shape) and is_shape((begin,)) and is_shape((end,)) and begin <= end
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits or not isinstance(dtype, str):
        raise ValueError(f"the entry of {name!r} has no valid dtype, shape and offsets")
    if dtype == _HALF_BYTES and (not shape or shape[-1] % 2):
        raise ValueError(f"{name!r} has an odd number of values of four bits")
    values = prod(shape) // 2 if dtype == _HALF_BYTES else prod(shape)
    if (known := FROM_SAFETENSORS.get(dtype)) and values * bits_of(known) != 8 * (end - begin):
        raise ValueError(f"the shape of {name!r} does not fit the size of its values")
    return StoredTensor(dtype, tuple(shape), start + begin, start + end)


def _entry(path: str, name: str, stored: StoredTensor) -> tuple[WeightTensor, StridedLocation]:
    if stored.dtype not in FROM_SAFETENSORS:
        raise WeightsFileError(
            f"{name!r} in {path!r} has the unknown dtype {stored.dtype[:20]!r}.", WRITE_AGAIN
        )
    dtype, shape = FROM_SAFETENSORS[stored.dtype], stored.shape
    if stored.dtype == _HALF_BYTES:
        shape = (*shape[:-1], shape[-1] // 2)
    tensor = WeightTensor(name, dtype, shape, stored.end - stored.start, path)
    return tensor, StridedLocation(path, stored.start, dtype, shape)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name is repeated")
    return table
