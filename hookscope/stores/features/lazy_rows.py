"""All rows of one key as an array on disk: an index reads only what it selects."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hookscope.files.words import shape_text
from hookscope.results.dtypes import RAW, widen
from hookscope.stores.features.shards import Shards

if TYPE_CHECKING:
    from hookscope.stores.features.torch_dataset import TensorRows


SCALE = ".scale"  # added to a key: the factor by which the integers of each row are multiplied
BLOCK = 1 << 24  # bytes that are read at a time when all rows are read


class LazyRows:
    """The rows of one key, indexed like a numpy array.

    Integers, slices, ``...``, ``None``, lists and arrays of integers or bools select the same
    values as from an array in memory. bfloat16 and the float8 dtypes become float32 without a
    change of value. int8 values with a scale per row become float32, multiplied by the scale.

    Attributes:
        key: which tensor.
        shape: the number of rows, then the shape of one row.
        dtype: of the returned arrays.
        scaled: whether int8 values are multiplied by their scale.
        format: the format's name of the dtype of :meth:`bits`: ``F32``, ``BF16``, ``I8``.
    """

    def __init__(self, shards: Shards, key: str, shape: tuple[int, ...], raw: bool = False) -> None:
        first = shards.open(0)
        stored = first.stored_tensor(key, shape[1:]).dtype
        self.key, self.shape = key, shape
        self.scaled = not raw and first.holds(key + SCALE)
        self.format = "F32" if self.scaled else stored
        self.dtype = np.asarray(widen(np.empty(0, RAW[self.format]), self.format)).dtype
        self._shards, self._raw = shards, raw

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyRows, (self._shards, self.key, self.shape, self._raw)

    def __repr__(self) -> str:
        return f"<Rows of {self.key}: {shape_text(self.shape)}, {self.dtype}>"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """Number of dimensions, including that of the rows."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of all rows in memory, in bytes."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    @property
    def raw(self) -> LazyRows:
        """The same rows, with int8 as it is stored."""
        return LazyRows(self._shards, self.key, self.shape, raw=True)

    def __getitem__(self, index: Any) -> Any:
        bits = self.bits(index)
        values = np.asarray(widen(np.asarray(bits), self.format))
        return values if isinstance(bits, np.ndarray) else values[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(
                "Rows on disk cannot become an array in memory without a copy (copy=False)."
            )
        return np.asarray(self[:], dtype)

    def torch(self) -> TensorRows:
        """The same rows as tensors of the stored dtype; bfloat16 stays bfloat16."""
        from hookscope.stores.features.torch_dataset import TensorRows

        return TensorRows(self)

    def bits(self, index: Any) -> Any:
        """Return the selected values; dtypes that numpy does not have as integers of their bits."""
        plan = plan_index(index, self.shape)
        return self._gather(plan.rows, plan.inner)[plan.local]  # a scalar for only integers

    def read_range(self, first: int, last: int) -> NDArray[Any]:
        """Return the bits of some rows without a memory map, whose pages would fill the memory."""
        inner = (slice(None),) * (self.ndim - 1)
        return self._gather(np.arange(first, last), inner, mapped=False)

    def ranges(self) -> Iterator[NDArray[Any]]:
        """Yield the bits of all rows in order, some megabytes at a time."""
        step = max(BLOCK * len(self) // max(self.nbytes, 1), 1)
        for first in range(0, len(self), step):
            yield self.read_range(first, min(first + step, len(self)))

    def _gather(
        self, rows: NDArray[np.intp], inner: tuple[slice, ...], mapped: bool = True
    ) -> NDArray[Any]:
        values = self._shards.gather(self.key, self.shape[1:], rows, inner, mapped)
        if not self.scaled:
            return values
        scales = self._shards.gather(self.key + SCALE, (), rows, (), mapped)
        scales = scales.reshape(-1, *(1,) * (values.ndim - 1))
        scaled: NDArray[np.float32] = np.multiply(values, scales, dtype=np.float32)
        return scaled


@dataclass(frozen=True)
class IndexPlan:
    """What to read, and how to index the result."""

    rows: NDArray[np.intp]
    inner: tuple[slice, ...]
    local: tuple[Any, ...]


def plan_index(index: Any, shape: tuple[int, ...]) -> IndexPlan:
    """Split an index into an array of ``shape`` into what to read and an index into that.

    Example:
        >>> plan = plan_index((slice(None, None, -2), 3), (5, 8))
        >>> plan.rows, plan.inner, plan.local
        (array([0, 2, 4]), (slice(3, 4, None),), (slice(None, None, -1), 0))
    """
    entries = [_normalize(entry) for entry in (index if isinstance(index, tuple) else (index,))]
    missing = len(shape) - sum(map(_dimensions, entries))
    if missing < 0:
        raise IndexError(f"too many indices: the array is {len(shape)}-dimensional")
    if sum(entry is ... for entry in entries) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    to_read: list[Any] = [slice(None)] * len(shape)
    local: list[Any] = []
    axis = 0
    for entry in entries:
        if entry is ...:
            local.append(entry)
            axis += missing
        elif not _dimensions(entry):  # None, True, False: they index no dimension
            local.append(entry)
        else:
            for part in _parts(entry, shape, axis):
                to_read[axis], rest = _split_dimension(part, shape[axis], rows=axis == 0)
                local.append(rest)
                axis += 1
    first, *inner = to_read
    rows = np.arange(shape[0])[first] if isinstance(first, slice) else first
    return IndexPlan(rows, tuple(inner), tuple(local))


def _normalize(entry: Any) -> Any:
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
    if not array.size and not isinstance(entry, np.ndarray):  # [] would be float64
        array = array.astype(np.intp)
    if array.dtype.kind not in "biu":
        raise IndexError("only integers, slices, `...`, None and arrays of integers or bools index")
    return array


def _dimensions(entry: Any) -> int:
    """Number of dimensions that an entry indexes."""
    if isinstance(entry, np.ndarray) and entry.dtype.kind == "b":
        return entry.ndim
    return int(entry is not None and entry is not ...)


def _parts(entry: Any, shape: tuple[int, ...], axis: int) -> tuple[Any, ...]:
    """The entries for one dimension each: a mask becomes the indices at which it is true."""
    if not isinstance(entry, np.ndarray) or entry.dtype.kind != "b":
        return (entry,)
    covered = shape[axis : axis + entry.ndim]
    if entry.shape != covered:
        raise IndexError(f"a mask of shape {entry.shape} does not fit dimensions of {covered}")
    return entry.nonzero()


def _split_dimension(entry: Any, length: int, *, rows: bool) -> tuple[Any, Any]:
    """What to read of a dimension (rows or a slice), and the index into that."""
    if isinstance(entry, slice):
        selected = range(*entry.indices(length))
        if selected.step > 0 or not rows:
            return entry, slice(None)
        return np.array(selected[::-1], np.intp), slice(None, None, -1)
    if isinstance(entry, int):
        index = _check_bounds(entry, length)
        return slice(index, index + 1), 0
    indices = np.where(entry < 0, entry + length, entry).astype(np.intp)
    if entry.size:
        _check_bounds(int(entry.min()), length)
        _check_bounds(int(entry.max()), length)
    if not rows:
        return slice(None), indices
    unique, inverse = np.unique(indices, return_inverse=True)
    return unique, inverse.reshape(indices.shape)


def _check_bounds(index: int, length: int) -> int:
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of bounds for a dimension of size {length}")
    return index % length
