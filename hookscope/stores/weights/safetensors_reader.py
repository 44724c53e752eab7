"""The header of a safetensors file as a list of tensors, checked as its own library checks it.

The library (huggingface/safetensors) accepts a file whose tensors fill it without gaps or overlaps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from hookscope.errors import WeightsFileError
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.safetensors_header import METADATA, header_in
from hookscope.stores.weights.tensor_location import StridedLocation, is_shape
from hookscope.stores.weights.weight_dtypes import FROM_SAFETENSORS, bits_of
from hookscope.stores.weights.weight_set import StoredWeights, WeightTensor, check_count

SAFETENSORS = "safetensors"  # the kind of a set of weights
_HALF_BYTES = "F4"  # an element in torch is two values of four bits


class HeaderEntry(NamedTuple):
    """A tensor in a header; its values are at ``begin`` to ``end`` of those of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_safetensors(path: str) -> StoredWeights:
    """Return what the header of a safetensors file describes; no values are read."""
    with open(path, "rb") as file:
        table, start = header_in(file, _without_repeats)
        size = os.fstat(file.fileno()).st_size
    check_count(path, len(table) - (METADATA in table))
    metadata = table.pop(METADATA, None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its metadata are not texts")
    tensors = [_stored(path, start, entry) for entry in checked_entries(table, size - start)]
    return StoredWeights(SAFETENSORS, tensors, metadata)


def checked_entries(table: Mapping[str, Any], size: int) -> Iterator[HeaderEntry]:
    """Yield the tensors of a header in the order of their values, which fill ``size`` bytes.

    Raises:
        ValueError: they do not, or a shape does not fit its values. That of an unknown dtype may.
    """
    entries = [_checked(name, entry) for name, entry in table.items()]
    position = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != position:
            raise ValueError(f"the values of {entry.name!r} do not begin where those before it end")
        position = entry.end
        yield entry
    if position != size:
        what = "cut off" if position > size else "followed by other bytes"
        raise ValueError(f"its values are {what}")


def _checked(name: str, entry: Any) -> HeaderEntry:
    """The entry of a tensor; its dtype, shape and offsets fit each other."""
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
    return HeaderEntry(name, dtype, tuple(shape), begin, end)


def _stored(path: str, start: int, entry: HeaderEntry) -> tuple[WeightTensor, StridedLocation]:
    if entry.dtype not in FROM_SAFETENSORS:
        raise WeightsFileError(
            f"{entry.name!r} in {path!r} has the unknown dtype {entry.dtype[:20]!r}.", WRITE_AGAIN
        )
    dtype, shape = FROM_SAFETENSORS[entry.dtype], entry.shape
    if entry.dtype == _HALF_BYTES:
        shape = (*shape[:-1], shape[-1] // 2)
    tensor = WeightTensor(entry.name, dtype, shape, entry.end - entry.begin, path)
    return tensor, StridedLocation(path, start + entry.begin, dtype, shape)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name is repeated")
    return table
