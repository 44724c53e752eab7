"""What an index of numpy's asks for of an array in shards: which rows, and which part of each.

Whatever numpy takes is parted in two: rows and slices of the further dimensions, which are read,
and an index into what was read, which is numpy's own affair.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hookscope.results.dtypes import RAW, widen
from hookscope.results.features.shards import Shards

if TYPE_CHECKING:
    from hookscope.results.features.torch_dataset import TensorRows


@dataclass(frozen=True)
class IndexPlan:
    """What is to be read, and what is to be made of it.

    Attributes:
        rows: indices of rows, ascending, each once.
        inner: a slice for each further dimension.
        local: the index into what was read that gives what was asked for.
    """

    rows: NDArray[np.intp]
    inner: tuple[slice, ...]
    local: tuple[Any, ...]


def plan_index(index: Any, shape: tuple[int, ...]) -> IndexPlan:
    """Part an index into an array of ``shape``.

    Raises:
        IndexError, ValueError, TypeError: numpy would not take it either.

    Example:
        >>> plan_index((slice(None, None, -2), 3), (5, 8))
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
    return IndexPlan(rows, tuple(inner), tuple(local))


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


SCALE = ".scale"  # behind a key: what the integers of each row are to be multiplied by

BLOCK = 1 << 24  # bytes that are read at a time where all rows are gone through


class LazyRows:
    """The rows of one key, indexed as a numpy array is.

    Integers, slices, ``...``, ``None``, lists and arrays of integers or bools give what they give
    of an array in memory. bfloat16 and the float8s come as float32 without a change of value;
    int8 with a scale for each row comes multiplied out, as float32.

    Args:
        shards: what holds them.
        key: which tensor.
        shape: of all rows.
        raw: leave int8 as it is stored.

    Attributes:
        key, shape, dtype: what they are; ``shape`` begins with the number of rows.
        scaled: whether they are multiplied out.
        format: the dtype of :meth:`bits` as the format names it: ``F32``, ``BF16``, ``I8``.
    """

    def __init__(self, shards: Shards, key: str, shape: tuple[int, ...], raw: bool = False) -> None:
        first = shards.open(0)
        stored = first.spot(key, shape[1:]).dtype
        self.key, self.shape = key, shape
        self.scaled = not raw and first.holds(key + SCALE)
        self.format = "F32" if self.scaled else stored
        self.dtype = np.asarray(widen(np.empty(0, RAW[self.format]), self.format)).dtype
        self._shards, self._raw = shards, raw

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyRows, (self._shards, self.key, self.shape, self._raw)

    def __repr__(self) -> str:
        return f"<Rows of {self.key}: {'x'.join(map(str, self.shape))}, {self.dtype}>"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """How many dimensions there are, that of the rows included."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes all of it would take in memory."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    @property
    def raw(self) -> LazyRows:
        """The same rows, int8 as it is stored."""
        return LazyRows(self._shards, self.key, self.shape, raw=True)

    def __getitem__(self, index: Any) -> Any:
        bits = self.bits(index)
        values = np.asarray(widen(np.asarray(bits), self.format))
        return values if isinstance(bits, np.ndarray) else values[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("What lies on disk becomes an array in memory by being copied.")
        return np.asarray(self[:], dtype)

    def torch(self) -> TensorRows:
        """The same as torch's tensors, of the stored dtype: bfloat16 stays what it is."""
        from hookscope.results.features.torch_dataset import TensorRows

        return TensorRows(self)

    def bits(self, index: Any) -> Any:
        """Return what an index asks for; what numpy has no dtype for as integers of the same bits.

        Raises:
            IndexError: numpy would not take the index either.
            ResultsFileError: a shard is missing or damaged.
        """
        reading = plan_index(index, self.shape)
        found = self._gathered(reading.rows, reading.inner)
        return found[reading.local]  # of integers alone, a scalar

    def stretch(self, first: int, last: int) -> NDArray[Any]:
        """Return the bits of neighbouring rows, in memory that is given back with them.

        So going through a whole dataset takes no more than a stretch of it.
        """
        whole = (slice(None),) * (self.ndim - 1)
        return self._gathered(np.arange(first, last), whole, mapped=False)

    def stretches(self) -> Iterator[NDArray[Any]]:
        """Yield the bits of all rows in order, some megabytes at a time."""
        step = max(BLOCK * len(self) // max(self.nbytes, 1), 1)
        for first in range(0, len(self), step):
            yield self.stretch(first, min(first + step, len(self)))

    def _gathered(
        self, rows: NDArray[np.intp], inner: tuple[slice, ...], mapped: bool = True
    ) -> NDArray[Any]:
        found = self._shards.gather(self.key, self.shape[1:], rows, inner, mapped)
        if not self.scaled:
            return found
        scales = self._shards.gather(self.key + SCALE, (), rows, (), mapped)
        each = scales.reshape(-1, *(1,) * (found.ndim - 1))
        multiplied: NDArray[np.float32] = np.multiply(found, each, dtype=np.float32)
        return multiplied
