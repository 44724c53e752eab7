"""What an index of numpy's asks for of an array in shards: which rows, and which part of each.

Whatever numpy takes is parted in two: rows and slices of the further dimensions, which are read,
and an index into what was read, which is numpy's own affair.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Reading:
    """What is to be read, and what is to be made of it.

    Attributes:
        rows: indices of rows, ascending, each once.
        inner: a slice for each further dimension.
        local: the index into what was read that gives what was asked for.
    """

    rows: NDArray[np.intp]
    inner: tuple[slice, ...]
    local: tuple[Any, ...]


def reading_of(index: Any, shape: tuple[int, ...]) -> Reading:
    """Part an index into an array of ``shape``.

    Raises:
        IndexError, ValueError, TypeError: numpy would not take it either.

    Example:
        >>> reading_of((slice(None, None, -2), 3), (5, 8))
        Reading(rows=array([0, 2, 4]), inner=(slice(3, 4, None),), local=(slice(None, None, -1), 0))
    """
    entries = [_plain(entry) for entry in (index if isinstance(index, tuple) else (index,))]
    missing = len(shape) - sum(map(_dimensions, entries))
    if missing < 0:
        raise IndexError(f"too many indices: the array is {len(shape)}-dimensional")
    if sum(entry is ... for entry in entries) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    wanted: list[Any] = [slice(None)] * len(shape)
    local: list[Any] = []
    axis = 0
    for entry in entries:
        if entry is ...:
            local.append(entry)
            axis += missing
        elif not _dimensions(entry):  # None, True, False: they take no dimension
            local.append(entry)
        else:
            for part in _parts(entry, shape, axis):
                wanted[axis], kept = _settle(part, shape[axis], rows=axis == 0)
                local.append(kept)
                axis += 1
    first, *inner = wanted
    rows = np.arange(shape[0])[first] if isinstance(first, slice) else first
    return Reading(rows, tuple(inner), tuple(local))


def _plain(entry: Any) -> Any:
    """An entry as None, ``...``, a slice, an int, or an array of bools or integers."""
    if entry is None or entry is ... or isinstance(entry, slice):
        return entry
    if isinstance(entry, bool | np.bool_):
        return np.asarray(entry)
    if not isinstance(entry, np.ndarray):
        try:
            return operator.index(entry)
        except TypeError:
            pass
    array = np.asarray(entry)
    if not array.size and not isinstance(entry, np.ndarray):  # [] has no integers to tell it by
        array = array.astype(np.intp)
    if array.dtype.kind not in "biu":
        raise IndexError("only integers, slices, `...`, None and arrays of integers or bools index")
    return array


def _dimensions(entry: Any) -> int:
    """How many dimensions an entry takes."""
    if isinstance(entry, np.ndarray) and entry.dtype.kind == "b":
        return entry.ndim
    return int(entry is not None and entry is not ...)


def _parts(entry: Any, shape: tuple[int, ...], axis: int) -> tuple[Any, ...]:
    """The entries for one dimension each: a mask stands for the places where it is true."""
    if not isinstance(entry, np.ndarray) or entry.dtype.kind != "b":
        return (entry,)
    covered = shape[axis : axis + entry.ndim]
    if entry.shape != covered:
        raise IndexError(f"a mask of shape {entry.shape} does not fit dimensions of {covered}")
    return entry.nonzero()


def _settle(entry: Any, length: int, *, rows: bool) -> tuple[Any, Any]:
    """What is read of a dimension (of the first one rows, or a slice), and what indexes that."""
    if isinstance(entry, slice):
        chosen = range(*entry.indices(length))
        if chosen.step > 0 or not rows:
            return entry, slice(None)
        return np.array(chosen[::-1], np.intp), slice(None, None, -1)
    if isinstance(entry, int):
        place = _inside(entry, length)
        return slice(place, place + 1), 0
    places = np.where(entry < 0, entry + length, entry).astype(np.intp)
    if entry.size:
        _inside(int(entry.min()), length)
        _inside(int(entry.max()), length)
    if not rows:
        return slice(None), places
    unique, back = np.unique(places, return_inverse=True)
    return unique, back.reshape(places.shape)


def _inside(place: int, length: int) -> int:
    if not -length <= place < length:
        raise IndexError(f"index {place} is out of bounds for a dimension of size {length}")
    return place % length
