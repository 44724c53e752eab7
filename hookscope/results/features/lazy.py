"""All rows of one key as an array that lies on disk: an index reads what it asks for, and no more.

Without torch, unless its tensors are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hookscope.results.dtypes import RAW, widen
from hookscope.results.features.indexing import reading_of
from hookscope.results.features.shards import Shards

if TYPE_CHECKING:
    from hookscope.results.features.torch_dataset import TensorRows

SCALE = ".scale"  # behind a key: what the integers of each row are to be multiplied by
BLOCK = 1 << 24  # bytes that are read at a time where all rows are gone through


class Rows:
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
        return Rows, (self._shards, self.key, self.shape, self._raw)

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
    def raw(self) -> Rows:
        """The same rows, int8 as it is stored."""
        return Rows(self._shards, self.key, self.shape, raw=True)

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
        reading = reading_of(index, self.shape)
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
