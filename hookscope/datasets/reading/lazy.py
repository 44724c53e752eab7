"""All rows of one key as an array that lies on disk: an index reads what it asks for, and no more.

Without torch, unless its tensors are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hookscope.datasets.reading.indexing import reading_of
from hookscope.datasets.reading.shards import Shards
from hookscope.narrow import RAW, widen

if TYPE_CHECKING:
    from hookscope.datasets.serving import TensorRows

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
        shape: of one row.
        raw: leave int8 as it is stored.

    Attributes:
        key, shape, dtype: what they are; ``shape`` begins with the number of rows.
        stored: the dtype in the files, as the format names it: ``F32``, ``BF16``, ``I8``.
    """

    def __init__(self, shards: Shards, key: str, shape: tuple[int, ...], raw: bool = False) -> None:
        first = shards.open(0)
        self.key, self.shape = key, shape
        self.stored = first.spot(key).dtype
        self._shards = shards
        self._scaled = not raw and first.holds(key + SCALE)
        self.dtype = np.dtype(np.float32) if self._scaled else self._widened()

    def __reduce__(self) -> tuple[Any, ...]:
        raw = not self._scaled
        return Rows, (self._shards, self.key, self.shape, raw)

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
        bits, dtype = self.bits(index)
        return widen(np.asarray(bits), dtype)[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("What lies on disk becomes an array in memory by being copied.")
        return np.asarray(self[:], dtype)

    def torch(self) -> TensorRows:
        """The same as torch's tensors, of the stored dtype: bfloat16 stays what it is."""
        from hookscope.datasets.serving import TensorRows

        return TensorRows(self)

    def bits(self, index: Any) -> tuple[NDArray[Any], str]:
        """Return what an index asks for, with what the format calls its dtype.

        What numpy has no dtype for comes as integers of the same bits.

        Raises:
            IndexError: numpy would not take the index either.
            StoreError: a shard is missing or damaged.
        """
        reading = reading_of(index, self.shape)
        found = self._shards.gather(self.key, reading.rows, reading.inner)
        if self._scaled:
            found = self._multiplied(found, self._shards.gather(self.key + SCALE, reading.rows, ()))
        return found[reading.local], "F32" if self._scaled else self.stored

    def blocks(self) -> Iterator[tuple[NDArray[Any], str]]:
        """Yield the bits of all rows in order, some megabytes at a time, with their dtype.

        They are read into memory that is given back, so that going through a whole dataset takes
        no more than a block.
        """
        inner = (slice(None),) * (self.ndim - 1)
        width = int(np.prod(self.shape[1:], dtype=object)) * np.dtype(RAW[self.stored]).itemsize
        step = max(BLOCK // max(width, 1), 1)
        for number in range(len(self._shards)):
            shard = self._shards.open(number)
            for first in range(0, shard.rows, step):
                rows = np.arange(first, min(first + step, shard.rows))
                found = shard.fetch(self.key, rows, inner)
                if self._scaled:
                    found = self._multiplied(found, shard.fetch(self.key + SCALE, rows, ()))
                yield found, "F32" if self._scaled else self.stored

    def _widened(self) -> np.dtype[Any]:
        return widen(np.empty(0, RAW[self.stored]), self.stored).dtype

    def _multiplied(self, integers: NDArray[Any], scales: NDArray[Any]) -> NDArray[Any]:
        each = scales.reshape(-1, *(1,) * (integers.ndim - 1))
        return np.multiply(integers, each, dtype=np.float32)
