"""The header of a safetensors file as a list of tensors, checked as its own library checks it.

The format is 8 bytes with the length of a header in JSON, the header, and the values. The library
(huggingface/safetensors) accepts a file whose tensors fill it without gaps or overlaps.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any

from hookscope.errors import WeightsFileError, cause
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.files.strict_json import parse_table
from hookscope.stores.weights.tensor_location import StridedLocation, is_shape
from hookscope.stores.weights.weight_dtypes import FROM_SAFETENSORS, bits_of
from hookscope.stores.weights.weight_set import StoredWeights, WeightTensor, check_count

SAFETENSORS = "safetensors"  # the kind of a set of weights
_LONGEST_HEADER = 100_000_000  # bytes; safetensors rejects a longer one


def read_safetensors(path: str) -> StoredWeights:
    """Return what the header of a safetensors file describes; no values are read."""
    table, start, size = _table(path)
    metadata = table.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _damaged(path, "its metadata are not texts")
    entries = [(name, *_checked(path, name, entry)) for name, entry in table.items()]
    entries.sort(key=lambda entry: entry[3])
    tensors = []
    position = 0
    for name, dtype, shape, (begin, end) in entries:
        if begin != position:
            raise _damaged(path, f"the values of {name!r} do not begin where those before it end")
        position = end
        tensor = WeightTensor(name, dtype, shape, end - begin, path)
        tensors.append((tensor, StridedLocation(path, start + begin, dtype, shape)))
    if start + position != size:
        what = "cut off" if start + position > size else "followed by other bytes"
        raise _damaged(path, f"its values are {what}")
    return StoredWeights(SAFETENSORS, tensors, metadata)


def _table(path: str) -> tuple[dict[str, Any], int, int]:
    """The header, the offset of the first value, and the size of the file."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
                raise _damaged(path, "its header is cut off")
            table = parse_table(file.read(length), _without_repeats)
    except OSError as error:
        raise WeightsFileError(
            f"The weights in {path!r} cannot be read: {cause(error)}.", "Check its permissions."
        ) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header is not valid JSON") from error
    if not isinstance(table, dict):
        raise _damaged(path, "its header is not a table")
    check_count(path, len(table) - ("__metadata__" in table))
    return table, 8 + length, size


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name is repeated")
    return table


def _checked(path: str, name: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """The dtype, the shape and the offsets of a tensor, which fit each other."""
    try:
        tag, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        begin, end = offsets
        fits = is_shape(shape) and is_shape((begin,)) and is_shape((end,)) and begin <= end
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise _damaged(path, f"the entry of {name!r} has no valid dtype, shape and offsets")
    if not isinstance(tag, str) or tag not in FROM_SAFETENSORS:
        raise WeightsFileError(
            f"{name!r} in {path!r} has the unknown dtype {str(tag)[:20]!r}.", WRITE_AGAIN
        )
    dtype, numel = FROM_SAFETENSORS[tag], prod(shape)
    if tag == "F4":  # an element in torch is two values of four bits
        if not shape or shape[-1] % 2:
            raise _damaged(path, f"{name!r} has an odd number of values of four bits")
        shape, numel = [*shape[:-1], shape[-1] // 2], numel // 2
    if numel * bits_of(dtype) != 8 * (end - begin):
        raise _damaged(path, f"the shape of {name!r} does not fit the size of its values")
    return dtype, tuple(shape), (begin, end)


def _damaged(path: str, reason: str) -> WeightsFileError:
    return WeightsFileError(
        f"The file {path!r} is not a valid safetensors file: {reason}.", WRITE_AGAIN
    )
